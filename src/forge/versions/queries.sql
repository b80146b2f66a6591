-- standing: What the database is set to, and a resource's number and whether it is by access.
SELECT s.oldest, s.strategy, s.token_key, r.id, r.by_access
FROM forge_versions.setting s
LEFT JOIN forge_versions.resource r ON r.project = %(project)s AND r.name = %(name)s AND r.version = %(version)s;

-- settings: How a page is planned: what is in order is merged and read until the page is full, never sorted whole.
SELECT set_config(w.name, w.value, true)
FROM (VALUES ('enable_sort', 'off'), ('enable_hashagg', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
             ('enable_bitmapscan', 'off'), ('enable_material', 'off'), ('enable_incremental_sort', 'on'),
             ('enable_indexscan', 'on'), ('enable_indexonlyscan', 'on'), ('enable_nestloop', 'on'),
             ('max_parallel_workers_per_gather', '0'), ('jit', 'off'),
             ('plan_cache_mode', 'force_generic_plan')) w (name, value);

-- page: Up to `limit` items of a window in the order of version, document and kind; nothing where the settings are
-- others than the caller believes. There is always a row, which says what they are.
SELECT s.oldest, s.strategy, p.version, p.document, p.kind, p.identity::text, p.old_identity::text, p.body::text,
       p.content_version, p.identity_version, p.refers::text
FROM forge_versions.setting s
LEFT JOIN LATERAL (
    SELECT f.* FROM ({found}) f
    WHERE s.strategy = %(strategy)s AND s.oldest <= %(first)s
    ORDER BY f.version, f.document, f.kind LIMIT %(limit)s
) p ON true
ORDER BY p.version, p.document, p.kind;

-- everything: Up to `limit` documents of a resource, in their own order, that have not changed after `max`.
SELECT s.oldest, s.strategy, p.version, p.document, 2, p.identity::text, NULL, p.body::text, p.content_version,
       p.identity_version, p.refers::text
FROM forge_versions.setting s
LEFT JOIN LATERAL (
    SELECT greatest(d.content_version, d.identity_version, d.since, {others}) AS version, d.id AS document, d.identity,
           d.body, d.content_version, d.identity_version, o.refers
    FROM ({all}) d
    CROSS JOIN LATERAL ({refers} OFFSET 0) o
    WHERE s.strategy = %(strategy)s
      AND greatest(d.content_version, d.identity_version, d.since, {others}) <= %(max)s
    ORDER BY d.id LIMIT %(limit)s
) p ON true
ORDER BY p.document;

-- all: The documents of a resource.
SELECT w.id, w.identity, w.body, w.content_version, w.identity_version, w.max_dependency, 0 AS since
FROM forge_versions.document w
WHERE w.resource = %(resource)s AND w.id > %(after)s ORDER BY w.id;

-- all_granted: Those that somebody has access to.
SELECT a.document AS id, w.identity, w.body, w.content_version, w.identity_version, w.max_dependency, a.version AS since
FROM forge_versions.access a
CROSS JOIN LATERAL (SELECT * FROM forge_versions.document w WHERE w.id = a.document OFFSET 0) w
WHERE a.subject = %(subject)s AND a.resource = %(resource)s AND a.document > %(after)s ORDER BY a.document;

-- refers: What a document refers to, and when the last of that had another identity.
SELECT max(c.identity_version) AS version,
       json_agg(json_build_array(r.name, c.id, c.resource, c.identity, r.in_identity)) AS refers
FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
WHERE r.parent = d.id;

-- kinds: The names of some resources.
SELECT k.id, k.project, k.name, k.version FROM forge_versions.resource k WHERE k.id = ANY (%(numbers)s::integer[]);

-- upserts: The documents whose version, derived, is that of an event in the window. One that changed later by itself is
-- not asked for what it refers to.
(SELECT e.version, e.document, 2 AS kind, d.identity, NULL::jsonb AS old_identity, d.body, d.content_version,
        d.identity_version, o.refers
 FROM (SELECT DISTINCT v.version, v.document FROM ({events}) v) e
 CROSS JOIN LATERAL (
     SELECT d.id, d.identity, d.body, d.content_version, d.identity_version, d.max_dependency
     FROM forge_versions.document d WHERE d.id = e.document AND d.resource = %(resource)s OFFSET 0
 ) d {seen}
 CROSS JOIN LATERAL (
     {refers} AND greatest(d.content_version, d.identity_version, {since}, {kept}) <= e.version OFFSET 0
 ) o
 WHERE greatest(d.content_version, d.identity_version, {since}, {kept}) <= e.version
   AND greatest(d.content_version, d.identity_version, {since}, {others}) = e.version
 ORDER BY e.version, e.document LIMIT %(limit)s);

-- seen: The access that somebody has to a document.
CROSS JOIN LATERAL (
    SELECT a.version FROM forge_versions.access a WHERE a.subject = %(subject)s AND a.document = d.id OFFSET 0
) a;

-- own_events: What happened to documents themselves.
(SELECT c.version, c.document FROM forge_versions.document_change c
 WHERE c.resource = %(resource)s AND c.version BETWEEN %(from)s AND %(max)s
   AND (c.version, c.document) > (%(from)s, %(after_upsert)s)
 ORDER BY c.version, c.document);

-- other_events: What happened last to the identities that documents refer to, for each that does.
(SELECT i.version, r.parent AS document FROM forge_versions.identity_change i
 CROSS JOIN LATERAL (
     SELECT FROM forge_versions.document o WHERE o.id = i.document AND o.identity_version = i.version OFFSET 0
 ) o
 CROSS JOIN LATERAL (
     SELECT r.parent FROM forge_versions.reference r
     WHERE r.child = i.document AND r.parent > CASE i.version WHEN %(from)s THEN %(after_upsert)s ELSE 0 END OFFSET 0
 ) r
 WHERE i.version BETWEEN %(from)s AND %(max)s
 ORDER BY i.version, r.parent);

-- other_events_by_resource: The same, of this resource's documents alone, by what each edge says of its parent.
(SELECT i.version, r.parent AS document FROM forge_versions.identity_change i
 CROSS JOIN LATERAL (
     SELECT FROM forge_versions.document o WHERE o.id = i.document AND o.identity_version = i.version OFFSET 0
 ) o
 CROSS JOIN LATERAL (
     SELECT r.parent FROM forge_versions.reference r
     WHERE r.child = i.document AND r.parent > CASE i.version WHEN %(from)s THEN %(after_upsert)s ELSE 0 END
       AND r.parent_resource = %(resource)s OFFSET 0
 ) r
 WHERE i.version BETWEEN %(from)s AND %(max)s
 ORDER BY i.version, r.parent);

-- kept_events: What documents know themselves of when they changed, or what they refer to.
(SELECT greatest(k.content_version, k.identity_version, k.max_dependency) AS version, k.id AS document
 FROM forge_versions.document k
 WHERE k.resource = %(resource)s
   AND greatest(k.content_version, k.identity_version, k.max_dependency) BETWEEN %(from)s AND %(max)s
   AND (greatest(k.content_version, k.identity_version, k.max_dependency), k.id) > (%(from)s, %(after_upsert)s)
 ORDER BY greatest(k.content_version, k.identity_version, k.max_dependency), k.id);

-- access_events: What somebody was given access to.
(SELECT g.version, g.document FROM forge_versions.access g
 WHERE g.subject = %(subject)s AND g.resource = %(resource)s AND g.version BETWEEN %(from)s AND %(max)s
   AND (g.version, g.document) > (%(from)s, %(after_upsert)s)
 ORDER BY g.version, g.document);

-- deletions: What is no more, unless it is there again for somebody who lost the access to it.
(SELECT x.version, x.document, 1 AS kind, x.identity, NULL::jsonb AS old_identity, NULL::jsonb AS body,
        NULL::bigint AS content_version, NULL::bigint AS identity_version, NULL::json AS refers
 FROM forge_versions.deletion x
 WHERE x.resource = %(resource)s AND x.version BETWEEN %(from)s AND %(max)s
   AND (x.version, x.document) > (%(from)s, %(after_deletion)s)
   AND x.subject IS NOT DISTINCT FROM %(subject)s::text
   AND NOT EXISTS (SELECT FROM forge_versions.access a WHERE a.subject = %(subject)s AND a.document = x.document)
 ORDER BY x.version, x.document LIMIT %(limit)s);

-- keys: Which documents have another identity; somebody with access is told from then on.
(SELECT k.version, k.document, 0 AS kind, k.new_identity AS identity, k.old_identity, NULL::jsonb AS body,
        NULL::bigint AS content_version, NULL::bigint AS identity_version, NULL::json AS refers
 FROM forge_versions.key_change k
 WHERE k.resource = %(resource)s AND k.version BETWEEN %(from)s AND %(max)s
   AND (k.version, k.document) > (%(from)s, %(after_key)s)
   AND (%(subject)s::text IS NULL OR EXISTS (
       SELECT FROM forge_versions.access a
       WHERE a.subject = %(subject)s AND a.document = k.document AND a.version < k.version))
 ORDER BY k.version, k.document LIMIT %(limit)s);
