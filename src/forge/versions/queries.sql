-- standing: The settings of the database, and a resource's number, whether it is by access, and its epoch.
SELECT s.oldest, s.strategy, s.token_key, r.id, r.by_access, r.epoch
FROM forge_versions.setting s
LEFT JOIN forge_versions.resource r ON r.project = %(project)s AND r.name = %(name)s AND r.version = %(version)s;

-- settings: Planner settings of a page: sorted inputs are merged and read until the page is full, never sorted whole.
SELECT set_config(w.name, w.value, true)
FROM (VALUES ('enable_sort', 'off'), ('enable_hashagg', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
             ('enable_bitmapscan', 'off'), ('enable_material', 'off'), ('enable_seqscan', 'off'),
             ('enable_incremental_sort', 'on'), ('enable_indexscan', 'on'), ('enable_indexonlyscan', 'on'),
             ('enable_nestloop', 'on'), ('max_parallel_workers_per_gather', '0'), ('jit', 'off'),
             ('plan_cache_mode', 'force_generic_plan')) w (name, value);

-- fitting: The rows of a page that fit: those with at most `bytes` before them. Rows that are not shown have size zero.
-- The size of a row is that of its texts plus an allowance for the names around them; references count three times,
-- because their resources are written by name.
SELECT f.oldest, f.strategy, f.epoch, f.version, f.document, f.kind, f.identity, f.old_identity, f.body,
       f.content_version, f.identity_version, f.refers, f.shown, f.last, f.size
FROM (SELECT t.*, coalesce(sum(t.size) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
      FROM (SELECT x.*, CASE WHEN x.shown THEN 200 + octet_length(x.identity) + coalesce(octet_length(x.old_identity), 0)
                + coalesce(octet_length(x.body), 0) + 3 * coalesce(octet_length(x.refers), 0) ELSE 0 END AS size
            FROM (SELECT o.oldest, o.strategy, o.epoch, o.version, o.document, o.kind, o.identity::text,
                         o.old_identity::text, CASE WHEN o.shown THEN o.body::text END AS body, o.content_version,
                         o.identity_version, CASE WHEN o.shown THEN o.refers::text END AS refers, o.shown, o.last
                  FROM ({rows}) o OFFSET 0) x OFFSET 0) t) f
WHERE f.before <= %(bytes)s ORDER BY {order};

-- page: Up to `limit` items of a window in the order of version, document and kind; no items if the settings differ
-- from the caller's. There is always a row, which has the settings. Each kind reads at most `candidates`; the last of
-- these is returned even if it is not `shown`: the next page continues after it.
SELECT s.oldest, s.strategy, r.epoch, p.version, p.document, p.kind, p.identity, p.old_identity, p.body,
       p.content_version, p.identity_version, p.refers, p.shown, p.last
FROM forge_versions.setting s JOIN forge_versions.resource r ON r.id = %(resource)s
LEFT JOIN LATERAL (
    SELECT f.* FROM ({found}) f
    WHERE s.strategy = %(strategy)s AND r.epoch = %(epoch)s AND s.oldest <= %(first)s
    ORDER BY f.version, f.document, f.kind LIMIT %(limit)s
) p ON true
ORDER BY p.version, p.document, p.kind;

-- everything: Up to `limit` documents of a resource, in the order of ids, that have not changed after `max`. The
-- references of a document that itself changed later are not read.
SELECT s.oldest, s.strategy, r.epoch, p.version, p.document, 2 AS kind, p.identity, NULL AS old_identity, p.body,
       p.content_version, p.identity_version, p.refers, p.shown, p.last
FROM forge_versions.setting s JOIN forge_versions.resource r ON r.id = %(resource)s
LEFT JOIN LATERAL (
    SELECT greatest(d.own, {others}) AS version, d.id AS document, d.identity, d.body, d.content_version,
           d.identity_version, o.refers, greatest(d.own, {others}) <= %(max)s AS shown, d.n = %(candidates)s AS last
    FROM (SELECT a.*, row_number() OVER (ORDER BY a.id) AS n FROM ({all}) a ORDER BY a.id LIMIT %(candidates)s) d
    CROSS JOIN LATERAL ({refers} AND d.own <= %(max)s OFFSET 0) o
    WHERE s.strategy = %(strategy)s AND r.epoch = %(epoch)s AND (greatest(d.own, {others}) <= %(max)s OR d.n = %(candidates)s)
    ORDER BY d.id LIMIT %(limit)s
) p ON true
ORDER BY p.document;

-- all: The documents of a resource, with the version of each one's own last change.
SELECT w.id, w.identity, w.body, w.content_version, w.identity_version, w.max_dependency,
       greatest(w.content_version, w.identity_version, {kept}) AS own
FROM forge_versions.document w
WHERE w.resource = %(resource)s AND w.id > %(after)s ORDER BY w.id;

-- all_granted: The documents that a subject has access to; the access counts as a change of each.
SELECT g.document AS id, w.identity, w.body, w.content_version, w.identity_version, w.max_dependency,
       greatest(w.content_version, w.identity_version, {kept}, g.version) AS own
FROM forge_versions.access g
CROSS JOIN LATERAL (SELECT * FROM forge_versions.document w WHERE w.id = g.document OFFSET 0) w
WHERE g.subject = %(subject)s AND g.resource = %(resource)s AND g.document > %(after)s ORDER BY g.document;

-- one: One document of a resource, as in `all`.
SELECT w.id, w.identity, w.body, w.content_version, w.identity_version, w.max_dependency,
       greatest(w.content_version, w.identity_version, {kept}) AS own
FROM forge_versions.document w
WHERE w.id = e.document AND w.resource = %(resource)s;

-- one_granted: One document, where a subject has access to it.
SELECT w.id, w.identity, w.body, w.content_version, w.identity_version, w.max_dependency,
       greatest(w.content_version, w.identity_version, {kept}, g.version) AS own
FROM (SELECT g.version FROM forge_versions.access g
      WHERE g.subject = %(subject)s AND g.document = e.document OFFSET 0) g
CROSS JOIN LATERAL (
    SELECT * FROM forge_versions.document w WHERE w.id = e.document AND w.resource = %(resource)s OFFSET 0
) w;

-- refers: The references of a document, and the newest identity version among them.
SELECT max(c.identity_version) AS version,
       json_agg(json_build_array(r.name, c.id, c.resource, c.identity, r.in_identity)) AS refers
FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
WHERE r.parent = d.id;

-- kinds: The names of some resources.
SELECT k.id, k.project, k.name, k.version FROM forge_versions.resource k WHERE k.id = ANY (%(numbers)s::integer[]);

-- changed_by: The number of identities that a stamp changed, up to a limit.
SELECT count(*) FROM (
    SELECT FROM forge_versions.identity_change i WHERE i.version = %(version)s LIMIT %(enough)s
) i;

-- upserts: The documents whose derived version is that of an event in the window. The references of a document that
-- itself changed later are not read. An event of document 0 marks the events of its version as incomplete.
(SELECT e.version, e.document, 2 AS kind, d.identity, NULL::jsonb AS old_identity, d.body, d.content_version,
        d.identity_version, o.refers, coalesce(greatest(d.own, {others}) = e.version, false) AS shown, e.last
 FROM (SELECT v.version, v.document, bool_or(v.n = %(candidates)s OR v.document = 0) AS last
       FROM (SELECT u.version, u.document, row_number() OVER (ORDER BY u.version, u.document) AS n
             FROM ({events}) u ORDER BY u.version, u.document LIMIT %(candidates)s) v
       GROUP BY v.version, v.document) e
 LEFT JOIN LATERAL (SELECT * FROM ({one}) one WHERE one.own <= e.version OFFSET 0) d ON true
 CROSS JOIN LATERAL ({refers} OFFSET 0) o
 WHERE greatest(d.own, {others}) = e.version OR e.last
 ORDER BY e.version, e.document LIMIT %(limit)s);

-- own_events: Changes of documents themselves.
(SELECT c.version, c.document FROM forge_versions.document_change c
 WHERE c.resource = %(resource)s AND c.version BETWEEN %(from)s AND %(max)s
   AND (c.version, c.document) > (%(from)s, %(after_upsert)s)
 ORDER BY c.version, c.document);

-- other_events: The last change of each referenced identity, once per referring document. They come identity by
-- identity, so all events of a version are needed before the first can be returned: where there are too many, the list
-- is cut.
(SELECT p.version, CASE p.n WHEN %(candidates)s THEN 0 ELSE p.parent END AS document
 FROM (SELECT i.version, r.parent, row_number() OVER (ORDER BY i.version, i.document) AS n
       FROM forge_versions.identity_change i
       LEFT JOIN LATERAL (
           SELECT o.id FROM forge_versions.document o WHERE o.id = i.document AND o.identity_version = i.version OFFSET 0
       ) o ON true
       LEFT JOIN LATERAL (
           SELECT r.parent FROM forge_versions.reference r
           WHERE r.child = o.id AND r.parent > CASE i.version WHEN %(from)s THEN %(after_upsert)s ELSE 0 END
             {of_resource} OFFSET 0
       ) r ON true
       WHERE i.version BETWEEN %(from)s AND %(max)s
       ORDER BY i.version, i.document LIMIT %(candidates)s) p
 WHERE p.parent IS NOT NULL OR p.n = %(candidates)s
 ORDER BY p.version, CASE p.n WHEN %(candidates)s THEN 0 ELSE p.parent END);

-- other_events_of_few: The same for one version with few identities and many referrers: in the order of the referrers.
(SELECT i.version, r.parent AS document FROM forge_versions.identity_change i
 CROSS JOIN LATERAL (
     SELECT FROM forge_versions.document o WHERE o.id = i.document AND o.identity_version = i.version OFFSET 0
 ) o
 CROSS JOIN LATERAL (
     SELECT r.parent FROM forge_versions.reference r WHERE r.child = i.document AND r.parent > %(after_upsert)s {of_resource}
     ORDER BY r.parent LIMIT %(candidates)s
 ) r
 WHERE i.version BETWEEN %(from)s AND %(max)s
 ORDER BY i.version, r.parent);

-- of_resource: Restrict to this resource's documents, by the parent's resource on each edge.
AND r.parent_resource = %(resource)s;

-- any_events: Possible events of one version with many identities: each document in turn.
(SELECT %(from)s::bigint AS version, k.id AS document FROM forge_versions.document k
 WHERE k.resource = %(resource)s AND k.id > %(after_upsert)s ORDER BY k.id LIMIT %(candidates)s);

-- any_events_granted: The same for the documents that a subject has access to.
(SELECT %(from)s::bigint AS version, g.document FROM forge_versions.access g
 WHERE g.subject = %(subject)s AND g.resource = %(resource)s AND g.document > %(after_upsert)s
 ORDER BY g.document LIMIT %(candidates)s);

-- kept_events: Changes of documents and of their references, as stored on the documents themselves.
(SELECT greatest(k.content_version, k.identity_version, k.max_dependency) AS version, k.id AS document
 FROM forge_versions.document k
 WHERE k.resource = %(resource)s
   AND greatest(k.content_version, k.identity_version, k.max_dependency) BETWEEN %(from)s AND %(max)s
   AND (greatest(k.content_version, k.identity_version, k.max_dependency), k.id) > (%(from)s, %(after_upsert)s)
 ORDER BY greatest(k.content_version, k.identity_version, k.max_dependency), k.id);

-- access_events: Grants of access to a subject.
(SELECT g.version, g.document FROM forge_versions.access g
 WHERE g.subject = %(subject)s AND g.resource = %(resource)s AND g.version BETWEEN %(from)s AND %(max)s
   AND (g.version, g.document) > (%(from)s, %(after_upsert)s)
 ORDER BY g.version, g.document);

-- deletions: Deleted documents.
(SELECT x.version, x.document, 1 AS kind, x.identity, NULL::jsonb AS old_identity, NULL::jsonb AS body,
        NULL::bigint AS content_version, NULL::bigint AS identity_version, NULL::json AS refers, true AS shown,
        false AS last
 FROM forge_versions.deletion x
 WHERE x.resource = %(resource)s AND x.subject IS NULL AND x.version BETWEEN %(from)s AND %(max)s
   AND (x.version, x.document) > (%(from)s, %(after_deletion)s)
 ORDER BY x.version, x.document LIMIT %(limit)s);

-- deletions_granted: Documents to which a subject lost access, unless it has access again.
(SELECT x.version, x.document, 1 AS kind, x.identity, NULL::jsonb AS old_identity, NULL::jsonb AS body,
        NULL::bigint AS content_version, NULL::bigint AS identity_version, NULL::json AS refers, a.shown,
        x.n = %(candidates)s AS last
 FROM (SELECT x.version, x.document, x.identity, row_number() OVER (ORDER BY x.version, x.document) AS n
       FROM forge_versions.deletion x
       WHERE x.resource = %(resource)s AND x.subject = %(subject)s AND x.version BETWEEN %(from)s AND %(max)s
         AND (x.version, x.document) > (%(from)s, %(after_deletion)s)
       ORDER BY x.version, x.document LIMIT %(candidates)s) x
 CROSS JOIN LATERAL (SELECT NOT EXISTS (
     SELECT FROM forge_versions.access a WHERE a.subject = %(subject)s AND a.document = x.document) OFFSET 0) a (shown)
 WHERE a.shown OR x.n = %(candidates)s
 ORDER BY x.version, x.document LIMIT %(limit)s);

-- keys: Changes of identities.
(SELECT k.version, k.document, 0 AS kind, k.new_identity AS identity, k.old_identity, NULL::jsonb AS body,
        NULL::bigint AS content_version, NULL::bigint AS identity_version, NULL::json AS refers, true AS shown,
        false AS last
 FROM forge_versions.key_change k
 WHERE k.resource = %(resource)s AND k.version BETWEEN %(from)s AND %(max)s
   AND (k.version, k.document) > (%(from)s, %(after_key)s)
 ORDER BY k.version, k.document LIMIT %(limit)s);

-- keys_granted: The same for documents that the subject had access to at that version.
(SELECT k.version, k.document, 0 AS kind, k.new_identity AS identity, k.old_identity, NULL::jsonb AS body,
        NULL::bigint AS content_version, NULL::bigint AS identity_version, NULL::json AS refers, a.shown,
        k.n = %(candidates)s AS last
 FROM (SELECT k.version, k.document, k.new_identity, k.old_identity,
              row_number() OVER (ORDER BY k.version, k.document) AS n
       FROM forge_versions.key_change k
       WHERE k.resource = %(resource)s AND k.version BETWEEN %(from)s AND %(max)s
         AND (k.version, k.document) > (%(from)s, %(after_key)s)
       ORDER BY k.version, k.document LIMIT %(candidates)s) k
 CROSS JOIN LATERAL (SELECT EXISTS (
     SELECT FROM forge_versions.access a
     WHERE a.subject = %(subject)s AND a.document = k.document AND a.version < k.version) OFFSET 0) a (shown)
 WHERE a.shown OR k.n = %(candidates)s
 ORDER BY k.version, k.document LIMIT %(limit)s);
