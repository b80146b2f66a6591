-- Stamping and journaling for an application that writes documents and references with its own SQL: set-based, one
-- stamp per statement, none for a statement that changes nothing. Writes of the triggers themselves are not journaled.

CREATE OR ALTER TRIGGER forge_versions.document_inserted ON forge_versions.document AFTER INSERT
AS
BEGIN
    SET NOCOUNT ON;
    IF NOT EXISTS (SELECT 1 FROM inserted) RETURN;
    DECLARE @version bigint;
    EXEC forge_versions.stamp @version OUTPUT;
    UPDATE d SET content_version = @version, identity_version = @version
    FROM forge_versions.document AS d JOIN inserted AS i ON i.id = d.id;
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT @version, i.id, i.resource FROM inserted AS i;
    INSERT INTO forge_versions.identity_change (version, document)
    SELECT @version, i.id FROM inserted AS i;
END;
GO

-- A changed identity changes the identities that contain it, level by level, with the same stamp. A document that is
-- reached twice is written twice and journaled once; one that is reached without end contains itself. A path names a
-- key as the text spells it, without a backslash before a slash; STRING_ESCAPE adds one. Whether dependencies are
-- maintained is read last, while all changed documents are locked: see strategies.sql.
CREATE OR ALTER TRIGGER forge_versions.document_updated ON forge_versions.document AFTER UPDATE
AS
BEGIN
    SET NOCOUNT ON;
    IF TRIGGER_NESTLEVEL(OBJECT_ID(N'forge_versions.document_updated')) > 1 RETURN;
    DECLARE @content TABLE (document bigint NOT NULL PRIMARY KEY);
    DECLARE @moved TABLE (
        document     bigint NOT NULL PRIMARY KEY,
        old_identity nvarchar(max) NOT NULL,
        depth        integer NOT NULL
    );
    DECLARE @version bigint;
    DECLARE @depth integer = 0;
    DECLARE @name nvarchar(256);

    IF EXISTS (SELECT 1 FROM inserted AS i JOIN deleted AS d ON d.id = i.id WHERE i.resource <> d.resource)
    BEGIN
        ;THROW 51003, N'a document stays in its resource: delete it, and insert it into the other', 1;
    END;
    INSERT INTO @content (document)
    SELECT i.id FROM inserted AS i JOIN deleted AS d ON d.id = i.id WHERE i.body <> d.body;
    INSERT INTO @moved (document, old_identity, depth)
    SELECT i.id, d.[identity], 0 FROM inserted AS i JOIN deleted AS d ON d.id = i.id WHERE i.[identity] <> d.[identity];
    IF NOT EXISTS (SELECT 1 FROM @content) AND NOT EXISTS (SELECT 1 FROM @moved) RETURN;
    EXEC forge_versions.stamp @version OUTPUT;

    WHILE EXISTS (SELECT 1 FROM @moved WHERE depth = @depth)
    BEGIN
        IF @depth > (SELECT COUNT(*) FROM @moved)
        BEGIN
            ;THROW 51001, N'an identity contains itself: take the reference out of the identity of one of them', 1;
        END;
        INSERT INTO @moved (document, old_identity, depth)
        SELECT p.id, p.[identity], -1
        FROM forge_versions.document AS p
        WHERE p.id NOT IN (SELECT m.document FROM @moved AS m)
            AND EXISTS (
                SELECT 1 FROM forge_versions.reference AS r JOIN @moved AS m ON m.document = r.child
                WHERE r.parent = p.id AND r.in_identity = 1 AND m.depth = @depth
            );
        SET @name = N'';
        WHILE @name IS NOT NULL
        BEGIN
            SET @name = (
                SELECT MIN(r.name) FROM forge_versions.reference AS r JOIN @moved AS m ON m.document = r.child
                WHERE r.in_identity = 1 AND m.depth = @depth AND r.name > @name
            );
            UPDATE p
            SET [identity] = JSON_MODIFY(
                p.[identity],
                CONCAT(N'$."', REPLACE(STRING_ESCAPE(r.name, N'json'), N'\/', N'/'), N'"'),
                JSON_QUERY(c.[identity])
            )
            FROM forge_versions.document AS p
            JOIN forge_versions.reference AS r ON r.parent = p.id
            JOIN forge_versions.document AS c ON c.id = r.child
            JOIN @moved AS m ON m.document = r.child
            WHERE r.in_identity = 1 AND r.name = @name AND m.depth = @depth;
        END;
        UPDATE n SET depth = @depth + 1
        FROM @moved AS n
        WHERE EXISTS (
            SELECT 1 FROM forge_versions.reference AS r JOIN @moved AS m ON m.document = r.child
            WHERE r.parent = n.document AND r.in_identity = 1 AND m.depth = @depth
        );
        SET @depth = @depth + 1;
    END;

    UPDATE d SET content_version = @version, content_at = SYSUTCDATETIME()
    FROM forge_versions.document AS d JOIN @content AS c ON c.document = d.id;
    UPDATE d SET identity_version = @version, identity_at = SYSUTCDATETIME()
    FROM forge_versions.document AS d JOIN @moved AS m ON m.document = d.id;
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT @version, d.id, d.resource FROM forge_versions.document AS d
    WHERE d.id IN (SELECT c.document FROM @content AS c UNION SELECT m.document FROM @moved AS m);
    INSERT INTO forge_versions.identity_change (version, document)
    SELECT @version, m.document FROM @moved AS m;
    INSERT INTO forge_versions.key_change (version, document, resource, old_identity, new_identity)
    SELECT @version, d.id, d.resource, m.old_identity, d.[identity]
    FROM forge_versions.document AS d JOIN @moved AS m ON m.document = d.id;
    IF EXISTS (SELECT 1 FROM forge_versions.setting WHERE keeps_dependency = 1)
    BEGIN
        UPDATE p SET max_dependency = @version
        FROM forge_versions.document AS p
        WHERE EXISTS (
            SELECT 1 FROM forge_versions.reference AS r JOIN @moved AS m ON m.document = r.child WHERE r.parent = p.id
        );
    END;
