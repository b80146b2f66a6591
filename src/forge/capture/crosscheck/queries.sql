-- tables: Every table, and why it cannot be compared: NULL for one that can. Without a publication, as if all were
-- published.
WITH relation AS (
    SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name, c.relreplident AS identity, t.id AS tracked, forge.key_columns(c.oid) AS key
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN forge.tracked_relation t ON t.table_oid = c.oid
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'forge')
), published AS (
    SELECT p.schemaname::text AS schema, p.tablename::text AS name, to_jsonb(p) ->> 'rowfilter' AS condition
    FROM pg_publication_tables p WHERE p.pubname = %(publication)s
)
SELECT r.schema, r.name,
       CASE
       WHEN r.tracked IS NULL THEN 'it is not tracked: forge enable'
       WHEN forge.has_children(r.oid) THEN 'other tables inherit from it, and the WAL tells of each by its own name'
       WHEN %(publication)s::text IS NOT NULL AND p.name IS NULL THEN 'it is not published by ' || %(publication)s
       WHEN p.condition IS NOT NULL THEN 'its publication leaves rows out'
       WHEN EXISTS (SELECT FROM forge.relations_of(r.oid) part JOIN pg_class c ON c.oid = part
                    WHERE c.relkind = 'r' AND c.relpersistence = 'u') THEN 'it is unlogged'
       WHEN EXISTS (SELECT FROM forge.relations_of(r.oid) part JOIN pg_class c ON c.oid = part
                    WHERE NOT (c.relreplident = 'f'
                        OR c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
                        OR c.relreplident = 'i' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)))
       THEN format('it has no replica identity: give it a primary key, or ALTER TABLE %%I.%%I REPLICA IDENTITY FULL', r.schema, r.name)
       WHEN r.identity = 'i' AND NOT EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = r.oid AND i.indisreplident AND r.key <> '{}' AND r.key <@ ARRAY(
               SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = r.oid AND a.attnum = ANY (i.indkey::smallint[])))
       THEN format('its replica identity lacks its primary key: ALTER TABLE %%I.%%I REPLICA IDENTITY FULL', r.schema, r.name)
       END,
       ARRAY(SELECT a.attname::text FROM pg_attribute a JOIN forge.tracked_table t ON t.id = r.tracked
             WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
               AND a.attname <> ALL (t.excluded || t.masked) ORDER BY a.attnum)
FROM relation r LEFT JOIN published p USING (schema, name)
ORDER BY 1, 2;

-- stale: Publications of windows whose session is gone.
SELECT p.pubname::text FROM pg_publication p
WHERE p.pubname ~ '^forge_crosscheck_[0-9]+$' AND pg_has_role(p.pubowner, 'USAGE')
  AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = substr(p.pubname, 18)::bigint);

-- snapshot: The snapshot of this transaction.
SELECT pg_current_snapshot()::text;
