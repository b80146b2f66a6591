-- resource: The number of a resource, and whether it is by access.
SELECT r.id, r.by_access FROM forge_versions.resource r
WHERE (r.project, r.name, r.version) = (%(project)s, %(name)s, %(version)s);

-- declare: Add a resource, if it is new; set whether it is by access, and count changes of that.
INSERT INTO forge_versions.resource AS r (project, name, version, by_access)
VALUES (%(project)s, %(name)s, %(version)s, coalesce(%(by_access)s, false))
ON CONFLICT (project, name, version) DO UPDATE SET by_access = excluded.by_access, epoch = r.epoch + 1
WHERE r.by_access <> excluded.by_access AND %(by_access)s::boolean IS NOT NULL;

-- resources: All declared resources.
SELECT r.project, r.name, r.version, r.by_access FROM forge_versions.resource r ORDER BY 1, 2, 3;

-- hold: Lock the targets of references, which keep their identities until the transaction ends, and the referrer.
SELECT h.name, h.child, h.identity::text
FROM forge_versions.hold(%(wanted)s::jsonb, %(parent)s::bigint, %(whole)s::boolean) h;

-- known: The document with an identity, the children that it refers to, and which of these are in its identity.
SELECT d.id, coalesce(jsonb_object_agg(r.name, r.child) FILTER (WHERE r.name IS NOT NULL), '{}'),
       coalesce(array_agg(r.name) FILTER (WHERE r.in_identity), '{}')
FROM forge_versions.document d LEFT JOIN forge_versions.reference r ON r.parent = d.id
WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb GROUP BY d.id;

-- known_by_id: The same for a document by its id.
SELECT d.id, coalesce(jsonb_object_agg(r.name, r.child) FILTER (WHERE r.name IS NOT NULL), '{}'),
       coalesce(array_agg(r.name) FILTER (WHERE r.in_identity), '{}')
FROM forge_versions.document d LEFT JOIN forge_versions.reference r ON r.parent = d.id
WHERE d.id = %(document)s GROUP BY d.id;

-- find: The document with an identity, locked.
SELECT d.id FROM forge_versions.document d
WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb FOR NO KEY UPDATE;

-- find_whole: As `find`, with a lock that also blocks new references to it.
SELECT d.id FROM forge_versions.document d
WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb FOR UPDATE;

-- content_same: Whether the content of a locked document is already this; NULL for edges means its existing ones.
SELECT d.content_hash = forge_versions.content_hash(
    %(body)s::jsonb, coalesce(%(edges)s::jsonb, forge_versions.edges(d.id)))
FROM forge_versions.document d WHERE d.id = %(document)s;

-- edges_same: Whether the references of a locked document are already these.
SELECT forge_versions.edges(%(document)s) = %(edges)s::jsonb;

-- insert: Insert a document with its journal rows, unless the identity is taken.
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

-- content: Write new content of a locked document, with its journal row; `body` or `edges` is NULL where it is
-- unchanged.
WITH written AS (
    UPDATE forge_versions.document d
    SET body = coalesce(%(body)s::jsonb, d.body), content_version = %(stamp)s, content_at = clock_timestamp(),
        content_hash = forge_versions.content_hash(
            coalesce(%(body)s::jsonb, d.body), coalesce(%(edges)s::jsonb, forge_versions.edges(d.id)))
    WHERE d.id = %(document)s RETURNING d.id, d.resource
)
INSERT INTO forge_versions.document_change (version, document, resource) SELECT %(stamp)s, w.id, w.resource FROM written w;

-- drop_edges: Delete the references of a document that are not among these.
DELETE FROM forge_versions.reference r WHERE r.parent = %(document)s AND NOT %(edges)s::jsonb ? r.name;

-- write_edges: Write the references of a document that are new or have another target.
INSERT INTO forge_versions.reference AS r (parent, name, child, in_identity, parent_resource)
SELECT d.id, e.key, (e.value -> 0)::bigint, (e.value -> 1)::boolean,
       CASE WHEN s.strategy = 'denormalized' THEN d.resource END
