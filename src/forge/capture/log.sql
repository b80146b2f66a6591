-- columns: The columns that tracked tables have, or had.
SELECT w.schema_name, w.table_name, array_agg(w.name ORDER BY w.version DESC, w.n)
FROM (SELECT v.schema_name, v.table_name, c.value ->> 'name' AS name, max(v.id) AS version, min(c.n) AS n
      FROM forge.table_version v CROSS JOIN LATERAL jsonb_array_elements(v.columns) WITH ORDINALITY c (value, n)
      GROUP BY 1, 2, 3) w
GROUP BY w.schema_name, w.table_name ORDER BY 1, 2;

-- taken: The snapshot of this transaction, the WAL position that must be flushed for it to be safe to keep, and the
-- time.
SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, clock_timestamp();

-- facts: The facts in the status of a log.
SELECT (SELECT coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint FROM pg_inherits i
        WHERE i.inhparent = 'forge.forge_event_log'::regclass),
       (SELECT min(l.at) FROM (SELECT l.at FROM forge.forge_event_log l ORDER BY l.transaction_id LIMIT 1) l),
       ARRAY(SELECT t.schema_name || '.' || t.table_name FROM forge.tracked_table t
             WHERE t.disabled_at IS NULL ORDER BY 1);
