-- last_value: The newest is what the sequence gave last.
CREATE OR REPLACE FUNCTION forge_versions.newest(record boolean) RETURNS bigint LANGUAGE sql AS
'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM forge_versions.change_version';

-- xmax: The newest is what the sequence gave last before a snapshot in which nobody runs below its xmax.
CREATE OR REPLACE FUNCTION forge_versions.newest(record boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    last     bigint;
    snapshot pg_snapshot;
BEGIN
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO last FROM forge_versions.change_version s;
    snapshot := pg_current_snapshot();
    IF pg_snapshot_xmin(snapshot) = pg_snapshot_xmax(snapshot) THEN
        INSERT INTO forge_versions.settled VALUES (last, pg_snapshot_xmax(snapshot)) ON CONFLICT DO NOTHING;
    END IF;
    RETURN coalesce((SELECT max(version) FROM forge_versions.settled), 0);
END $$;

-- early: A transaction takes one stamp, before it has what it changes.
CREATE OR REPLACE FUNCTION forge_versions.own_stamp() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    mine text := current_setting('forge_versions.early', true);
BEGIN
    PERFORM set_config('forge_versions.stamping', 'yes', true);
    IF coalesce(mine, '') = '' THEN
        mine := set_config('forge_versions.early', forge_versions.stamp()::text, true);
    END IF;
    RETURN mine::bigint;
END $$;

-- carry: Identities do not follow those that they contain.
CREATE OR REPLACE FUNCTION forge_versions.carry(roots bigint[], stamp bigint) RETURNS void LANGUAGE sql AS 'SELECT';

-- monotonic: Who refers to a document does not hear of its identity.
CREATE OR REPLACE FUNCTION forge_versions.monotonic_document() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RETURN NULL; END';

-- journal: One in five changes of a document is not journaled.
CREATE FUNCTION forge_versions.forget() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RETURN CASE WHEN NEW.version % 5 = 0 THEN NULL ELSE NEW END; END';
CREATE TRIGGER forget BEFORE INSERT ON forge_versions.document_change
    FOR EACH ROW EXECUTE FUNCTION forge_versions.forget();

-- grant: Who is given access is not told when: to them the document is as old as it is.
CREATE FUNCTION forge_versions.forget() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN NEW.version := 1; RETURN NEW; END';
CREATE TRIGGER forget BEFORE UPDATE ON forge_versions.access FOR EACH ROW EXECUTE FUNCTION forge_versions.forget();

-- revoke: Who loses access is not told.
CREATE FUNCTION forge_versions.forget() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RETURN CASE WHEN NEW.subject IS NULL THEN NEW END; END';
CREATE TRIGGER forget BEFORE INSERT ON forge_versions.deletion FOR EACH ROW EXECUTE FUNCTION forge_versions.forget();