FROM forge_versions.document d, forge_versions.setting s, jsonb_each(%(edges)s::jsonb) e
WHERE d.id = %(document)s ORDER BY e.key
ON CONFLICT (parent, name) DO UPDATE SET child = excluded.child, in_identity = excluded.in_identity
WHERE (r.child, r.in_identity) <> (excluded.child, excluded.in_identity);

-- identity_of: The identity of a document, the wanted one completed with the identities that it must contain, whether
-- these differ, and where the requested one conflicts with a contained identity.
SELECT d.identity::text, w.identity::text, w.identity::text <> d.identity::text,
       (SELECT min(e.key) FROM jsonb_each(i.contained) e
        WHERE %(identity)s::jsonb ? e.key AND %(identity)s::jsonb -> e.key <> e.value)
FROM forge_versions.document d
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(r.name, c.identity), '{}') FROM forge_versions.reference r
    JOIN forge_versions.document c ON c.id = r.child WHERE r.parent = d.id AND r.in_identity) i (contained)
CROSS JOIN LATERAL (SELECT %(identity)s::jsonb || i.contained) w (identity)
WHERE d.id = %(document)s;

-- identity: Write another identity of a locked document, with its journal rows.
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

-- held: Whether a document exists; locks it against all others.
SELECT FROM forge_versions.document d WHERE d.id = %(document)s FOR UPDATE;

-- referrer: One document that refers to a document.
SELECT r.parent, r.name FROM forge_versions.reference r WHERE r.child = %(document)s AND r.parent <> r.child LIMIT 1;

-- delete: Delete a locked document and write its tombstones: one for all, and one per subject that had access.
WITH gone AS (
    DELETE FROM forge_versions.document d WHERE d.id = %(document)s RETURNING d.id, d.resource, d.identity
), lost AS (
    DELETE FROM forge_versions.access a WHERE a.document = %(document)s RETURNING a.subject
)
INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)
SELECT %(stamp)s, g.id, g.resource, g.identity, s.subject
FROM gone g CROSS JOIN (SELECT NULL UNION ALL SELECT l.subject FROM lost l) s (subject);

-- document: A document with its references.
SELECT d.id, p.project, p.name, p.version, d.identity::text, d.body::text, d.content_version, d.identity_version,
       coalesce((SELECT json_agg(json_build_object('name', r.name, 'document', c.id, 'in_identity', r.in_identity,
                                                   'project', q.project, 'resource', q.name, 'version', q.version,
                                                   'identity', c.identity) ORDER BY r.name)
                 FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
                 JOIN forge_versions.resource q ON q.id = c.resource WHERE r.parent = d.id), '[]')::text
FROM forge_versions.document d JOIN forge_versions.resource p ON p.id = d.resource WHERE d.id = %(document)s;

-- identified: The id of the document with an identity.
SELECT d.id FROM forge_versions.document d WHERE d.resource = %(resource)s AND d.identity = %(identity)s::jsonb;

-- present: Whether a document exists; keeps it from being deleted.
SELECT d.resource, d.identity::text FROM forge_versions.document d WHERE d.id = %(document)s FOR KEY SHARE;

-- grant: Insert access to a document, without a version yet; no row when it already existed.
INSERT INTO forge_versions.access (subject, document, resource, version)
SELECT %(subject)s, d.id, d.resource, 0 FROM forge_versions.document d WHERE d.id = %(document)s
ON CONFLICT (subject, document) DO NOTHING RETURNING document;

-- granted: Set the version of an access.
UPDATE forge_versions.access SET version = %(stamp)s WHERE (subject, document) = (%(subject)s, %(document)s);

-- access: The version of an existing access; keeps it from being revoked.
SELECT a.version FROM forge_versions.access a WHERE (a.subject, a.document) = (%(subject)s, %(document)s) FOR KEY SHARE;

-- revoke: Delete access to a document; no row when there was none.
DELETE FROM forge_versions.access a WHERE (a.subject, a.document) = (%(subject)s, %(document)s) RETURNING a.document;

-- revoked: Write the tombstone of an access.
INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)
SELECT %(stamp)s, d.id, d.resource, d.identity, %(subject)s FROM forge_versions.document d WHERE d.id = %(document)s;
