-- The relations of tracked tables. A tracked table is identified by the triggers that call its functions: this survives
-- renames, dumps and restores. Every look-up goes through indexes of the catalog, so it costs the same however many
-- tables are tracked; pg_trigger has no index by function, but pg_depend has.

-- The trigger functions of one tracked table. A function's name begins with log_<number>_; ` is the character after _.
CREATE OR REPLACE FUNCTION forge.functions_of(tracked integer) RETURNS SETOF pg_proc
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $body$
    SELECT p.* FROM pg_proc p
    WHERE p.proname >= format('log_%s_', tracked)::name AND p.proname < format('log_%s`', tracked)::name
      AND p.pronamespace = 'forge'::regnamespace
$body$;

-- The current relation of each tracked table. Partitions and children carry the triggers too; the table is the one that
-- is not part of another.
CREATE OR REPLACE VIEW forge.tracked_relation AS
SELECT t.id, r.table_oid
FROM forge.tracked_table t
CROSS JOIN LATERAL (
    SELECT g.tgrelid AS table_oid
    FROM pg_proc p
    JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid AND d.classid = 'pg_trigger'::regclass
    JOIN pg_trigger g ON g.oid = d.objid AND g.tgfoid = p.oid
    JOIN pg_class c ON c.oid = g.tgrelid
    WHERE p.pronamespace = 'forge'::regnamespace AND p.proname = format('log_%s_insert', t.id)::name
      AND NOT EXISTS (
          SELECT FROM pg_inherits i JOIN pg_trigger above ON above.tgrelid = i.inhparent AND above.tgfoid = p.oid
          WHERE i.inhrelid = g.tgrelid AND NOT i.inhdetachpending)
    ORDER BY c.relname = t.table_name AND c.relnamespace::regnamespace::text = quote_ident(t.schema_name) DESC, g.tgrelid
    LIMIT 1) r
WHERE t.disabled_at IS NULL;

-- The number of the tracked table that a relation is; NULL if it is not tracked, or only as a part of another table.
CREATE OR REPLACE FUNCTION forge.tracked_id(relation oid) RETURNS integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT r.id
    FROM pg_trigger g
    JOIN pg_proc p ON p.oid = g.tgfoid AND p.pronamespace = 'forge'::regnamespace
    JOIN forge.tracked_relation r ON r.id = substring(p.proname FROM '^log_([0-9]+)_insert$')::integer
    WHERE g.tgrelid = relation AND r.table_oid = relation
$body$;
