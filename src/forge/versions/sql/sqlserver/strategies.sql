-- How readers find what changed indirectly: `journal` and `denormalized` by who refers to an identity that changed,
-- `monotonic` by what each document keeps. Triggers always keep parent_resource, and what a new reference brings.

-- Of the documents behind @after up to @upto, what a strategy stands on; never less than what is kept already.
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

-- Go over to a strategy while others read and write: first what triggers keep, then, @batch documents at a time, what
-- was there before, and only then readers are told. What the former kept goes last. Whenever that is cut short, readers
-- have the former or the new one, whole, and doing it again completes it.
--
-- Who changed an identity before the triggers kept it has that document locked until he commits, and the fill waits for
-- the lock, also where READ_COMMITTED_SNAPSHOT is on. Who changes one later writes to all who refer to it, which the
-- fill does not lower. That holds for writers of every isolation level but SNAPSHOT, which do not see the setting as it
-- is. Where writers and the fill are in each other's way, the fill is the one that comes again.
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