END;
GO

-- Only subjects that had access get a tombstone; others learn nothing.
CREATE OR ALTER TRIGGER forge_versions.document_deleted ON forge_versions.document AFTER DELETE
AS
BEGIN
    SET NOCOUNT ON;
    IF NOT EXISTS (SELECT 1 FROM deleted) RETURN;
    DECLARE @version bigint;
    EXEC forge_versions.stamp @version OUTPUT;
    INSERT INTO forge_versions.deletion (version, document, resource, [identity])
    SELECT @version, d.id, d.resource, d.[identity] FROM deleted AS d;
    INSERT INTO forge_versions.deletion (version, document, resource, [identity], subject)
    SELECT @version, d.id, d.resource, d.[identity], a.subject
    FROM deleted AS d JOIN forge_versions.access AS a ON a.document = d.id;
    DELETE a FROM forge_versions.access AS a JOIN deleted AS d ON d.id = a.document;
END;
GO

-- References are content of their parent. The child stays locked until the transaction ends, so that a change of its
-- identity comes before this read or waits for this edge. Edges deleted with their parent are ignored.
CREATE OR ALTER TRIGGER forge_versions.reference_written ON forge_versions.reference AFTER INSERT, UPDATE, DELETE
AS
BEGIN
    SET NOCOUNT ON;
    IF TRIGGER_NESTLEVEL(OBJECT_ID(N'forge_versions.reference_written')) > 1 RETURN;
    DECLARE @parent TABLE (document bigint NOT NULL PRIMARY KEY, resource integer NOT NULL);
    DECLARE @version bigint;
    DECLARE @dependency bigint;

    INSERT INTO @parent (document, resource)
    SELECT p.id, p.resource FROM forge_versions.document AS p
    WHERE p.id IN (
        SELECT changed.parent FROM (
            (
                SELECT parent, name, child, in_identity FROM inserted
                EXCEPT
                SELECT parent, name, child, in_identity FROM deleted
            )
            UNION ALL
            (
                SELECT parent, name, child, in_identity FROM deleted
                EXCEPT
                SELECT parent, name, child, in_identity FROM inserted
            )
        ) AS changed
    );
    IF NOT EXISTS (SELECT 1 FROM @parent) RETURN;
    SELECT @dependency = MAX(c.identity_version)
    FROM forge_versions.document AS c WITH (REPEATABLEREAD) JOIN inserted AS i ON i.child = c.id;
    IF EXISTS (
        SELECT 1 FROM inserted AS i
        JOIN forge_versions.document AS p ON p.id = i.parent
        JOIN forge_versions.document AS c ON c.id = i.child
        WHERE i.in_identity = 1
            AND COALESCE(
                JSON_QUERY(
                    p.[identity], CONCAT(N'$."', REPLACE(STRING_ESCAPE(i.name, N'json'), N'\/', N'/'), N'"')
                ),
                N''
            ) <> c.[identity]
    )
    BEGIN
        ;THROW 51002, N'an identity does not contain that of its reference: write it first', 1;
    END;
    EXEC forge_versions.stamp @version OUTPUT;
    UPDATE r SET parent_resource = p.resource
    FROM forge_versions.reference AS r
    JOIN @parent AS p ON p.document = r.parent
    JOIN inserted AS i ON i.parent = r.parent AND i.name = r.name;
    UPDATE d SET content_version = @version, content_at = SYSUTCDATETIME(),
        max_dependency = CASE WHEN @dependency > d.max_dependency THEN @dependency ELSE d.max_dependency END
    FROM forge_versions.document AS d JOIN @parent AS p ON p.document = d.id;
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT @version, p.document, p.resource FROM @parent AS p;
END;
GO
