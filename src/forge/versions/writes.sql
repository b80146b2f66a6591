-- resource: The number of a resource, and whether it is by access.
SELECT r.id, r.by_access FROM forge_versions.resource r
WHERE (r.project, r.name, r.version) = (%(project)s, %(name)s, %(version)s);

-- declare: A resource, if it is not known yet; by access or not, as said last, and how often that was changed.
INSERT INTO forge_versions.resource AS r (project, name, version, by_access)
VALUES (%(project)s, %(name)s, %(version)s, coalesce(%(by_access)s, false))
ON CONFLICT (project, name, version) DO UPDATE SET by_access = excluded.by_access, epoch = r.epoch + 1
WHERE r.by_access <> excluded.by_access AND %(by_access)s::boolean IS NOT NULL;

-- resources: All that were declared.
SELECT r.project, r.name, r.version, r.by_access FROM forge_versions.resource r ORDER BY 1, 2, 3;

-- hold: The documents that references lead to, which keep their identities until the transaction ends; and who refers.
SELECT h.name, h.child, h.identity::text
FROM forge_versions.hold(%(wanted)s::jsonb, %(parent)s::bigint, %(whole)s::boolean) h;

-- known: The document with an identity, the children that it refers to, and which of these are in its identity.
SELECT d.id, coalesce(jsonb_object_agg(r.name, r.child) FILTER (WHERE r.name IS NOT NULL), '{}'),
       coalesce(array_agg(r.name) FILTER (WHERE r.in_identity), '{}')
FROM forge_versions.document d LEFT JOIN forge_versions.reference r ON r.parent = d.id
WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb GROUP BY d.id;

-- known_by_id: The same, of a document by its id.
SELECT d.id, coalesce(jsonb_object_agg(r.name, r.child) FILTER (WHERE r.name IS NOT NULL), '{}'),
       coalesce(array_agg(r.name) FILTER (WHERE r.in_identity), '{}')
FROM forge_versions.document d LEFT JOIN forge_versions.reference r ON r.parent = d.id
WHERE d.id = %(document)s GROUP BY d.id;

-- find: The document with an identity, held.
SELECT d.id FROM forge_versions.document d
WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb FOR NO KEY UPDATE;

-- find_whole: As `find`, and nobody may refer to it meanwhile.
SELECT d.id FROM forge_versions.document d
WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb FOR UPDATE;

-- content_same: Whether the content of a document that is held is already this; NULL as edges are those that it has.
SELECT d.content_hash = forge_versions.content_hash(
    %(body)s::jsonb, coalesce(%(edges)s::jsonb, forge_versions.edges(d.id)))
FROM forge_versions.document d WHERE d.id = %(document)s;

-- edges_same: Whether the references of a document that is held are already these.
SELECT forge_versions.edges(%(document)s) = %(edges)s::jsonb;

-- insert: A new document with its journal rows, unless the identity is taken.
WITH made AS (
    INSERT INTO forge_versions.document (resource, identity, body, content_hash, content_version, identity_version)
    VALUES (%(resource)s, %(identity)s::jsonb, %(body)s::jsonb,
            forge_versions.content_hash(%(body)s::jsonb, coalesce(%(edges)s::jsonb, '{}')), %(stamp)s, %(stamp)s)
    ON CONFLICT (resource, identity) DO NOTHING RETURNING id, resource
), direct AS (
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT %(stamp)s, m.id, m.resource FROM made m
), indirect AS (
    INSERT INTO forge_versions.identity_change (version, document) SELECT %(stamp)s, m.id FROM made m
)
SELECT m.id FROM made m;

-- content: Another content of a document that is held, with its journal row; `body` or `edges` is NULL where it stays.
WITH written AS (
    UPDATE forge_versions.document d
    SET body = coalesce(%(body)s::jsonb, d.body), content_version = %(stamp)s, content_at = clock_timestamp(),
        content_hash = forge_versions.content_hash(
            coalesce(%(body)s::jsonb, d.body), coalesce(%(edges)s::jsonb, forge_versions.edges(d.id)))
    WHERE d.id = %(document)s RETURNING d.id, d.resource
)
INSERT INTO forge_versions.document_change (version, document, resource) SELECT %(stamp)s, w.id, w.resource FROM written w;

-- drop_edges: The references of a document that are not among these.
DELETE FROM forge_versions.reference r WHERE r.parent = %(document)s AND NOT %(edges)s::jsonb ? r.name;

-- write_edges: The references of a document that are new or lead elsewhere.
INSERT INTO forge_versions.reference AS r (parent, name, child, in_identity, parent_resource)
SELECT d.id, e.key, (e.value -> 0)::bigint, (e.value -> 1)::boolean,
       CASE WHEN s.strategy = 'denormalized' THEN d.resource END
