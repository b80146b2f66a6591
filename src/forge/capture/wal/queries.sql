-- server: Facts that a reader of the WAL needs about a server before it starts.
SELECT current_setting('server_version_num')::int AS version, current_setting('wal_level') AS wal_level,
       pg_is_in_recovery() AS standby, d.oid::bigint AS database, d.datname::text AS name,
       r.rolname::text AS role, (SELECT c.system_identifier::text FROM pg_control_system() c) AS system,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer END AS timeline,
       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'forge' AND c.relname = 'forge_event_log'
                 AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')) AS logged
FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user;

-- types: The form of each type (see forge.capture.wal.texts), and its name.
WITH RECURSIVE asked AS (
    SELECT a.n, a.oid, a.modifier FROM unnest(%(types)s::oid[], %(modifiers)s::int[]) WITH ORDINALITY a (oid, modifier, n)
), step (n, oid, base) AS (
    SELECT a.n, t.oid, t.typbasetype FROM asked a JOIN pg_type t ON t.oid = a.oid
    UNION ALL
    SELECT s.n, t.oid, t.typbasetype FROM step s JOIN pg_type t ON t.oid = s.base
), element_step (n, oid, base) AS (
    SELECT s.n, t.oid, t.typbasetype FROM step s JOIN pg_type b ON b.oid = s.oid AND b.typcategory = 'A' JOIN pg_type t ON t.oid = b.typelem
    WHERE s.base = 0
    UNION ALL
    SELECT s.n, t.oid, t.typbasetype FROM element_step s JOIN pg_type t ON t.oid = s.base
), based AS (
    SELECT a.n, format_type(a.oid, a.modifier) AS name, b.typname AS base, b.typnamespace = 'pg_catalog'::regnamespace AS builtin,
           e.typname AS element, e.typtype AS element_kind, e.typdelim AS delimiter, e.typnamespace = 'pg_catalog'::regnamespace AS element_builtin
    FROM asked a
    LEFT JOIN step s ON s.n = a.n AND s.base = 0 LEFT JOIN pg_type b ON b.oid = s.oid
    LEFT JOIN element_step x ON x.n = a.n AND x.base = 0 LEFT JOIN pg_type e ON e.oid = x.oid
), formed AS (
    SELECT n, name, CASE WHEN element IS NULL THEN builtin ELSE element_builtin END AS builtin, coalesce(element, base) AS word, element, element_kind,
           delimiter
    FROM based
)
SELECT name, CASE
    WHEN builtin IS NOT TRUE OR element IS NOT NULL AND (element IN ('json', 'jsonb', 'record') OR element_kind IN ('c', 'r', 'm')) THEN 'text'
    WHEN delimiter = ';' THEN 'box[]'
    ELSE CASE
        WHEN word = 'bool' THEN 'bool'
        WHEN word IN ('int2', 'int4', 'int8') THEN 'int'
        WHEN word IN ('float4', 'float8') THEN 'float'
        WHEN word IN ('numeric', 'bytea', 'jsonb', 'timestamp', 'timestamptz') THEN word::text
        ELSE 'text' END || CASE WHEN element IS NULL THEN '' ELSE '[]' END
    END
FROM formed ORDER BY n;

-- relation: The primary key of a table in its order, all its columns, the generated ones, and its replica identity.
SELECT coalesce((SELECT array_agg(a.attname::text ORDER BY k.n)
                 FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY k (attnum, n)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                 WHERE i.indrelid = c.oid AND i.indisprimary AND k.n <= i.indnkeyatts), '{}'),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''),
       c.relreplident::text
FROM pg_class c WHERE c.oid = %(oid)s::oid;

-- published: The current tables of a publication: their relation messages as it sends them.
SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relreplident::text, p.attnames::text[],
       array_agg(a.attname::text ORDER BY a.attnum), array_agg(a.atttypid::bigint ORDER BY a.attnum), array_agg(a.atttypmod ORDER BY a.attnum),
       c.relpages, c.relkind::text,
       ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::smallint[])
             WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary END
               AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1]))
FROM (SELECT p.schemaname, p.tablename, p.attnames, p.rowfilter FROM pg_publication_tables p WHERE p.pubname = %(publication)s) p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY (p.attnames)
WHERE n.nspname <> 'forge'
GROUP BY c.oid, n.nspname, c.relname, c.relreplident, p.attnames::text[], c.relpages, c.relkind
ORDER BY c.oid;

