-- Writes the trigger functions of one tracked table: forge.log_<id>_insert, _update, _delete, _truncate, _empty, _each,
-- _row, _mark; of a partitioned one also _begin, _move. Their templates are in 28_templates.sql; this computes the words
-- in them.
CREATE OR REPLACE FUNCTION forge.write_functions(tracked integer, relation oid, version integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    setup    forge.tracked_table := (SELECT t FROM forge.tracked_table t WHERE t.id = tracked);
    class    pg_class := (SELECT c FROM pg_class c WHERE c.oid = relation);
    parted   boolean := class.relkind = 'p';
    plain    boolean;
    delta    boolean;
    pins     text;
    o        text := 'forge_o';
    n        text := 'forge_n';
    r        text := 'forge_r';
    words    jsonb;
    name     text;
BEGIN
    -- functions take at most 100 arguments; and columns may be named only if DDL that drops them is seen at once
    SELECT bool_and(c.native), count(*) <= 90 AND (forge.sees_ddl() OR NOT bool_and(c.native)) INTO plain, delta
    FROM forge.table_columns(relation, setup.excluded, setup.masked) c;
    SELECT coalesce(string_agg(format(' SET %s = %L', split_part(p, '=', 1), split_part(p, '=', 2)), ''), '') INTO pins
    FROM (SELECT DISTINCT unnest(c.pins) p FROM forge.table_columns(relation, setup.excluded, setup.masked) c) pin;
    -- an inheriting child's own columns are not the table's
    plain := plain AND NOT forge.has_children(relation);
    -- row_to_json(alias) would mean a column of that name if one existed
    WHILE EXISTS (SELECT FROM forge.relations_of(relation) part JOIN pg_attribute a ON a.attrelid = part
                  WHERE a.attname IN (o, n, r, o || '_image', n || '_image')) LOOP
        o := o || '_'; n := n || '_'; r := r || '_';
    END LOOP;

    words := jsonb_build_object(
        'tracked', tracked, 'version', version, 'table', quote_literal(class.relname), 'wakeup_lock', forge.wakeup_lock(),
        -- rows of the transition tables, and the number that pairs them in `a` and `b`
        'old', o, 'new', n, 'number', r)
        || forge.row_words('old', relation, setup, o, o, o, plain)
        || forge.row_words('new', relation, setup, n, n, n, plain)
        || forge.row_words('a', relation, setup, 'a', CASE WHEN plain THEN 'a.' || o ELSE o END, o, plain)
        || forge.row_words('b', relation, setup, 'b', CASE WHEN plain THEN 'b.' || n ELSE n END, n, plain)
        || forge.row_words('OLD', relation, setup, 'OLD', CASE WHEN plain THEN 'OLD' ELSE o END, o, plain)
        || forge.row_words('NEW', relation, setup, 'NEW', CASE WHEN plain THEN 'NEW' ELSE n END, n, plain)
        || forge.pair_words('old_new', relation, setup, o, n)
        || forge.pair_words('a_b', relation, setup, 'a', 'b')
        || forge.pair_words('OLD_NEW', relation, setup, 'OLD', 'NEW');
    words := words || CASE WHEN delta
        THEN jsonb_build_object('a_before', forge.delta_expression(relation, setup, 'a', 'b'), 'a_before_source', '')
        ELSE jsonb_build_object('a_before', words -> 'a_image', 'a_before_source', words -> 'a_source') END;
    IF parted THEN
        words := words || jsonb_build_object(
            'old_digest', forge.row_digest_expression(relation, o), 'new_digest', forge.row_digest_expression(relation, n),
            'OLD_digest', forge.row_digest_expression(relation, 'OLD'), 'NEW_digest', forge.row_digest_expression(relation, 'NEW'));
    END IF;

    -- parts that several templates share, and parts that only some tables have
    words := words || forge.fill_parts(words, '{log, values, later_values, actor, pairs, wake}');
    words := words || jsonb_build_object('log_part', quote_literal(forge.fill(forge.capture_template('log_part'), words)),
                                         'part_rows', quote_literal(forge.fill(forge.capture_template('part_rows'), words)));
    words := words || forge.fill_parts(words, '{take_rank_1, take_rank_2, take_rank_3, keep_rank}', forge.log_order(relation) = 'marks');
    words := words || forge.fill_parts(words, '{try, failed}', setup.on_failure = 'invalidate');
    words := words || forge.fill_parts(words, '{declare_moves, begin_insert, begin_update, begin_delete, check_moves}', parted);
    words := words || forge.fill_parts(words, '{declare}');

    FOREACH name IN ARRAY '{insert, delete, update, each, row, truncate, empty, mark}'::text[] LOOP
        PERFORM forge.write_function(tracked, name, CASE name WHEN 'mark' THEN '' WHEN 'empty' THEN pins || ' SET row_security = off' ELSE pins END,
                                     forge.fill(forge.capture_template(name), words));
    END LOOP;
    IF parted THEN
        PERFORM forge.write_function(tracked, 'begin', '', forge.fill(forge.capture_template('begin'), words));
        PERFORM forge.write_function(tracked, 'move', pins, forge.fill(forge.capture_template('move'), words));
    END IF;
END
$body$;

-- The words of a row in the templates: its key string, its image, and the FROM items that the image needs.
CREATE OR REPLACE FUNCTION forge.row_words(
    prefix text, relation oid, setup forge.tracked_table, "row" text, image text, alias text, plain boolean
) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT jsonb_build_object(
        prefix || '_id', forge.row_id_expression(relation, "row"),
        prefix || '_image', forge.image_expression(image, plain),
        prefix || '_source', forge.image_source(relation, setup, "row", alias, plain))
$body$;

-- The words of an old and a new row: whether their keys are equal, and the hidden columns that differ.
CREATE OR REPLACE FUNCTION forge.pair_words(prefix text, relation oid, setup forge.tracked_table, old_row text, new_row text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT jsonb_build_object(
        prefix || '_same_key', forge.key_same_expression(relation, old_row, new_row),
        prefix || '_hidden', forge.hidden_expression(relation, setup, old_row, new_row))
$body$;

-- The shared parts of templates by name, filled in; empty ones if the table does not need them.
CREATE OR REPLACE FUNCTION forge.fill_parts(words jsonb, names text[], needed boolean DEFAULT true) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT jsonb_object_agg(name, CASE WHEN needed THEN forge.fill(forge.capture_template(name), words) ELSE '' END)
    FROM unnest(names) name
$body$;

-- A seal of a text that only Forge's own functions can create within a transaction: settings that a writer could set
-- carry it.
CREATE OR REPLACE FUNCTION forge.seal(value text, transaction xid8) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT encode(sha256(convert_to(concat_ws(' ', i.secret, transaction, value), 'UTF8')), 'hex')
    FROM forge.log_identity i ORDER BY i.id DESC LIMIT 1
$body$;
REVOKE ALL ON FUNCTION forge.seal(text, xid8) FROM PUBLIC;

-- Whether the last word of a text is the seal of the text before it.
CREATE OR REPLACE FUNCTION forge.sealed(value text, transaction xid8) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT value IS NOT NULL AND split_part(value, ' ', 5) = forge.seal(left(value, -65), transaction)
$body$;
REVOKE ALL ON FUNCTION forge.sealed(text, xid8) FROM PUBLIC;

CREATE OR REPLACE FUNCTION forge.write_function(tracked integer, name text, pins text, body text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    owner text;
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION forge.log_%s_%s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp%s AS %L', tracked, name, pins, body);
    EXECUTE format('REVOKE ALL ON FUNCTION forge.log_%s_%s() FROM PUBLIC', tracked, name);
    -- whichever role enables a table, the owner of Forge owns the functions and may have to replace them
    owner := (SELECT r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'forge');
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION forge.log_%s_%s() OWNER TO %I', tracked, name, owner);
    END IF;
END
$body$;

-- The writer's forge.context as JSON; raises if it is not valid. Only an object that jsonb can hold is valid.
CREATE OR REPLACE FUNCTION forge.parsed_context(value text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF octet_length(value) <= 8192 AND jsonb_typeof(value::jsonb) = 'object' THEN
        RETURN value::json;
    END IF;
    RAISE invalid_text_representation;
EXCEPTION WHEN data_exception OR statement_too_complex OR program_limit_exceeded THEN
    RAISE EXCEPTION USING ERRCODE = 'FG201', MESSAGE = 'the setting forge.context is not a JSON object of 8 kB at the most',
        HINT = 'set it by SELECT forge_context(…)';
END
$body$;

-- The advisory lock that the awake reader holds: see forge.changelog.wakeup.
CREATE OR REPLACE FUNCTION forge.wakeup_lock() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 5075401093471535105::bigint;

-- A hint, never the data: v1:{table}:{OP}:{row}#{last id}, always below the size limit of NOTIFY.
CREATE OR REPLACE FUNCTION forge.wakeup_payload(relation text, op text, row_id text) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT format('v1:%s:%s:%s#%s', replace(replace(relation, '%', '%25'), ':', '%3A'), op,
                  CASE WHEN octet_length(row_id) < 6000 THEN coalesce(row_id, '*') ELSE '*' END, lastval())
$body$;
