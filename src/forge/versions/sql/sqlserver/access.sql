-- Access to documents: a grant shows the document to its subject as changed now, a revocation as deleted now.

CREATE OR ALTER PROCEDURE forge_versions.grant_access @document bigint, @subject nvarchar(256)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    DECLARE @version bigint;
    BEGIN TRANSACTION;
    IF NOT EXISTS (
        SELECT 1 FROM forge_versions.access AS a WITH (UPDLOCK, HOLDLOCK)
        WHERE a.subject = @subject AND a.document = @document
    )
    BEGIN
        EXEC forge_versions.stamp @version OUTPUT;
        INSERT INTO forge_versions.access (subject, document, resource, version)
        SELECT @subject, d.id, d.resource, @version FROM forge_versions.document AS d WHERE d.id = @document;
    END;
    COMMIT TRANSACTION;
END;
GO

CREATE OR ALTER PROCEDURE forge_versions.revoke_access @document bigint, @subject nvarchar(256)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    DECLARE @version bigint;
    BEGIN TRANSACTION;
    IF EXISTS (
        SELECT 1 FROM forge_versions.access AS a WITH (UPDLOCK, HOLDLOCK)
        WHERE a.subject = @subject AND a.document = @document
    )
    BEGIN
        EXEC forge_versions.stamp @version OUTPUT;
        DELETE FROM forge_versions.access WHERE subject = @subject AND document = @document;
        INSERT INTO forge_versions.deletion (version, document, resource, [identity], subject)
        SELECT @version, d.id, d.resource, d.[identity], @subject
        FROM forge_versions.document AS d WHERE d.id = @document;
    END;
    COMMIT TRANSACTION;
END;
GO