-- shape: A table by its name: its relation message as pgoutput would send it.
SELECT c.oid::bigint, c.relreplident::text, array_agg(a.attname::text ORDER BY a.attnum), array_agg(a.atttypid::bigint ORDER BY a.attnum),
       array_agg(a.atttypmod ORDER BY a.attnum),
       ARRAY(SELECT x.attname::text FROM pg_index i JOIN pg_attribute x ON x.attrelid = i.indrelid
             WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary END
               AND x.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1]))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %(schema)s AND c.relname = %(table)s GROUP BY c.oid, c.relreplident;

-- row_filter: The row filter of a publication for a table.
SELECT p.rowfilter FROM pg_publication_tables p
WHERE p.pubname = %(publication)s AND p.schemaname = %(schema)s AND p.tablename = %(table)s;

-- slot: A replication slot; NULLs if the server is too old to have the value.
SELECT s.slot_name::text AS name, s.plugin::text AS plugin, s.slot_type, s.database::text AS database, s.temporary, s.active, s.active_pid,
       s.wal_status, s.safe_wal_size, s.confirmed_flush_lsn::text AS confirmed, s.restart_lsn::text AS restart,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), coalesce(s.restart_lsn, s.confirmed_flush_lsn))::bigint AS retained,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.confirmed_flush_lsn)::bigint AS lag,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidated, s.two_phase, coalesce((to_jsonb(s) ->> 'failover')::boolean, false) AS failover
FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND (%(name)s::text IS NULL OR s.slot_name = %(name)s)
ORDER BY s.slot_name;

-- decoding: Whether a walsender is working: it waits for nothing, or for the disk or a lock.
SELECT coalesce(a.wait_event_type, '') NOT IN ('Activity', 'Client') FROM pg_stat_activity a WHERE a.pid = %(pid)s;

-- without_identity: Tables whose updates and deletes would fail once they are published.
SELECT format('%%I.%%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'forge')
  AND (%(tables)s::bigint[] IS NULL OR c.oid = ANY (%(tables)s::bigint[]::oid[]) OR n.nspname = ANY (%(schemas)s::text[]))
  AND NOT (c.relreplident = 'f'
           OR c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
           OR c.relreplident = 'i' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))
ORDER BY 1;

-- tables: Every table that can be published.
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'forge')
  AND n.nspname NOT LIKE 'pg\_toast%%' ORDER BY 2, 3;

-- columns: The columns of every table that can be published.
SELECT n.nspname::text, c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'forge')
  AND n.nspname NOT LIKE 'pg\_toast%%'
GROUP BY n.nspname, c.relname ORDER BY 1, 2;

-- publication: A publication: whether for all tables, its operations, and Forge's comment.
SELECT p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot, obj_description(p.oid, 'pg_publication'),
       ARRAY(SELECT r.prrelid::bigint FROM pg_publication_rel r WHERE r.prpubid = p.oid),
       ARRAY(SELECT s.nspname::text FROM pg_publication_namespace x JOIN pg_namespace s ON s.oid = x.pnnspid WHERE x.pnpubid = p.oid)
FROM pg_publication p WHERE p.pubname = %(name)s;

-- head: The snapshot of this transaction, the name under which others may share it, the time, and an LSN behind all
-- that it shows.
SELECT pg_current_snapshot()::text, pg_export_snapshot(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       pg_current_wal_insert_lsn()::text;

-- flushed: Whether the WAL is on disk up to here.
SELECT pg_current_wal_flush_lsn() >= %(lsn)s::text::pg_lsn;

-- flush: Writes a commit of Forge's own, which flushes everything before it.
SELECT pg_logical_emit_message(true, 'forge', '');

-- insert_lsn: The end of the WAL.
SELECT pg_current_wal_insert_lsn()::text;

-- next_xid: A transaction number near the newest.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text;

-- log_updates: The trigger log's entries of a row in one transaction.
SELECT l.id, coalesce(l.rank, l.id), l.transaction_id, l.at, l.version, l.op, l.before, l.after, l.hidden, l.user_id, l.function_name, l.trace_id,
       l.context, l.db_user, l.application_name
FROM forge.forge_event_log l
WHERE l.transaction_id = %(transaction)s::text::xid8 AND l.row_id = %(row)s AND l.op IN ('U', 'I') ORDER BY 2, 1;
