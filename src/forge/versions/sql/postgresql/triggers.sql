-- fit: Refuse content that some client could not read. The condition is checked when a row is written; where it is
-- false, no function is called and nothing is deferred to the end of the statement.
CREATE TRIGGER document_fit AFTER INSERT OR UPDATE OF identity, body ON forge_versions.document
    FOR EACH ROW WHEN (forge_versions.unfit(NEW.identity) IS NOT NULL OR forge_versions.unfit(NEW.body) IS NOT NULL)
    EXECUTE FUNCTION forge_versions.on_unfit();

-- writes_trigger: Create the triggers that stamp and journal for applications with their own SQL, and their defaults.
ALTER TABLE forge_versions.document ALTER content_hash SET DEFAULT '', ALTER content_version SET DEFAULT 0,
    ALTER identity_version SET DEFAULT 0;
CREATE OR REPLACE TRIGGER document_insert AFTER INSERT ON forge_versions.document REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_document_insert();
CREATE OR REPLACE TRIGGER document_update AFTER UPDATE ON forge_versions.document
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_document_update();
CREATE OR REPLACE TRIGGER document_delete AFTER DELETE ON forge_versions.document REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_document_delete();
CREATE OR REPLACE TRIGGER document_truncate BEFORE TRUNCATE ON forge_versions.document
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_truncate();
CREATE OR REPLACE TRIGGER reference_insert AFTER INSERT ON forge_versions.reference REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_reference();
CREATE OR REPLACE TRIGGER reference_update AFTER UPDATE ON forge_versions.reference
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_reference();
CREATE OR REPLACE TRIGGER reference_delete AFTER DELETE ON forge_versions.reference REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_reference();
CREATE OR REPLACE TRIGGER reference_truncate BEFORE TRUNCATE ON forge_versions.reference
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.on_truncate();

-- writes_application: Drop these triggers.
DROP TRIGGER IF EXISTS document_insert ON forge_versions.document;
DROP TRIGGER IF EXISTS document_update ON forge_versions.document;
DROP TRIGGER IF EXISTS document_delete ON forge_versions.document;
DROP TRIGGER IF EXISTS document_truncate ON forge_versions.document;
DROP TRIGGER IF EXISTS reference_insert ON forge_versions.reference;
DROP TRIGGER IF EXISTS reference_update ON forge_versions.reference;
DROP TRIGGER IF EXISTS reference_delete ON forge_versions.reference;
DROP TRIGGER IF EXISTS reference_truncate ON forge_versions.reference;
ALTER TABLE forge_versions.document ALTER content_hash DROP DEFAULT, ALTER content_version DROP DEFAULT,
    ALTER identity_version DROP DEFAULT;

-- keep_monotonic: Create the triggers by which documents store the identity tokens of their references.
CREATE OR REPLACE TRIGGER monotonic_update AFTER UPDATE ON forge_versions.document
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.monotonic_document();
CREATE OR REPLACE TRIGGER monotonic_edge_insert AFTER INSERT ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.monotonic_reference();
CREATE OR REPLACE TRIGGER monotonic_edge_update AFTER UPDATE ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.monotonic_reference();

-- drop_monotonic: Drop these triggers.
DROP TRIGGER IF EXISTS monotonic_update ON forge_versions.document;
DROP TRIGGER IF EXISTS monotonic_edge_insert ON forge_versions.reference;
DROP TRIGGER IF EXISTS monotonic_edge_update ON forge_versions.reference;

-- fill_monotonic: Fill missing tokens of the documents from one id to another. Returns the documents that others have
-- locked.
WITH known AS (
    SELECT r.parent AS id, max(c.identity_version) AS version
    FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
    WHERE r.parent > %(after)s AND r.parent <= %(upto)s GROUP BY r.parent
), held AS (
    SELECT p.id, k.version FROM known k JOIN forge_versions.document p ON p.id = k.id
    WHERE p.max_dependency < k.version FOR NO KEY UPDATE OF p SKIP LOCKED
), filled AS (
    UPDATE forge_versions.document p SET max_dependency = h.version FROM held h WHERE p.id = h.id
)
SELECT p.id AS parent, NULL AS name FROM known k JOIN forge_versions.document p ON p.id = k.id
WHERE p.max_dependency < k.version AND NOT EXISTS (SELECT FROM held h WHERE h.id = p.id);

-- fill_one_monotonic: Fill one of these.
UPDATE forge_versions.document p SET max_dependency = m.version
FROM (SELECT max(c.identity_version) AS version
      FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child WHERE r.parent = %(parent)s) m
WHERE p.id = %(parent)s AND p.max_dependency < m.version;

-- keep_denormalized: Create the triggers by which edges store the resource of their parent.
CREATE OR REPLACE TRIGGER denormalized_insert AFTER INSERT ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.denormalized_reference();
CREATE OR REPLACE TRIGGER denormalized_update AFTER UPDATE ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.denormalized_reference();

-- drop_denormalized: Drop these triggers.
DROP TRIGGER IF EXISTS denormalized_insert ON forge_versions.reference;
DROP TRIGGER IF EXISTS denormalized_update ON forge_versions.reference;

-- fill_denormalized: Fill missing resources on the edges of the documents from one id to another; as fill_monotonic.
WITH lacking AS (
    SELECT r.parent, r.name, p.resource FROM forge_versions.reference r JOIN forge_versions.document p ON p.id = r.parent
    WHERE r.parent > %(after)s AND r.parent <= %(upto)s AND r.parent_resource IS DISTINCT FROM p.resource
), held AS (
    SELECT r.parent, r.name, l.resource FROM lacking l JOIN forge_versions.reference r USING (parent, name)
    FOR NO KEY UPDATE OF r SKIP LOCKED
), filled AS (
    UPDATE forge_versions.reference r SET parent_resource = h.resource
    FROM held h WHERE (r.parent, r.name) = (h.parent, h.name)
)
SELECT l.parent, l.name FROM lacking l
WHERE NOT EXISTS (SELECT FROM held h WHERE (h.parent, h.name) = (l.parent, l.name));

-- fill_one_denormalized: Fill one of these.
UPDATE forge_versions.reference r SET parent_resource = p.resource FROM forge_versions.document p
WHERE (r.parent, r.name) = (%(parent)s, %(name)s) AND p.id = r.parent AND r.parent_resource IS DISTINCT FROM p.resource;

-- next_batch: The last id of the batch of documents after an id; NULL after the last document.
SELECT max(b.id) FROM (SELECT d.id FROM forge_versions.document d WHERE d.id > %(after)s ORDER BY d.id LIMIT %(size)s) b;
