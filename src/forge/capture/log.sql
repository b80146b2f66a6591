-- tracked: The tables that are tracked now, each with its newest version, and how its rows, keys and images are written.
SELECT t.id, v.schema_name, v.table_name, v.columns, v.key_columns, format('%%I.%%I', n.nspname, k.relname),
       forge.row_id_expression(r.table_oid, 'forge_now_59c1'), forge.image_source(r.table_oid, t, 'forge_now_59c1', 'forge_now_59c1', false),
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
JOIN LATERAL (SELECT * FROM forge.table_version v WHERE v.tracked_table = t.id ORDER BY v.id DESC LIMIT 1) v ON true
WHERE t.id >= %(first_table)s
ORDER BY t.id;

-- columns: The columns that tracked tables have, or had.
SELECT w.schema_name, w.table_name, array_agg(w.name ORDER BY w.version DESC, w.n)
FROM (SELECT v.schema_name, v.table_name, c.value ->> 'name' AS name, max(v.id) AS version, min(c.n) AS n
      FROM forge.table_version v CROSS JOIN LATERAL jsonb_array_elements(v.columns) WITH ORDINALITY c (value, n)
      GROUP BY 1, 2, 3) w
GROUP BY w.schema_name, w.table_name ORDER BY 1, 2;

-- whole: What became of a table as a whole after a snapshot: T truncated, S defined anew, X changed unseen. That tracking began is none.
SELECT DISTINCT l.op::text FROM forge.forge_event_log l
WHERE l.row_id IS NULL AND l.op IN ('T', 'S', 'X') AND l.version = ANY (%(versions)s) AND l.id >= %(first)s
  AND NOT (l.op = 'S' AND l.context IS NULL AND l.version <= ALL (%(versions)s))
  AND (l.transaction_id >= %(xmax)s::text::xid8 OR l.transaction_id = ANY (%(running)s::text[]::xid8[]));

-- keyed: A table with a key as it was in a snapshot, in the order of its key from a row on: what nobody changed since, and
-- what was there before the first change of each other row. The words in braces are put there by forge.capture.log.
WITH changed AS MATERIALIZED (
    SELECT DISTINCT ON (l.row_id) l.row_id, l.op, l.before, l.after
    FROM forge.forge_event_log l
    WHERE l.op IN ('I', 'U', 'D') AND l.id >= %(first)s AND l.version = ANY (%(versions)s)
      AND (l.transaction_id >= %(xmax)s::text::xid8 OR l.transaction_id = ANY (%(running)s::text[]::xid8[]))
    ORDER BY l.row_id, coalesce(l.rank, l.id), l.id
), rows AS (
    (SELECT {row_id} AS row_id, row_to_json(forge_now_59c1_image)::text AS image, {stored}
     FROM {relation} forge_now_59c1{source}
     WHERE {row_id} NOT IN (SELECT c.row_id FROM changed c) AND {stored_after}
     ORDER BY {order})
    UNION ALL
    (SELECT l.row_id, {before}, {logged} FROM changed l
     WHERE l.op <> 'I' AND l.before IS NOT NULL AND {logged_after}
     ORDER BY {order})
)
SELECT row_id, image FROM rows ORDER BY {order};

-- fresh: As keyed, for the snapshot of this very transaction, from the first row on: nobody changed anything since.
SELECT {row_id} AS row_id, row_to_json(forge_now_59c1_image)::text AS image
FROM {relation} forge_now_59c1{source}
ORDER BY {order_stored};

-- counted: A table without a key as it was in a snapshot: the rows now, less those that came, and those that went, equal ones counted.
WITH counted AS (
    SELECT w.image, sum(w.number) AS number
    FROM (
        SELECT row_to_json(forge_now_59c1_image)::text AS image, 1 AS number FROM {relation} forge_now_59c1{source}
        UNION ALL
        SELECT w.image, w.number
        FROM forge.forge_event_log l
        CROSS JOIN LATERAL (VALUES (l.after::text, -1), (CASE WHEN l.before IS NOT NULL THEN {before} END, 1)) w (image, number)
        WHERE w.image IS NOT NULL AND l.op IN ('I', 'U', 'D') AND l.id >= %(first)s AND l.version = ANY (%(versions)s)
          AND (l.transaction_id >= %(xmax)s::text::xid8 OR l.transaction_id = ANY (%(running)s::text[]::xid8[]))) w
    GROUP BY w.image
), numbered AS (
    SELECT row_number() OVER (ORDER BY c.image COLLATE "C") AS n, c.image
    FROM counted c CROSS JOIN LATERAL generate_series(1, c.number)
)
SELECT w.n::text, w.image FROM numbered w WHERE w.n > %(last)s::text::bigint ORDER BY w.n;

-- before: The whole row before a change, printed as row_to_json prints a row.
CASE WHEN l.after IS NULL THEN l.before::text ELSE (
    SELECT '{' || string_agg(to_json(a.key)::text || ':' || coalesce(b.value, a.value)::text, ',' ORDER BY a.n) || '}'
    FROM json_each(l.after) WITH ORDINALITY a (key, value, n)
    LEFT JOIN json_each(l.before) b ON b.key = a.key) END;

-- taken: The snapshot of this transaction, how far the WAL must be flushed for it to be safe to keep, and the time.
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, clock_timestamp();

-- facts: What a status says of a log.
SELECT (SELECT coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint FROM pg_inherits i
        WHERE i.inhparent = 'forge.forge_event_log'::regclass),
       (SELECT min(l.at) FROM (SELECT l.at FROM forge.forge_event_log l ORDER BY l.transaction_id LIMIT 1) l),
       ARRAY(SELECT t.schema_name || '.' || t.table_name FROM forge.tracked_table t
             WHERE t.disabled_at IS NULL ORDER BY 1);
