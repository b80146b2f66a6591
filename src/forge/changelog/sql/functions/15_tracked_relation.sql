-- The current relation of each tracked table, identified by the triggers that call its functions: this survives
-- renames, dumps and restores. Partitions and children carry the triggers too; the table is the one that is not part of
-- another.
CREATE OR REPLACE VIEW forge.tracked_relation AS
WITH target AS (
    SELECT t.id, t.schema_name, t.table_name, g.tgrelid
    FROM forge.tracked_table t
    JOIN pg_proc p ON p.pronamespace = 'forge'::regnamespace
                  AND p.proname = format('log_%s_insert', t.id)
    JOIN pg_trigger g ON g.tgfoid = p.oid
    WHERE t.disabled_at IS NULL
)
SELECT DISTINCT ON (target.id) target.id, target.tgrelid AS table_oid
FROM target
JOIN pg_class c ON c.oid = target.tgrelid
WHERE NOT EXISTS (
    SELECT FROM pg_inherits i JOIN target parent ON parent.tgrelid = i.inhparent AND parent.id = target.id
    WHERE i.inhrelid = target.tgrelid AND NOT i.inhdetachpending)
ORDER BY target.id, c.relname = target.table_name AND c.relnamespace::regnamespace::text = quote_ident(target.schema_name) DESC, target.tgrelid;
