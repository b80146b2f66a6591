-- Documents that refer to each other, and the stamps of their changes: as in PostgreSQL, for SQL Server 2017 and newer.
-- Lines with GO end a batch, as in sqlcmd. Here the application writes documents and references with its own SQL, and
-- the triggers of triggers.sql stamp and journal; its sessions need the two settings below, as drivers have them.

SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO

CREATE SCHEMA forge_versions;
GO

-- Every stamp comes from this sequence, only through forge_versions.stamp. NO CACHE: the safe newest reads its last
-- used value.
CREATE SEQUENCE forge_versions.change_version AS bigint START WITH 1 INCREMENT BY 1 MINVALUE 1 NO CACHE;
GO

-- Journals are partitioned by version; forge_versions.extend adds partitions in advance, forge_versions.retain empties
-- old ones.
CREATE PARTITION FUNCTION forge_versions_by_version (bigint) AS RANGE RIGHT FOR VALUES (10000000, 20000000);
GO
CREATE PARTITION SCHEME forge_versions_by_version AS PARTITION forge_versions_by_version ALL TO ([PRIMARY]);
GO

-- `by_access`: only subjects with a row in forge_versions.access see a document. `epoch`: the number of changes of
-- that, which no version records; the session that changes it increments it.
CREATE TABLE forge_versions.resource (
    id        integer IDENTITY (1, 1) NOT NULL,
    project   nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    name      nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    version   nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,
    by_access bit NOT NULL CONSTRAINT DF_resource_by_access DEFAULT (0),
    epoch     integer NOT NULL CONSTRAINT DF_resource_epoch DEFAULT (0),
    CONSTRAINT PK_resource PRIMARY KEY (id),
    CONSTRAINT UQ_resource UNIQUE (project, name, version)
);
GO

-- `identity` is the natural key, a JSON object in canonical form (sorted keys, no spaces): texts are compared, and the
-- hash of the text is unique. `body` is a JSON object too; ISJSON also accepts an array, so the first character that is
-- not JSON whitespace is checked. The two tokens are stamps that the triggers set. `max_dependency` is maintained only
-- by the strategy `monotonic`: the greatest identity token that a dependency ever had.
CREATE TABLE forge_versions.document (
    id               bigint IDENTITY (1, 1) NOT NULL,
    resource         integer NOT NULL,
    [identity]       nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
    identity_hash    AS CAST(HASHBYTES('SHA2_256', [identity]) AS binary(32)) PERSISTED NOT NULL,
    body             nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
    content_version  bigint NOT NULL CONSTRAINT DF_document_content_version DEFAULT (0),
    identity_version bigint NOT NULL CONSTRAINT DF_document_identity_version DEFAULT (0),
    content_at       datetime2(7) NOT NULL CONSTRAINT DF_document_content_at DEFAULT (SYSUTCDATETIME()),
    identity_at      datetime2(7) NOT NULL CONSTRAINT DF_document_identity_at DEFAULT (SYSUTCDATETIME()),
    max_dependency   bigint NOT NULL CONSTRAINT DF_document_max_dependency DEFAULT (0),
    CONSTRAINT PK_document PRIMARY KEY (id),
    CONSTRAINT FK_document_resource FOREIGN KEY (resource) REFERENCES forge_versions.resource (id),
    CONSTRAINT UQ_document_identity UNIQUE (resource, identity_hash),
    CONSTRAINT CK_document_identity CHECK (
        ISJSON([identity]) = 1
        AND LEFT(LTRIM(REPLACE(REPLACE(REPLACE([identity], NCHAR(9), N' '), NCHAR(10), N' '), NCHAR(13), N' ')), 1) = N'{'
    ),
    CONSTRAINT CK_document_body CHECK (
        ISJSON(body) = 1
        AND LEFT(LTRIM(REPLACE(REPLACE(REPLACE(body, NCHAR(9), N' '), NCHAR(10), N' '), NCHAR(13), N' ')), 1) = N'{'
    )
);
GO
CREATE INDEX IX_document_resource ON forge_versions.document (resource, id);
GO

-- An edge from a document to one that its representation depends on. The trigger fills `parent_resource`; the strategy
-- `denormalized` reads it.
CREATE TABLE forge_versions.reference (
    parent          bigint NOT NULL,
    name            nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    child           bigint NOT NULL,
    in_identity     bit NOT NULL CONSTRAINT DF_reference_in_identity DEFAULT (0),
    parent_resource integer NULL,
    CONSTRAINT PK_reference PRIMARY KEY (parent, name),
    CONSTRAINT FK_reference_parent FOREIGN KEY (parent) REFERENCES forge_versions.document (id) ON DELETE CASCADE,
    CONSTRAINT FK_reference_child FOREIGN KEY (child) REFERENCES forge_versions.document (id)
);
GO
CREATE INDEX IX_reference_child ON forge_versions.reference (child, parent) INCLUDE (in_identity, parent_resource);
GO
-- An identity with many referrers is in the identity of few: its change must not read all referrers.
CREATE INDEX IX_reference_in_identity ON forge_versions.reference (child, parent) INCLUDE (name) WHERE in_identity = 1;
GO

-- A document's own representation was created or changed.
CREATE TABLE forge_versions.document_change (
    version  bigint NOT NULL,
    document bigint NOT NULL,
    resource integer NOT NULL,
    at       datetime2(7) NOT NULL CONSTRAINT DF_document_change_at DEFAULT (SYSUTCDATETIME()),
    CONSTRAINT PK_document_change PRIMARY KEY CLUSTERED (version, document)
) ON forge_versions_by_version (version);
GO
CREATE INDEX IX_document_change_resource ON forge_versions.document_change (resource, version, document)
ON forge_versions_by_version (version);
GO

