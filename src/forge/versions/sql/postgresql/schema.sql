-- Documents that refer to each other, and the stamps of their changes. See forge.versions.

CREATE SCHEMA forge_versions;

-- Every stamp comes from this sequence, only through forge_versions.stamp(): a transaction has its xid before it has a
-- stamp, and the safe newest depends on that. CACHE 1: a stamp cached by a session would be published as past before it
-- is used.
CREATE SEQUENCE forge_versions.change_version AS bigint MINVALUE 1 CACHE 1;

CREATE FUNCTION forge_versions.stamp() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_current_xact_id();
    SELECT nextval('forge_versions.change_version');
END;

-- `by_access`: only subjects with a row in forge_versions.access see a document. `epoch`: the number of changes of
-- that, which no version records.
CREATE TABLE forge_versions.resource (
    id        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project   text NOT NULL,
    name      text NOT NULL,
    version   text NOT NULL,
    by_access boolean NOT NULL DEFAULT false,
    epoch     integer NOT NULL DEFAULT 0,
    UNIQUE (project, name, version)
);

-- `identity` is the natural key, an object; where it contains that of another document, there is a reference of that
-- name with in_identity. `body` is the rest. `content_hash` is of the body and the references. The two tokens are
-- stamps. `max_dependency` is maintained only by the strategy `monotonic`: the greatest identity token that a
-- dependency ever had.
CREATE TABLE forge_versions.document (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    resource         integer NOT NULL REFERENCES forge_versions.resource,
    identity         jsonb NOT NULL,
    body             jsonb NOT NULL,
    content_hash     bytea NOT NULL,
    content_version  bigint NOT NULL,
    identity_version bigint NOT NULL,
    content_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    identity_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    max_dependency   bigint NOT NULL DEFAULT 0,
    UNIQUE (resource, identity)
);
-- A copy of a resource begins with all its documents, in the order of ids.
CREATE INDEX document_resource ON forge_versions.document (resource, id);

-- An edge from a document to one that its representation depends on. `parent_resource` is maintained only by the
-- strategy `denormalized`; without it new edges have NULL.
CREATE TABLE forge_versions.reference (
    parent          bigint NOT NULL REFERENCES forge_versions.document ON DELETE CASCADE,
    name            text NOT NULL,
    child           bigint NOT NULL REFERENCES forge_versions.document,
    in_identity     boolean NOT NULL DEFAULT false,
    parent_resource integer,
    PRIMARY KEY (parent, name)
);
CREATE INDEX reference_child ON forge_versions.reference (child, parent) INCLUDE (in_identity, parent_resource);
-- An identity with many referrers is in the identity of few: its change must not read all referrers.
CREATE INDEX reference_in_identity ON forge_versions.reference (child, parent) WHERE in_identity;

-- A document's own representation was created or changed.
CREATE TABLE forge_versions.document_change (
    version  bigint NOT NULL,
    document bigint NOT NULL,
    resource integer NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (version, document)
) PARTITION BY RANGE (version);
CREATE INDEX document_change_resource ON forge_versions.document_change (resource, version, document);

-- A document's identity was created or changed: all documents that refer to it changed with it.
CREATE TABLE forge_versions.identity_change (
    version  bigint NOT NULL,
    document bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (version, document)
) PARTITION BY RANGE (version);

-- Tombstones. `subject` is NULL for a deleted document, else the subject that lost access to it. A deleted document has
-- a row without a subject, and one per subject that had access to it.
CREATE TABLE forge_versions.deletion (
    version  bigint NOT NULL,
    document bigint NOT NULL,
    resource integer NOT NULL,
    identity jsonb NOT NULL,
    subject  text,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (version);
CREATE INDEX deletion_resource ON forge_versions.deletion (resource, version, document) WHERE subject IS NULL;
CREATE INDEX deletion_subject ON forge_versions.deletion (resource, subject, version, document) WHERE subject IS NOT NULL;

CREATE TABLE forge_versions.key_change (
    version  bigint NOT NULL,
    document bigint NOT NULL,
    resource integer NOT NULL,
    old_identity jsonb NOT NULL,
    new_identity jsonb NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (version, document)
) PARTITION BY RANGE (version);
CREATE INDEX key_change_resource ON forge_versions.key_change (resource, version, document);

-- Access of subjects to documents, for resources that are not open to all, with the stamp of the grant: for that
-- subject the document changed then, whatever its own version. Deferred: the deletion of a document writes tombstones
-- for its subjects first.
CREATE TABLE forge_versions.access (
    subject  text NOT NULL,
    document bigint NOT NULL REFERENCES forge_versions.document DEFERRABLE INITIALLY DEFERRED,
    resource integer NOT NULL,
    version  bigint NOT NULL,
    PRIMARY KEY (subject, document)
);
CREATE INDEX access_version ON forge_versions.access (subject, resource, version, document);
CREATE INDEX access_resource ON forge_versions.access (subject, resource, document) INCLUDE (version);
CREATE INDEX access_document ON forge_versions.access (document);

-- Pairs for the safe newest: the sequence's last value, and as `horizon` an xid that was assigned after it was read.
-- All stamps up to the value were taken by transactions below the horizon; once the oldest running transaction is not
-- below it, they are settled.
CREATE TABLE forge_versions.settled (
    version bigint PRIMARY KEY,
    horizon xid8 NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The journals' partitions are named by their start, at multiples of setting.partition_size, and the last has no end,
-- so that every write has one; forge.versions.retention ends it and creates the next before it is needed.
CREATE TABLE forge_versions.document_change_0 PARTITION OF forge_versions.document_change
    FOR VALUES FROM (0) TO (10000000);
CREATE TABLE forge_versions.document_change_10000000 PARTITION OF forge_versions.document_change
    FOR VALUES FROM (10000000) TO (MAXVALUE);
CREATE TABLE forge_versions.identity_change_0 PARTITION OF forge_versions.identity_change
    FOR VALUES FROM (0) TO (10000000);
CREATE TABLE forge_versions.identity_change_10000000 PARTITION OF forge_versions.identity_change
    FOR VALUES FROM (10000000) TO (MAXVALUE);
CREATE TABLE forge_versions.deletion_0 PARTITION OF forge_versions.deletion
    FOR VALUES FROM (0) TO (10000000);
CREATE TABLE forge_versions.deletion_10000000 PARTITION OF forge_versions.deletion
    FOR VALUES FROM (10000000) TO (MAXVALUE);
CREATE TABLE forge_versions.key_change_0 PARTITION OF forge_versions.key_change
    FOR VALUES FROM (0) TO (10000000);
CREATE TABLE forge_versions.key_change_10000000 PARTITION OF forge_versions.key_change
    FOR VALUES FROM (10000000) TO (MAXVALUE);

-- One row. `oldest`: windows that begin below it cannot be answered. `token_key` signs page tokens. `strategy` is the
-- one that readers may use.
CREATE TABLE forge_versions.setting (
    only_one       boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    strategy       text NOT NULL DEFAULT 'journal' CHECK (strategy IN ('journal', 'monotonic', 'denormalized')),
    writes         text NOT NULL DEFAULT 'application' CHECK (writes IN ('application', 'trigger')),
    oldest         bigint NOT NULL DEFAULT 1,
    partition_size bigint NOT NULL DEFAULT 10000000 CHECK (partition_size > 0),
    token_key      bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
    installed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version integer NOT NULL DEFAULT 2
);
INSERT INTO forge_versions.setting DEFAULT VALUES;
