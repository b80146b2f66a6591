-- The SQL fragments that a table's trigger functions are built from. `row` is the name of a row in them.

-- The key as one string: see Change.row_id.
CREATE OR REPLACE FUNCTION forge.row_id_expression(relation oid, "row" text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH part AS (
        SELECT k.n, CASE WHEN b.typnamespace <> 'pg_catalog'::regnamespace OR e.typnamespace <> 'pg_catalog'::regnamespace
                         THEN format('format(''%%s'', %s.%I)', "row", k.name)
                         WHEN b.typname IN ('bool', 'int2', 'int4', 'int8', 'text', 'varchar', 'uuid', 'numeric', 'bpchar')
                         THEN format('%s.%I::text', "row", k.name) ELSE format('(to_json(%s.%I) #>> ''{}'')', "row", k.name) END AS word
        FROM unnest(forge.key_columns(relation)) WITH ORDINALITY k (name, n)
        JOIN pg_attribute a ON a.attrelid = relation AND a.attname = k.name
        JOIN pg_type b ON b.oid = forge.base_type(a.atttypid)
        LEFT JOIN pg_type e ON b.typcategory = 'A' AND e.oid = forge.base_type(b.typelem)
    )
    SELECT CASE count(*) WHEN 0 THEN 'NULL' WHEN 1 THEN min(word)
           ELSE 'json_build_array(' || string_agg(word, ', ' ORDER BY n) || ')::text' END
    FROM part
$body$;

-- A digest that identifies a row within its table: of its key, or of the whole row if it has no key.
CREATE OR REPLACE FUNCTION forge.row_digest_expression(relation oid, "row" text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT format('md5(%s)', CASE WHEN forge.key_columns(relation) <> '{}' THEN forge.row_id_expression(relation, "row") ELSE (
        SELECT format('ROW(%s)::text', string_agg(format('%s.%I', "row", c.name), ', ' ORDER BY c.position))
        FROM forge.table_columns(relation, '{}', '{}') c WHERE c.value IS NOT NULL) END)
$body$;

-- Whether two rows have the same key; true for a table without one.
CREATE OR REPLACE FUNCTION forge.key_same_expression(relation oid, old_row text, new_row text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce(string_agg(format('NOT (' || c.differs || ')', format('%s.%I', old_row, c.name), format('%s.%I', new_row, c.name)),
                               ' AND '), 'true')
    FROM forge.table_columns(relation, '{}', '{}') c WHERE c.name = ANY (forge.key_columns(relation))
$body$;

-- A row as JSON. A plain row is printed directly; any other through a lateral row that image_source adds to FROM.
CREATE OR REPLACE FUNCTION forge.image_expression(alias text, plain boolean) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT 'row_to_json(' || alias || CASE WHEN plain THEN '' ELSE '_image' END || ')'
$body$;

CREATE OR REPLACE FUNCTION forge.image_source(relation oid, setup forge.tracked_table, "row" text, alias text, plain boolean) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT CASE WHEN plain THEN '' ELSE format(' CROSS JOIN LATERAL (SELECT %s) %s_image',
        (SELECT string_agg(format(c.value, format('%s.%I', "row", c.name)) || format(' AS %I', c.name), ', ' ORDER BY c.position)
         FROM forge.table_columns(relation, setup.excluded, setup.masked) c WHERE c.value IS NOT NULL), alias) END
$body$;

-- The old values of the columns that differ, as JSON.
CREATE OR REPLACE FUNCTION forge.delta_expression(relation oid, setup forge.tracked_table, old_row text, new_row text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT '(''{'' || concat_ws('','', ' || string_agg(
        'CASE WHEN ' || format(c.differs, format('%s.%I', old_row, c.name), format('%s.%I', new_row, c.name))
        || ' THEN ' || quote_literal(to_json(c.name)::text || ':')
        || ' || coalesce(to_json(' || format(c.value, format('%s.%I', old_row, c.name)) || ')::text, ''null'') END',
        ', ' ORDER BY c.position) || ') || ''}'')::json'
    FROM forge.table_columns(relation, setup.excluded, setup.masked) c WHERE c.value IS NOT NULL
$body$;

-- The names of excluded and masked columns that differ; NULL when there are none.
CREATE OR REPLACE FUNCTION forge.hidden_expression(relation oid, setup forge.tracked_table, old_row text, new_row text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce('nullif(array_remove(ARRAY[' || string_agg(
        format('CASE WHEN ' || c.differs || ' THEN %3$L END', format('%s.%I', old_row, c.name), format('%s.%I', new_row, c.name), c.name),
        ', ' ORDER BY c.position) || ']::text[], NULL), ''{}'')', 'NULL::text[]')
    FROM forge.table_columns(relation, setup.excluded, setup.masked) c
    WHERE c.name = ANY (setup.excluded) OR c.name = ANY (setup.masked)
$body$;