-- A document's identity was created or changed: all documents that refer to it changed with it.
CREATE TABLE forge_versions.identity_change (
    version  bigint NOT NULL,
    document bigint NOT NULL,
    at       datetime2(7) NOT NULL CONSTRAINT DF_identity_change_at DEFAULT (SYSUTCDATETIME()),
    CONSTRAINT PK_identity_change PRIMARY KEY CLUSTERED (version, document)
) ON forge_versions_by_version (version);
GO

-- Tombstones. `subject` is NULL for a deleted document, else the subject that lost access to it.
CREATE TABLE forge_versions.deletion (
    version    bigint NOT NULL,
    document   bigint NOT NULL,
    resource   integer NOT NULL,
    [identity] nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
    subject    nvarchar(256) COLLATE Latin1_General_100_BIN2 NULL,
    at         datetime2(7) NOT NULL CONSTRAINT DF_deletion_at DEFAULT (SYSUTCDATETIME())
) ON forge_versions_by_version (version);
GO
CREATE CLUSTERED INDEX IX_deletion_resource ON forge_versions.deletion (resource, subject, version, document)
ON forge_versions_by_version (version);
GO

CREATE TABLE forge_versions.key_change (
    version      bigint NOT NULL,
    document     bigint NOT NULL,
    resource     integer NOT NULL,
    old_identity nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
    new_identity nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
    at           datetime2(7) NOT NULL CONSTRAINT DF_key_change_at DEFAULT (SYSUTCDATETIME()),
    CONSTRAINT PK_key_change PRIMARY KEY CLUSTERED (version, document)
) ON forge_versions_by_version (version);
GO
CREATE INDEX IX_key_change_resource ON forge_versions.key_change (resource, version, document)
ON forge_versions_by_version (version);
GO

-- Access of subjects to documents, for resources that are not open to all, with the stamp of the grant: for that
-- subject the document changed then, whatever its own version. No foreign key: the trigger of a deletion writes a
-- tombstone per subject first.
CREATE TABLE forge_versions.access (
    subject  nvarchar(256) COLLATE Latin1_General_100_BIN2 NOT NULL,
    document bigint NOT NULL,
    resource integer NOT NULL,
    version  bigint NOT NULL,
    CONSTRAINT PK_access PRIMARY KEY (subject, document)
);
GO
CREATE INDEX IX_access_version ON forge_versions.access (subject, resource, version, document);
GO
CREATE INDEX IX_access_document ON forge_versions.access (document);
GO

-- One row per stamp: its rowversion is active until the transaction that took the stamp has ended.
CREATE TABLE forge_versions.stamping (
    id    bigint IDENTITY (1, 1) NOT NULL,
    taken rowversion NOT NULL,
    CONSTRAINT PK_stamping PRIMARY KEY (id)
);
GO
CREATE INDEX IX_stamping_taken ON forge_versions.stamping (taken);
GO

-- Pairs for the safe newest: the sequence's last value, and as `horizon` the database's last rowversion, read after it.
-- All stamps up to the value were taken by transactions whose rowversion is at or below the horizon; once the lowest
-- active one is above it, they are settled.
CREATE TABLE forge_versions.settled (
    version bigint NOT NULL,
    horizon binary(8) NOT NULL,
    at      datetime2(7) NOT NULL CONSTRAINT DF_settled_at DEFAULT (SYSUTCDATETIME()),
    CONSTRAINT PK_settled PRIMARY KEY (version)
);
GO

-- One row. `oldest`: windows that begin below it cannot be answered. `strategy` is the one that readers may use,
-- `switches` the number of its changes, which only forge_versions.use_strategy makes. `keeps_dependency`: triggers
-- maintain document.max_dependency.
CREATE TABLE forge_versions.setting (
    only_one         bit NOT NULL CONSTRAINT DF_setting_only_one DEFAULT (1),
    strategy         nvarchar(16) NOT NULL CONSTRAINT DF_setting_strategy DEFAULT (N'journal'),
    switches         integer NOT NULL CONSTRAINT DF_setting_switches DEFAULT (0),
    keeps_dependency bit NOT NULL CONSTRAINT DF_setting_keeps_dependency DEFAULT (0),
    oldest           bigint NOT NULL CONSTRAINT DF_setting_oldest DEFAULT (1),
    partition_size   bigint NOT NULL CONSTRAINT DF_setting_partition_size DEFAULT (10000000),
    installed_at     datetime2(7) NOT NULL CONSTRAINT DF_setting_installed_at DEFAULT (SYSUTCDATETIME()),
    schema_version   integer NOT NULL CONSTRAINT DF_setting_schema_version DEFAULT (1),
    CONSTRAINT PK_setting PRIMARY KEY (only_one),
    CONSTRAINT CK_setting_only_one CHECK (only_one = 1),
    CONSTRAINT CK_setting_strategy CHECK (strategy IN (N'journal', N'monotonic', N'denormalized')),
    CONSTRAINT CK_setting_monotonic CHECK (strategy <> N'monotonic' OR keeps_dependency = 1),
    CONSTRAINT CK_setting_partition_size CHECK (partition_size > 0)
);
GO
INSERT INTO forge_versions.setting DEFAULT VALUES;
GO
