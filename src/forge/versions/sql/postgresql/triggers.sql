-- writes_trigger: The triggers that stamp and journal for applications that write by themselves, and what they insert.
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

-- writes_application: None of them.
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

-- keep_monotonic: The triggers by which documents know the identity tokens of what they refer to.
CREATE OR REPLACE TRIGGER monotonic_update AFTER UPDATE ON forge_versions.document
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.monotonic_document();
CREATE OR REPLACE TRIGGER monotonic_edge_insert AFTER INSERT ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.monotonic_reference();
CREATE OR REPLACE TRIGGER monotonic_edge_update AFTER UPDATE ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.monotonic_reference();

-- drop_monotonic: None of them.
DROP TRIGGER IF EXISTS monotonic_update ON forge_versions.document;
DROP TRIGGER IF EXISTS monotonic_edge_insert ON forge_versions.reference;
DROP TRIGGER IF EXISTS monotonic_edge_update ON forge_versions.reference;

-- fill_monotonic: What the documents from one id to another do not know yet.
UPDATE forge_versions.document p SET max_dependency = m.version
FROM (SELECT r.parent, max(c.identity_version) AS version
      FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
      WHERE r.parent > %(after)s AND r.parent <= %(upto)s GROUP BY r.parent) m
WHERE p.id = m.parent AND p.max_dependency < m.version;

-- keep_denormalized: The triggers by which edges know the resource of their parent.
CREATE OR REPLACE TRIGGER denormalized_insert AFTER INSERT ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.denormalized_reference();
CREATE OR REPLACE TRIGGER denormalized_update AFTER UPDATE ON forge_versions.reference
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION forge_versions.denormalized_reference();

-- drop_denormalized: None of them.
DROP TRIGGER IF EXISTS denormalized_insert ON forge_versions.reference;
DROP TRIGGER IF EXISTS denormalized_update ON forge_versions.reference;

-- fill_denormalized: What the edges of the documents from one id to another do not know yet.
UPDATE forge_versions.reference r SET parent_resource = p.resource
FROM forge_versions.document p
WHERE p.id = r.parent AND r.parent > %(after)s AND r.parent <= %(upto)s AND r.parent_resource IS DISTINCT FROM p.resource;

-- next_batch: Where a batch of documents after one ends; NULL after the last.
SELECT max(b.id) FROM (SELECT d.id FROM forge_versions.document d WHERE d.id > %(after)s ORDER BY d.id LIMIT %(size)s) b;
