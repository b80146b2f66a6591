-- Journals are partitioned by range of version: partitions are created in advance, and emptied when no window may begin
-- in them.

-- Where none is left, because the partitions created in advance were emptied too, new ones begin after the last stamp.
CREATE OR ALTER PROCEDURE forge_versions.extend
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @size bigint = (SELECT partition_size FROM forge_versions.setting);
    DECLARE @last bigint;
    DECLARE @bound bigint;
    SELECT @last = COALESCE(CAST(s.last_used_value AS bigint), 0)
    FROM sys.sequences AS s
    WHERE s.object_id = OBJECT_ID(N'forge_versions.change_version');
    SELECT @bound = COALESCE(MAX(CAST(v.value AS bigint)), @last / @size * @size)
    FROM sys.partition_range_values AS v
    JOIN sys.partition_functions AS f ON f.function_id = v.function_id
    WHERE f.name = N'forge_versions_by_version';
    WHILE @bound < @last + 2 * @size
    BEGIN
        SET @bound = @bound + @size;
        ALTER PARTITION SCHEME forge_versions_by_version NEXT USED [PRIMARY];
        ALTER PARTITION FUNCTION forge_versions_by_version() SPLIT RANGE (@bound);
    END;
END;
GO

-- Windows may begin at @oldest or later from now on. That is committed before anything is deleted, so a reader that
-- misses a deleted row, and reads `oldest` after that, finds that its window is expired; see queries.sql.
CREATE OR ALTER PROCEDURE forge_versions.retain @oldest bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET IMPLICIT_TRANSACTIONS OFF;
    DECLARE @bound bigint;
    IF @@TRANCOUNT > 0
    BEGIN
        ;THROW 51004, N'journals are not emptied inside a transaction: end it first', 1;
    END;
    UPDATE forge_versions.setting SET oldest = @oldest WHERE oldest < @oldest;
    DELETE FROM forge_versions.stamping WHERE taken < MIN_ACTIVE_ROWVERSION();
    SELECT @bound = MIN(CAST(v.value AS bigint))
    FROM sys.partition_range_values AS v
    JOIN sys.partition_functions AS f ON f.function_id = v.function_id
    WHERE f.name = N'forge_versions_by_version';
    WHILE @bound <= @oldest
    BEGIN
        TRUNCATE TABLE forge_versions.document_change WITH (PARTITIONS (1));
        TRUNCATE TABLE forge_versions.identity_change WITH (PARTITIONS (1));
        TRUNCATE TABLE forge_versions.deletion WITH (PARTITIONS (1));
        TRUNCATE TABLE forge_versions.key_change WITH (PARTITIONS (1));
        ALTER PARTITION FUNCTION forge_versions_by_version() MERGE RANGE (@bound);
        SELECT @bound = MIN(CAST(v.value AS bigint))
        FROM sys.partition_range_values AS v
        JOIN sys.partition_functions AS f ON f.function_id = v.function_id
        WHERE f.name = N'forge_versions_by_version';
    END;
END;
GO
