-- Strategies for finding indirect changes: `journal` and `denormalized` by the referrers of a changed identity,
-- `monotonic` by a value stored on each document. Triggers always maintain parent_resource, and the tokens of new
-- references.

-- Fill the data of a strategy for the documents after @after up to @upto; stored values never decrease.
CREATE OR ALTER PROCEDURE forge_versions.fill @name nvarchar(16), @after bigint, @upto bigint
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @found TABLE (document bigint NOT NULL PRIMARY KEY, dependency bigint NOT NULL);
    IF @name = N'monotonic'
    BEGIN
        INSERT INTO @found (document, dependency)
        SELECT r.parent, MAX(c.identity_version)
        FROM forge_versions.reference AS r
        JOIN forge_versions.document AS c WITH (READCOMMITTEDLOCK) ON c.id = r.child
        WHERE r.parent > @after AND r.parent <= @upto
        GROUP BY r.parent;
        UPDATE d SET max_dependency = f.dependency
        FROM forge_versions.document AS d JOIN @found AS f ON f.document = d.id
        WHERE f.dependency > d.max_dependency;
    END;
    IF @name = N'denormalized'
    BEGIN
        UPDATE r SET parent_resource = p.resource
        FROM forge_versions.reference AS r JOIN forge_versions.document AS p ON p.id = r.parent
        WHERE r.parent > @after AND r.parent <= @upto AND r.parent_resource IS NULL;
    END;
END;
GO

-- Change the strategy under concurrent reads and writes: first the triggers' setting, then existing rows, @batch
-- documents at a time, and only then the readers' setting. The data of the former strategy is removed last. After an
-- interruption at any point, readers have the former or the new strategy, complete, and a retry finishes the change.
--
-- A transaction that changed an identity before the triggers maintained it has that document locked until it commits,
-- and the fill waits for the lock, also with READ_COMMITTED_SNAPSHOT on. A later change writes to all referrers, and
-- the fill does not lower these values. This holds for writers of every isolation level except SNAPSHOT, which may see
-- a stale setting. Where writers and the fill conflict, the fill retries.
CREATE OR ALTER PROCEDURE forge_versions.use_strategy @name nvarchar(16), @batch integer = 5000
AS
BEGIN
    SET NOCOUNT ON;
    SET IMPLICIT_TRANSACTIONS OFF;
    SET DEADLOCK_PRIORITY LOW;
    DECLARE @got integer;
    DECLARE @after bigint = 0;
    DECLARE @upto bigint = 0;
    IF @@TRANCOUNT > 0
    BEGIN
        ;THROW 51004, N'a strategy is changed in several transactions: end yours first', 1;
    END;
    IF @name IS NULL OR @name NOT IN (N'journal', N'denormalized', N'monotonic')
    BEGIN
        ;THROW 51005, N'a strategy is journal, denormalized or monotonic', 1;
    END;
    IF @batch IS NULL OR @batch < 1
    BEGIN
        ;THROW 51005, N'a batch has one document or more', 1;
    END;
    EXEC @got = sp_getapplock @Resource = N'forge_versions.use_strategy', @LockMode = N'Exclusive',
        @LockOwner = N'Session', @LockTimeout = 0;
    IF @got < 0
    BEGIN
        ;THROW 51006, N'another session changes the strategy: wait until it is done', 1;
    END;
    BEGIN TRY
        IF @name = N'monotonic'
        BEGIN
            UPDATE forge_versions.setting SET keeps_dependency = 1;
        END;
        WHILE @name <> N'journal' AND @upto IS NOT NULL
        BEGIN
            BEGIN TRY
                EXEC forge_versions.fill @name, @after, @upto;
                SET @after = @upto;
                SET @upto = (
                    SELECT MAX(b.id) FROM (
                        SELECT TOP (@batch) d.id FROM forge_versions.document AS d WHERE d.id > @after ORDER BY d.id
                    ) AS b
                );
            END TRY
            BEGIN CATCH
                IF ERROR_NUMBER() <> 1205
                BEGIN
                    ;THROW;
                END;
                IF @@TRANCOUNT > 0
                BEGIN
                    ROLLBACK TRANSACTION;
                END;
            END CATCH;
        END;
        UPDATE forge_versions.setting SET strategy = @name, switches = switches + 1 WHERE strategy <> @name;
        IF @name <> N'monotonic'
        BEGIN
            UPDATE forge_versions.setting SET keeps_dependency = 0;
        END;
    END TRY
    BEGIN CATCH
        IF @@TRANCOUNT > 0
        BEGIN
            ROLLBACK TRANSACTION;
        END;
        EXEC sp_releaseapplock @Resource = N'forge_versions.use_strategy', @LockOwner = N'Session';
        ;THROW;
    END CATCH;
    EXEC sp_releaseapplock @Resource = N'forge_versions.use_strategy', @LockOwner = N'Session';
END;
GO
