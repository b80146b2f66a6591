-- settings: Settings of a session of the source: the planner must never scan the log for a small window.
SELECT set_config('TimeZone', 'UTC', false),
       set_config('enable_seqscan', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('jit', 'off', false),
       set_config('work_mem', '64MB', false),
       set_config('statement_timeout', '0', false);

-- head: The present snapshot, the WAL position that must be flushed before it is durable, and the flushed position.
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text;

-- tracked: The tracked tables, each with its newest version, its key if that is one integer, and its size.
SELECT t.id, v.schema_name, v.table_name, v.id, v.key_columns,
       (SELECT c.type FROM jsonb_to_recordset(v.columns) c (name text, type text) WHERE ARRAY[c.name] = v.key_columns),
       greatest(coalesce((SELECT sum(greatest(c.reltuples, 0)) FROM pg_class c WHERE c.oid IN (SELECT forge.relations_of(r.table_oid))), 0), 0)::bigint,
       format('%%I.%%I', n.nspname, k.relname)
FROM forge.tracked_relation r
JOIN forge.tracked_table t ON t.id = r.id
JOIN pg_class k ON k.oid = r.table_oid
JOIN pg_namespace n ON n.oid = k.relnamespace
JOIN LATERAL (SELECT * FROM forge.table_version v WHERE v.tracked_table = t.id ORDER BY v.id DESC LIMIT 1) v ON true
WHERE %(tables)s::text[] IS NULL OR v.table_name = ANY (%(tables)s) OR v.schema_name || '.' || v.table_name = ANY (%(tables)s)
ORDER BY t.id;

-- times: The write time of the oldest retained change, and the present time.
SELECT min(l.at), clock_timestamp() FROM forge.forge_event_log l WHERE l.id >= %(first)s;

-- survey: The changes between two snapshots after a position, in ranges of 1024 positions: their number, the
-- transactions and days that they span, and whether a table was redefined or changed without a log entry per row.
SELECT coalesce(l.rank, l.id) >> 10, count(*), min(l.transaction_id)::text::bigint, max(l.transaction_id)::text::bigint,
       min(l.day)::text, max(l.day)::text, bool_or(l.op IN ('S', 'X'))
FROM forge.forge_event_log l
WHERE {after_snapshot}
  AND l.id >= %(first)s
  AND pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
  AND ({position}) > (%(place)s, %(id)s)
  AND {of_tables}
GROUP BY coalesce(l.rank, l.id) >> 10
ORDER BY coalesce(l.rank, l.id) >> 10;

-- plan: Like survey but exact, in `parts` pieces or in as many as needed for at most `step` changes each.
SELECT w.piece, count(*), max(ARRAY[w.place, w.id]), min(w.transaction_id)::text::bigint, max(w.transaction_id)::text::bigint,
       min(w.day)::text, max(w.day)::text, bool_or(w.op IN ('S', 'X'))
FROM (
    SELECT coalesce(l.rank, l.id) AS place, l.id, l.transaction_id, l.day, l.op,
           (row_number() OVER (ORDER BY {position}) - 1)
               / least(%(step)s, (count(*) OVER () + %(parts)s - 1) / %(parts)s) AS piece
    FROM forge.forge_event_log l
    WHERE {after_snapshot}
      AND l.id >= %(first)s
      AND pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
      AND ({position}) > (%(place)s, %(id)s)
      AND {of_tables}) w
GROUP BY w.piece
ORDER BY w.piece;

-- stale: The tables that must be read again after the changes between two snapshots and two positions: not tables that
-- are logged for the first time, whose rows are read when they are first seen.
SELECT DISTINCT v.tracked_table
FROM forge.forge_event_log l
JOIN forge.table_version v ON v.id = l.version
WHERE {after_snapshot}
  AND l.transaction_id BETWEEN %(lowest)s::text::xid8 AND %(highest)s::text::xid8
  AND l.id >= %(first)s
  AND pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
  AND ({position}) > (%(place)s, %(id)s)
  AND ({position}) <= (%(last_place)s, %(last_id)s)
  AND (%(tables)s::text[] IS NULL OR v.table_name = ANY (%(tables)s) OR v.schema_name || '.' || v.table_name = ANY (%(tables)s))
  AND l.op IN ('S', 'X')
  AND NOT (l.op = 'S' AND l.context IS NULL AND NOT EXISTS (
      SELECT FROM forge.table_version o WHERE o.tracked_table = v.tracked_table AND o.id < v.id));

-- waiting: The number of committed changes that a snapshot does not show, after a position, and the write time of the
-- oldest.
SELECT count(*), min(l.at)
FROM forge.forge_event_log l
WHERE {after_snapshot}
  AND l.id >= %(first)s
  AND ({position}) > (%(place)s, %(id)s)
  AND {of_tables};

-- changes: One piece of the log as the frame of changes.
SELECT %(generation)s || lpad(to_hex(coalesce(l.rank, l.id)), 16, '0')
           || CASE WHEN l.rank IS NULL OR l.rank = l.id THEN '' ELSE lpad(to_hex(l.id), 16, '0') END,
       %(log)s || ':' || l.id,
       CASE l.op WHEN 'I' THEN 'insert' WHEN 'U' THEN 'update' WHEN 'D' THEN 'delete' WHEN 'T' THEN 'truncate'
                 WHEN 'S' THEN 'schema' WHEN 'X' THEN 'invalidate' WHEN 'R' THEN 'redact' END,
       v.schema_name, v.table_name, l.version, l.row_id, l.before, l.after, array_to_json(l.hidden), l.at, l.transaction_id,
       l.user_id, l.function_name, l.trace_id, l.context, l.db_user, l.application_name
FROM forge.forge_event_log l
JOIN forge.table_version v ON v.id = l.version
WHERE {after_snapshot}
  AND l.transaction_id BETWEEN %(lowest)s::text::xid8 AND %(highest)s::text::xid8
  AND l.id >= %(first)s
  AND (l.day BETWEEN %(since)s::text::date AND %(upto)s::text::date OR l.day = 'infinity')
  AND pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
  AND ({position}) > (%(place)s, %(id)s)
  AND ({position}) <= (%(last_place)s, %(last_id)s)
  AND (%(tables)s::text[] IS NULL OR v.table_name = ANY (%(tables)s) OR v.schema_name || '.' || v.table_name = ANY (%(tables)s));

-- announced: The row that announces a snapshot of a table; its rows follow.
SELECT %(generation)s, %(name)s, 'snapshot', %(schema)s, %(table)s, %(version)s, NULL::text, NULL::json, NULL::json, NULL::json,
       %(at)s::timestamptz, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::json, NULL::text, NULL::text;

-- unknown_rows: The event that says that the rows of a share are unknown. It sorts after the announcement that another
-- share of the same table may have made.
SELECT %(generation)s || '!', %(name)s || '!' || %(share)s, 'invalidate', %(schema)s, %(table)s, %(version)s, NULL::text, NULL::json, NULL::json, NULL::json,
       %(at)s::timestamptz, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::json, NULL::text, NULL::text;

-- keyed_rows: The rows of a snapshot as the frame of changes, in a table with a key.
SELECT %(generation)s || '!', %(name)s || ':' || k.row_id, 'read', %(schema)s, %(table)s, %(version)s, k.row_id, NULL::json, k.image, NULL::json,
       %(at)s::timestamptz, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::json, NULL::text, NULL::text
FROM ({images}) k;

-- counted_rows: The rows of a snapshot as the frame of changes, in a table without a key.
SELECT %(generation)s || '!' || lpad(k.n::text, 12, '0'), %(name)s || ':' || k.n, 'read', %(schema)s, %(table)s, %(version)s,
       NULL::text, NULL::json, k.image, NULL::json,
       %(at)s::timestamptz, NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::json, NULL::text, NULL::text
FROM ({images}) k;