FROM forge_versions.document d, forge_versions.setting s, jsonb_each(%(edges)s::jsonb) e
WHERE d.id = %(document)s ORDER BY e.key
ON CONFLICT (parent, name) DO UPDATE SET child = excluded.child, in_identity = excluded.in_identity
WHERE (r.child, r.in_identity) <> (excluded.child, excluded.in_identity);

-- identity_of: A document: its identity, the one it is to have with what that has to contain, whether these
-- differ, and where the one asked for contains something else.
SELECT d.identity::text, w.identity::text, w.identity::text <> d.identity::text,
       (SELECT min(e.key) FROM jsonb_each(i.contained) e
        WHERE %(identity)s::jsonb ? e.key AND %(identity)s::jsonb -> e.key <> e.value)
FROM forge_versions.document d
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(r.name, c.identity), '{}') FROM forge_versions.reference r
    JOIN forge_versions.document c ON c.id = r.child WHERE r.parent = d.id AND r.in_identity) i (contained)
CROSS JOIN LATERAL (SELECT %(identity)s::jsonb || i.contained) w (identity)
WHERE d.id = %(document)s;

-- identity: Another identity of a document that is held, with its journal rows.
WITH written AS (
    UPDATE forge_versions.document d
    SET identity = %(identity)s::jsonb, identity_version = %(stamp)s, identity_at = clock_timestamp()
    WHERE d.id = %(document)s RETURNING d.id, d.resource
), direct AS (
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT %(stamp)s, w.id, w.resource FROM written w
), indirect AS (
    INSERT INTO forge_versions.identity_change (version, document) SELECT %(stamp)s, w.id FROM written w
)
INSERT INTO forge_versions.key_change (version, document, resource, old_identity, new_identity)
SELECT %(stamp)s, w.id, w.resource, %(old)s::jsonb, %(identity)s::jsonb FROM written w;

-- held: Whether a document is there, held against all.
SELECT FROM forge_versions.document d WHERE d.id = %(document)s FOR UPDATE;

-- referrer: One that refers to a document.
SELECT r.parent, r.name FROM forge_versions.reference r WHERE r.child = %(document)s AND r.parent <> r.child LIMIT 1;

-- delete: A document that is held, with its tombstones: one for all, and one for each who had access.
WITH gone AS (
    DELETE FROM forge_versions.document d WHERE d.id = %(document)s RETURNING d.id, d.resource, d.identity
), lost AS (
    DELETE FROM forge_versions.access a WHERE a.document = %(document)s RETURNING a.subject
)
INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)
SELECT %(stamp)s, g.id, g.resource, g.identity, s.subject
FROM gone g CROSS JOIN (SELECT NULL UNION ALL SELECT l.subject FROM lost l) s (subject);

-- document: A document as it is, with its references.
SELECT d.id, p.project, p.name, p.version, d.identity::text, d.body::text, d.content_version, d.identity_version,
       coalesce((SELECT json_agg(json_build_object('name', r.name, 'document', c.id, 'in_identity', r.in_identity,
                                                   'project', q.project, 'resource', q.name, 'version', q.version,
                                                   'identity', c.identity) ORDER BY r.name)
                 FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
                 JOIN forge_versions.resource q ON q.id = c.resource WHERE r.parent = d.id), '[]')::text
FROM forge_versions.document d JOIN forge_versions.resource p ON p.id = d.resource WHERE d.id = %(document)s;

-- identified: The number of the document with an identity.
SELECT d.id FROM forge_versions.document d WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb;

-- present: Whether a document is there, kept from being deleted.
SELECT d.resource, d.identity::text FROM forge_versions.document d WHERE d.id = %(document)s FOR KEY SHARE;

-- grant: Access to a document, without a version yet; no row when it was there.
INSERT INTO forge_versions.access (subject, document, resource, version)
SELECT %(subject)s, d.id, d.resource, 0 FROM forge_versions.document d WHERE d.id = %(document)s
ON CONFLICT (subject, document) DO NOTHING RETURNING document;

-- granted: The version of an access.
UPDATE forge_versions.access SET version = %(stamp)s WHERE (subject, document) = (%(subject)s, %(document)s);

-- access: The version of an access that is there, kept from being taken away.
SELECT a.version FROM forge_versions.access a WHERE (a.subject, a.document) = (%(subject)s, %(document)s) FOR KEY SHARE;

-- revoke: Access to a document goes; no row when there was none.
DELETE FROM forge_versions.access a WHERE (a.subject, a.document) = (%(subject)s, %(document)s) RETURNING a.document;

-- revoked: The tombstone of an access.
INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)
SELECT %(stamp)s, d.id, d.resource, d.identity, %(subject)s FROM forge_versions.document d WHERE d.id = %(document)s;
