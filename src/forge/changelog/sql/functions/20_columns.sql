-- A type without its domains.
CREATE OR REPLACE FUNCTION forge.base_type(type oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH RECURSIVE step (oid, base) AS (
        SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = $1
        UNION ALL
        SELECT t.oid, t.typbasetype FROM step JOIN pg_type t ON t.oid = step.base
    )
    SELECT step.oid FROM step WHERE step.base = 0
$body$;

-- The names that values of a type are printed with, at any depth: the labels of enums, each by its number, and the
-- attributes of composites. NULL if there are none.
CREATE OR REPLACE FUNCTION forge.type_parts(type oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH RECURSIVE within (oid) AS (
        SELECT forge.base_type($1)
        UNION
        SELECT forge.base_type(n.oid) FROM within w JOIN pg_type t ON t.oid = w.oid CROSS JOIN LATERAL (
            SELECT t.typelem AS oid WHERE t.typcategory = 'A' AND t.typelem <> 0
            UNION ALL SELECT p.atttypid FROM pg_attribute p
                      WHERE t.typtype = 'c' AND p.attrelid = t.typrelid AND p.attnum > 0 AND NOT p.attisdropped
            UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) n
    ), part (name, value) AS (
        SELECT 'label ' || e.oid, to_jsonb(e.enumlabel::text) FROM within w JOIN pg_enum e ON e.enumtypid = w.oid
        UNION ALL
        SELECT 'attributes ' || t.oid, jsonb_agg(jsonb_build_array(p.attname, p.atttypid::text, p.atttypmod) ORDER BY p.attnum)
        FROM within w JOIN pg_type t ON t.oid = w.oid AND t.typtype = 'c'
        JOIN pg_attribute p ON p.attrelid = t.typrelid AND p.attnum > 0 AND NOT p.attisdropped GROUP BY t.oid
    )
    SELECT jsonb_object_agg(part.name, part.value) FROM part
$body$;

-- The form in which each column of a table is written into the log.
--   kind    how a reader decodes it (see forge.values)
--   native  row_to_json alone prints it exactly
--   value   an expression for it, %1$s standing for the column; types that are not built in are printed by their output
--           function only, because a user-defined cast would run with Forge's rights
--   differs an expression that tells whether two rows differ in it, %1$s and %2$s standing for the columns
--   pins    session settings that its printing depends on
CREATE OR REPLACE FUNCTION forge.table_columns(relation oid, excluded text[], masked text[])
RETURNS TABLE ("position" integer, name text, type text, kind text, native boolean, value text, differs text, pins text[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $body$
    WITH typed AS (
        SELECT a.attnum, a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type,
               a.attname = ANY (excluded) OR a.attgenerated = 'v' AS hidden, a.attname = ANY (masked) AS masked,
               b.oid AS base, b.typname, b.typtype, b.typcategory = 'A' AND b.typelem <> 0 AS is_array,
               b.typnamespace = 'pg_catalog'::regnamespace AS builtin,
               e.typname AS element, e.typtype AS element_kind, e.typnamespace = 'pg_catalog'::regnamespace AS element_builtin,
               coalesce(c.collisdeterministic, true) AS deterministic
        FROM pg_attribute a
        JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN forge.base_type(t.oid) ELSE t.oid END
        LEFT JOIN pg_type e ON b.typcategory = 'A' AND e.oid = forge.base_type(b.typelem)
        LEFT JOIN pg_collation c ON c.oid = a.attcollation
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
    ), formed AS (
        SELECT *, CASE
            WHEN hidden THEN 'hidden'
            WHEN masked THEN 'masked'
            WHEN is_array THEN CASE
                WHEN NOT element_builtin OR element IN ('json', 'jsonb', 'record') OR element_kind IN ('c', 'r', 'm')
                    THEN 'literal'
                WHEN element IN ('float4', 'float8') THEN 'float[]'
                WHEN element IN ('numeric', 'bytea') THEN element || '[]'
                ELSE 'plain[]' END
            WHEN typname IN ('float4', 'float8') AND builtin THEN 'float'
            WHEN typname IN ('numeric', 'bytea', 'jsonb') AND builtin THEN typname::text
            WHEN typname = 'json' AND builtin THEN 'json'
            WHEN builtin AND typtype = 'b' THEN 'plain'
            ELSE 'literal' END AS form,
            CASE
            WHEN typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'text', 'varchar', 'bpchar', 'name', 'char', 'uuid', 'numeric',
                             'date', 'timestamp', 'time', 'json', 'jsonb') AND builtin OR typtype = 'e'
                 OR is_array AND (element IN ('bool', 'int2', 'int4', 'int8', 'text', 'varchar', 'uuid', 'numeric') AND element_builtin
                                  OR element_kind = 'e') THEN '{}'::text[]
            WHEN typname = 'timestamptz' AND builtin THEN '{TimeZone=UTC}'
            WHEN typname IN ('float4', 'float8') AND builtin THEN '{extra_float_digits=1}'
            WHEN typname = 'bytea' AND builtin THEN '{bytea_output=hex}'
            WHEN typname = 'interval' AND builtin THEN '{IntervalStyle=iso_8601}'
            WHEN builtin AND starts_with(typname::text, 'reg') OR is_array AND element_builtin AND starts_with(element::text, 'reg')
                THEN '{quote_all_identifiers=off}'
            ELSE '{TimeZone=UTC,extra_float_digits=1,bytea_output=hex,IntervalStyle=iso_8601,"DateStyle=ISO, YMD",lc_monetary=C}'::text[]
                 || CASE WHEN builtin AND typtype = 'b' AND NOT is_array THEN '{}' ELSE '{quote_all_identifiers=off}'::text[] END END AS pins
        FROM typed
    )
    SELECT row_number() OVER (ORDER BY attnum)::integer, name, type,
        CASE WHEN form IN ('literal', 'json') THEN 'plain' ELSE form END,
        form IN ('plain', 'numeric', 'bytea'),
        CASE form
            WHEN 'hidden' THEN NULL
            WHEN 'masked' THEN $e$CASE WHEN num_nulls(%1$s) = 0 THEN '***' END$e$
            WHEN 'float' THEN 'CASE WHEN %1$s = 0 THEN to_json(%1$s::text) ELSE to_json(%1$s) END'
            WHEN 'jsonb' THEN $e$CASE WHEN %1$s = 'null'::jsonb OR %1$s ? '$json' THEN json_build_object('$json', %1$s) ELSE to_json(%1$s) END$e$
            WHEN 'json' THEN '%1$s::text'
            WHEN 'literal' THEN $e$CASE WHEN num_nulls(%1$s) = 0 THEN format('%%s', %1$s) END$e$
            WHEN 'plain' THEN '%1$s' WHEN 'numeric' THEN '%1$s' WHEN 'bytea' THEN '%1$s'
            ELSE 'CASE WHEN ' || (SELECT string_agg(format('coalesce(array_lower(%%1$s, %s), 1) = 1', d), ' AND ') FROM generate_series(1, 6) d)
                 || ' THEN to_json(%1$s) ELSE to_json(format(''%%s'', %1$s)) END'
        END,
        CASE WHEN builtin AND deterministic AND typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'text', 'varchar', 'uuid', 'date',
                 'timestamp', 'timestamptz', 'time', 'bytea')
             THEN '%1$s IS DISTINCT FROM %2$s' ELSE 'record_image_ne(ROW(%1$s), ROW(%2$s))' END,
        CASE WHEN hidden OR masked THEN '{}' ELSE pins END
    FROM formed ORDER BY attnum
$body$;

-- The primary-key columns of a table, in the key's order; empty when it has none.
CREATE OR REPLACE FUNCTION forge.key_columns(relation oid) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce(array_agg(a.attname::text ORDER BY k.n), '{}')
    FROM pg_index i
    CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY k (attnum, n)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = relation AND i.indisprimary AND k.n <= i.indnkeyatts
$body$;

-- The relations whose triggers log for a table: itself and all its partitions or inheriting children.
CREATE OR REPLACE FUNCTION forge.relations_of(relation oid) RETURNS SETOF oid
LANGUAGE sql STABLE ROWS 3 SET search_path = pg_catalog, pg_temp AS $body$
    WITH RECURSIVE tree (oid) AS (
        SELECT relation
        UNION
        SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
        WHERE NOT i.inhdetachpending
    )
    SELECT tree.oid FROM tree
    WHERE (SELECT c.relkind IN ('r', 'p') AND c.relpersistence <> 't' FROM pg_class c WHERE c.oid = tree.oid)
$body$;

-- Whether other tables inherit from this one (partitions do not count).
CREATE OR REPLACE FUNCTION forge.has_children(relation oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent WHERE i.inhparent = relation AND c.relkind = 'r')
$body$;

-- Whether DDL is seen in its own transaction: the event triggers exist and are enabled.
CREATE OR REPLACE FUNCTION forge.sees_ddl() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT count(*) = 2 FROM pg_event_trigger WHERE evtname IN ('forge_ddl', 'forge_rewrite') AND evtenabled IN ('O', 'A')
$body$;

-- The method that puts the changes of one statement in order:
--   statements: nothing is needed; the statement triggers log them as they fire.
--   marks: writing to the table can run statements of other triggers that write to it again; a mark taken when the
--     triggers of the statement start puts its own rows before theirs.
--   rows: referential actions can update and delete rows of it within one statement on a parent. PostgreSQL merges
--     those into one firing of each statement trigger, but row triggers fire in the order in which the rows were
--     changed. Only if no other trigger writes in between, and if no two rows of a statement can have the same key at
--     the same time.
CREATE OR REPLACE FUNCTION forge.log_order(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH found AS (
        SELECT coalesce(bool_or(NOT t.tgisinternal AND p.pronamespace <> 'forge'::regnamespace), false) AS others,
               coalesce(bool_or(t.tgisinternal AND p.proname IN (
                   'RI_FKey_cascade_del', 'RI_FKey_cascade_upd', 'RI_FKey_setnull_del', 'RI_FKey_setnull_upd',
                   'RI_FKey_setdefault_del', 'RI_FKey_setdefault_upd')), false) AS actions
        FROM forge.relations_of(relation) r JOIN pg_trigger t ON t.tgrelid = r JOIN pg_proc p ON p.oid = t.tgfoid
    ), crossing AS (
        SELECT EXISTS (
            SELECT FROM forge.relations_of(relation) r
            JOIN pg_constraint deletes ON deletes.conrelid = r AND deletes.contype = 'f' AND deletes.confdeltype = 'c'
            JOIN pg_constraint updates ON updates.conrelid = r AND updates.contype = 'f' AND updates.oid <> deletes.oid
                                      AND (updates.confdeltype IN ('n', 'd') OR updates.confupdtype IN ('c', 'n', 'd'))) AS found
    )
    SELECT CASE WHEN crossing.found AND NOT found.others AND c.relkind = 'r' AND NOT forge.has_children(relation)
                     AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = relation AND i.indisprimary AND i.indimmediate) THEN 'rows'
                WHEN found.others OR found.actions OR crossing.found THEN 'marks'
                ELSE 'statements' END
    FROM found, crossing, pg_class c WHERE c.oid = relation
$body$;

-- A fingerprint of a definition, its parts separated by dots: name, columns and key; number of relations; relations;
-- method of ordering a statement's changes. Enum labels and composite attributes count, also within other types,
-- because renaming one changes rows. If no event trigger reports rewrites, the transaction that last changed a column
-- counts too. Pinned are the settings that the text of an expression depends on, as in Forge's own connections.
CREATE OR REPLACE FUNCTION forge.fingerprint(relation oid) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off SET standard_conforming_strings = on
SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO, MDY' SET "IntervalStyle" = 'postgres' SET extra_float_digits = 1
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $body$
    SELECT concat(md5(concat_ws('|', c.relnamespace::regnamespace, c.relname, c.relkind,
        (SELECT string_agg(concat_ws(',', a.attname, a.atttypid, a.atttypmod, a.attcollation, a.attgenerated,
                                     CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END,
                                     (SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = b.oid),
                                     (SELECT string_agg(concat_ws(' ', p.attname, p.atttypid, p.atttypmod), ',' ORDER BY p.attnum)
                                      FROM pg_attribute p WHERE p.attrelid = b.typrelid AND p.attnum > 0 AND NOT p.attisdropped),
                                     CASE WHEN b.typtype IN ('c', 'r', 'm') OR b.typcategory = 'A'
                                          THEN md5(nullif(forge.type_parts(b.oid) - ('attributes ' || b.oid), '{}')::text) END,
                                     CASE WHEN NOT forge.sees_ddl() THEN a.xmin END), ';' ORDER BY a.attnum)
         FROM pg_attribute a
         JOIN pg_type t ON t.oid = a.atttypid
         JOIN pg_type b ON b.oid = forge.base_type(CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN t.typelem ELSE t.oid END)
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        forge.key_columns(c.oid)::text)),
        (SELECT concat('.', count(*), '.', md5(string_agg(r::text, ',' ORDER BY r))) FROM forge.relations_of(c.oid) r),
        '.', forge.log_order(c.oid))
    FROM pg_class c WHERE c.oid = relation
$body$;
