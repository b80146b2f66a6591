-- Stamps, and the newest version below which nothing is uncommitted. See schema.sql, forge_versions.settled.

-- A transaction has an active rowversion before it has a stamp.
CREATE OR ALTER PROCEDURE forge_versions.stamp @version bigint OUTPUT
AS
BEGIN
    SET NOCOUNT ON;
    INSERT INTO forge_versions.stamping DEFAULT VALUES;
    SET @version = NEXT VALUE FOR forge_versions.change_version;
END;
GO

-- The order of the three reads makes it safe. Call it outside of a transaction.
CREATE OR ALTER PROCEDURE forge_versions.newest @version bigint OUTPUT
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @last bigint;
    DECLARE @horizon binary(8);
    DECLARE @active binary(8);
    SELECT @last = COALESCE(CAST(s.last_used_value AS bigint), 0)
    FROM sys.sequences AS s
    WHERE s.object_id = OBJECT_ID(N'forge_versions.change_version');
    SET @horizon = @@DBTS;
    SET @active = MIN_ACTIVE_ROWVERSION();
    INSERT INTO forge_versions.settled (version, horizon)
    SELECT @last, @horizon
    WHERE NOT EXISTS (SELECT 1 FROM forge_versions.settled AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.version = @last);
    SELECT @version = COALESCE(MAX(s.version), 0) FROM forge_versions.settled AS s WHERE s.horizon < @active;
    DELETE FROM forge_versions.settled WHERE version < @version;
END;
GO
