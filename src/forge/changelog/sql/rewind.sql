-- tables: The tracked tables in their current form, from a number on or only one, and the SQL of their rows, keys and
-- images. The alias is a name that no column has: row_to_json(name) would mean the column.
SELECT t.id, v.id, v.schema_name, v.table_name, v.columns, v.key_columns, format('%%I.%%I', n.nspname, k.relname), a.alias,
       forge.row_id_expression(r.table_oid, a.alias), forge.image_source(r.table_oid, t, a.alias, a.alias, false),
       ARRAY(SELECT o.id FROM forge.table_version o WHERE o.tracked_table = t.id),
       ARRAY(SELECT format_type(b.oid, NULL) FROM unnest(v.key_columns) WITH ORDINALITY c (name, n)
             JOIN pg_attribute a ON a.attrelid = r.table_oid AND a.attname = c.name
             JOIN pg_type b ON b.oid = forge.base_type(a.atttypid) ORDER BY c.n),
       ARRAY(SELECT coalesce((SELECT format(' COLLATE %%I.%%I', s.nspname, l.collname) FROM pg_collation l
                              JOIN pg_namespace s ON s.oid = l.collnamespace WHERE l.oid = a.attcollation), '')
             FROM unnest(v.key_columns) WITH ORDINALITY c (name, n)
             JOIN pg_attribute a ON a.attrelid = r.table_oid AND a.attname = c.name ORDER BY c.n)
FROM forge.tracked_relation r
JOIN forge.tracked_table t ON t.id = r.id
JOIN pg_class k ON k.oid = r.table_oid
JOIN pg_namespace n ON n.oid = k.relnamespace
CROSS JOIN LATERAL (SELECT 'forge_now_' || left(md5(string_agg(a.attname, ',' ORDER BY a.attnum)), 12) AS alias
                    FROM pg_attribute a WHERE a.attrelid = r.table_oid) a
CROSS JOIN LATERAL (SELECT * FROM forge.table_version v WHERE v.tracked_table = t.id ORDER BY v.id DESC LIMIT 1) v
WHERE t.id >= %(first_table)s AND (%(table)s::integer IS NULL OR t.id = %(table)s)
ORDER BY t.id;

-- whole: Changes of a table as a whole after a snapshot: T truncated, S redefined, X changed without being logged. The
-- start of tracking is not such a change.
SELECT DISTINCT l.op::text FROM forge.forge_event_log l
WHERE l.row_id IS NULL AND l.op IN ('T', 'S', 'X') AND l.version = ANY (%(versions)s) AND l.id >= %(first)s
  AND NOT (l.op = 'S' AND l.context IS NULL AND l.version <= ALL (%(versions)s)) AND {after_snapshot};

-- before: The whole row before a change `l`, in the form of row_to_json. `after` has all columns, so it names all
-- redacted ones.
CASE WHEN l.after IS NULL THEN l.before::text ELSE (
    SELECT '{' || string_agg(to_json(a.key)::text || ':' || coalesce(b.value, a.value)::text, ',' ORDER BY a.n) || '}'
    FROM json_each(l.after) WITH ORDINALITY a (key, value, n)
    LEFT JOIN json_each(l.before) b ON b.key = a.key AND b.key <> '$redacted') END;

-- first: The first change of each row after a snapshot, within bounds.
SELECT DISTINCT ON (l.row_id) l.row_id, l.op, l.version, l.before, l.after
FROM forge.forge_event_log l
WHERE l.op IN ('I', 'U', 'D') AND l.id >= %(first)s AND l.version = ANY (%(versions)s) AND {after_snapshot} AND {bounds}
ORDER BY l.row_id, coalesce(l.rank, l.id), l.id;

-- keyed: The rows of a table with a key as of a snapshot: unchanged rows from the table, and for every other row its
-- image before its first change. `order` keeps the order of an index: rows come sorted without a sort of the whole
-- table.
WITH changed AS MATERIALIZED ({first})
(SELECT {row_id} AS row_id, row_to_json({alias}_image) AS image{stored_keys}
 FROM {relation} {alias}{source}
 WHERE {unchanged} AND {stored_bounds} {order})
UNION ALL
(SELECT l.row_id, ({before})::json{logged_keys} FROM changed l WHERE l.op <> 'I' AND l.before IS NOT NULL {order});

-- counted: The rows of a table without a key as of a snapshot: the current rows, minus added rows, plus removed rows.
-- Equal rows are counted and numbered.
WITH counted AS (
    SELECT w.image, sum(w.number) AS number
    FROM (
        SELECT row_to_json({alias}_image)::text AS image, 1 AS number FROM {relation} {alias}{source}
        UNION ALL
        SELECT w.image, w.number
        FROM forge.forge_event_log l
        CROSS JOIN LATERAL (VALUES (l.after::text, -1), (CASE WHEN l.before IS NOT NULL THEN {before} END, 1)) w (image, number)
        WHERE w.image IS NOT NULL AND l.op IN ('I', 'U', 'D') AND l.id >= %(first)s AND l.version = ANY (%(versions)s) AND {after_snapshot}) w
    GROUP BY w.image
)
SELECT NULL::text AS row_id, c.image::json AS image, row_number() OVER (ORDER BY c.image COLLATE "C") AS n
FROM counted c CROSS JOIN LATERAL generate_series(1, c.number);

-- now: All rows of a table.
SELECT {row_id} AS row_id, row_to_json({alias}_image)::text AS image FROM {relation} {alias}{source} {order};
