-- reader_settings: Settings of a reader's session; the planner must never answer a poll by scanning the log.
SELECT set_config('TimeZone', 'UTC', false),
       set_config('enable_seqscan', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('jit', 'off', false),
       set_config('synchronous_commit', 'local', false),
       set_config('statement_timeout', '0', false),
       set_config('idle_session_timeout', '0', false);

-- identity: The identity of this log; a new one is recorded after a failover or restore.
SELECT i.uuid::text, i.system_identifier, i.timeline, i.first_id FROM forge.current_identity() i;

-- started: When the server started, and when it last recovered from a crash: that resets the statistics.
SELECT pg_postmaster_start_time(), b.stats_reset FROM pg_stat_bgwriter b;

-- head: The current snapshot, the WAL position that must be flushed for it to be safe, and the flushed position.
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text;

-- trimmed: Whether rows are gone that an older snapshot did not show.
SELECT forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[], %(first)s);

-- trimmed_behind: As trimmed; and whether rows behind a position may have been trimmed since the batch began. An unread
-- row has an id above the position's place, which is below its id if it has a rank.
SELECT forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[], %(first)s),
       EXISTS (SELECT FROM forge.trimmed t
               WHERE t.last_id >= %(first)s AND t.last_id > %(place)s
                 AND (t.last_id >= %(id)s OR pg_snapshot_xmax(t.snapshot) >= pg_snapshot_xmax(%(until)s::text::pg_snapshot)));

-- poll: A head, then the rows visible now but not in an older snapshot, in order; one statement, so one snapshot. A row
-- has no images if the images of the rows before it already fill the batch.
SELECT NULL::bigint, NULL::bigint, NULL::xid8, NULL::timestamptz, NULL::integer, NULL::"char", NULL::json, NULL::json,
       NULL::text[], NULL::text, NULL::text, NULL::text, NULL::json, NULL::text, NULL::text,
       pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text,
       forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[], %(first)s),
       (clock_timestamp() AT TIME ZONE 'UTC')::date, true
UNION ALL (
    SELECT p.id, p.place, p.transaction_id, p.at, p.version, p.op,
           CASE WHEN p.fits THEN p.before END, CASE WHEN p.fits THEN p.after END,
           p.hidden, p.user_id, p.function_name, p.trace_id, p.context, p.db_user, p.application_name,
           NULL, NULL, NULL, NULL, NULL, p.fits
    FROM (
        SELECT l.*, coalesce(sum(coalesce(octet_length(l.before::text) / 1024, 0) + coalesce(octet_length(l.after::text) / 1024, 0))
                             OVER (ORDER BY l.place, l.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) < %(kilobytes)s AS fits
        FROM (
            SELECT l.id, coalesce(l.rank, l.id) AS place, l.transaction_id, l.at, l.version, l.op, l.before, l.after,
                   l.hidden, l.user_id, l.function_name, l.trace_id, l.context, l.db_user, l.application_name
            FROM forge.forge_event_log l
            WHERE {after_snapshot}
              AND l.id >= %(first)s
              AND (l.day BETWEEN %(since)s::text::date AND %(upto)s::text::date OR l.day = 'infinity')
              AND {of_tables}
            ORDER BY {position}
            LIMIT %(limit)s) l) p
    ORDER BY p.place, p.id);

-- widest: The size in kilobytes of the largest row that the query rest finds.
SELECT coalesce(max(coalesce(octet_length(l.before::text), 0) / 1024 + coalesce(octet_length(l.after::text), 0) / 1024), 0)
FROM forge.forge_event_log l
WHERE {after_snapshot}
  AND l.id >= %(first)s
  AND {of_tables}
  AND pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
  AND ({position}) > (%(place)s, %(id)s);

-- rest: The rows after a position between two snapshots, held by the server and fetched page by page.
DECLARE forge_batch NO SCROLL CURSOR WITH HOLD FOR
SELECT l.id, coalesce(l.rank, l.id), l.transaction_id, l.at, l.version, l.op, l.before, l.after,
       l.hidden, l.user_id, l.function_name, l.trace_id, l.context, l.db_user, l.application_name
FROM forge.forge_event_log l
WHERE {after_snapshot}
  AND l.id >= %(first)s
  AND {of_tables}
  AND pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
  AND ({position}) > (%(place)s, %(id)s)
ORDER BY {position};

-- versions: Definitions of tables while log rows were written.
SELECT v.id, v.schema_name, v.table_name, v.columns, v.key_columns FROM forge.table_version v WHERE v.id = ANY (%(ids)s);

-- flushed: Whether the WAL is on disk up to here.
SELECT pg_current_wal_flush_lsn() >= %(lsn)s::text::pg_lsn;

-- flush: Writes a commit of Forge's own, which flushes everything before it.
SELECT pg_logical_emit_message(true, 'forge', '');

-- writers: Whether a transaction in flight has written to the log; prepared ones count.
SELECT EXISTS (
    SELECT FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.relation = 'forge.forge_event_log'::regclass
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));

-- close_view: Default privileges may have opened the view of the log: initially only its owner may read it.
DO $body$
DECLARE
    reader name;
BEGIN
    FOR reader IN SELECT r.rolname FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
                  WHERE c.oid = 'public.forge_events'::regclass AND a.grantee <> c.relowner LOOP
        EXECUTE format('REVOKE ALL ON public.forge_events FROM %I', reader);
    END LOOP;
END
$body$;

-- unread_in: Whether a partition of the log has a row that a snapshot does not see.
SELECT EXISTS (SELECT FROM {partition} l WHERE {after_snapshot} AND {of_this_log});

-- oldest_unread: Age of the first row that a snapshot does not see.
SELECT clock_timestamp() - l.at FROM forge.forge_event_log l WHERE {after_snapshot} AND {of_this_log} ORDER BY l.transaction_id LIMIT 1;
