-- A table by the name that a user gives: qualified or not, quoted or not.
CREATE OR REPLACE FUNCTION forge.find_table(name text) RETURNS oid
LANGUAGE plpgsql STABLE AS $body$
DECLARE
    found oid;
BEGIN
    found := pg_catalog.to_regclass(pg_catalog.quote_ident(name));
    IF found IS NULL THEN
        BEGIN
            found := pg_catalog.to_regclass(name);
        EXCEPTION WHEN OTHERS THEN
            found := NULL;  -- not a name at all: the error below says so
        END;
    END IF;
    IF found IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'FG101', MESSAGE = pg_catalog.concat('there is no table ', name),
            HINT = 'check the spelling and the schema, e.g. sales.orders';
    END IF;
    RETURN found;
END
$body$;

-- Refuses tables that cannot be tracked, before anything is changed.
CREATE OR REPLACE FUNCTION forge.check_trackable(relation oid, exclude text[], mask text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $body$
DECLARE
    class   pg_class := (SELECT c FROM pg_class c WHERE c.oid = relation);
    problem text;
    remedy  text;
    keys    text[] := forge.key_columns(relation);
    unknown text;
BEGIN
    SELECT string_agg(x, ', ') INTO unknown FROM unnest(exclude || mask) x
    WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = x AND a.attnum > 0 AND NOT a.attisdropped);
    IF class.relkind IN ('v', 'm') THEN
        problem := 'is a view'; remedy := 'track the tables it reads';
    ELSIF class.relkind = 'f' THEN
        problem := 'is a foreign table'; remedy := 'track it where it is stored';
    ELSIF class.relkind NOT IN ('r', 'p') THEN
        problem := 'is not a table'; remedy := 'name a table';
    ELSIF class.relpersistence = 't' THEN
        problem := 'is a temporary table'; remedy := 'track a permanent table';
    ELSIF class.relpersistence = 'u' THEN
        problem := 'is unlogged, so a crash empties it unseen'; remedy := format('ALTER TABLE %s SET LOGGED', relation::regclass);
    ELSIF class.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'forge'::regnamespace) THEN
        problem := 'is a system table'; remedy := 'track a table of your own';
    ELSIF class.relispartition THEN
        problem := 'is a partition';
        remedy := format('track the whole table: %s', (SELECT r::regclass FROM pg_partition_root(relation) r));
    ELSIF octet_length(class.relname::text) > 50 THEN
        problem := CASE WHEN length(class.relname) > 50 THEN format('has a name of %s characters; 50 is the most', length(class.relname))
                   ELSE format('has a name of %s bytes; 50 is the most', octet_length(class.relname::text)) END;
        remedy := format('ALTER TABLE %s RENAME TO …', relation::regclass);
    ELSIF NOT pg_has_role(class.relowner, 'USAGE') THEN
        problem := format('belongs to %s', class.relowner::regrole); remedy := format('enable it as %s or a superuser', class.relowner::regrole);
    ELSIF unknown IS NOT NULL THEN
        problem := format('has no column %s', unknown); remedy := 'check exclude and mask';
    ELSIF keys && (exclude || mask) THEN
        problem := 'needs its key columns'; remedy := format('do not exclude or mask %s', array_to_string(keys, ', '));
    ELSIF EXISTS (SELECT FROM forge.relations_of(relation) r WHERE r <> relation AND forge.tracked_id(r) IS NOT NULL) THEN
        problem := 'has a partition or child that is tracked by itself'; remedy := 'disable that one first';
    ELSIF EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = relation) THEN
        problem := 'inherits from another table, and writes through that one would not be seen';
        remedy := format('track %s, which tracks this one too', (SELECT min(i.inhparent::regclass::text) FROM pg_inherits i WHERE i.inhrelid = relation));
    ELSE
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'FG102', MESSAGE = format('%s %s', relation::regclass, problem), HINT = remedy;
END
$body$;

-- The expected triggers of one tracked table on each of its relations.
CREATE OR REPLACE FUNCTION forge.wanted_triggers(tracked integer, relation oid)
RETURNS TABLE (target oid, name text, function text, definition text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH setup AS MATERIALIZED (
        SELECT t.*, c.relname, c.relkind, forge.log_order($2) AS log_order, forge.has_children($2) AS inherited
        FROM forge.tracked_table t, pg_class c WHERE t.id = tracked AND c.oid = $2),
    kind (prefix, function, timing) AS (VALUES
        ('forge_start_', 'begin', 'BEFORE INSERT OR UPDATE ON %s FOR EACH STATEMENT'),
        -- Never called: with a BEFORE ROW trigger PostgreSQL (15 to 18) passes a MERGE's UPDATE trigger the rows that
        -- were updated; without one, rows that the same MERGE inserted. Because it is in the replica role, other
        -- sessions do not evaluate its condition.
        ('forge_route_', 'row', 'BEFORE INSERT ON %s FOR EACH ROW WHEN (false)'),
        ('!forge_leave_', 'move', 'AFTER DELETE ON %s FOR EACH ROW WHEN (current_setting(''forge.updating_@'', true) <> '''')'),
        -- the conditions are parsed for each statement: longer ones make a single insert much slower
        ('!forge_enter_', 'move', 'AFTER INSERT ON %s FOR EACH ROW WHEN (starts_with(current_setting(''forge.updating_@'', true), ''u''))'),
        ('forge_notify_', 'insert', 'AFTER INSERT ON %s REFERENCING NEW TABLE AS forge_new_rows FOR EACH STATEMENT'),
        ('forge_update_', 'update', 'AFTER UPDATE ON %s REFERENCING OLD TABLE AS forge_old_rows NEW TABLE AS forge_new_rows FOR EACH STATEMENT'),
        ('forge_delete_', 'delete', 'AFTER DELETE ON %s REFERENCING OLD TABLE AS forge_old_rows FOR EACH STATEMENT'),
        ('forge_empty_', 'truncate', 'BEFORE TRUNCATE ON %s FOR EACH STATEMENT'),
        ('forge_clear_', 'truncate', 'AFTER TRUNCATE ON %s FOR EACH STATEMENT'),
        ('forge_empty_', 'empty', 'BEFORE TRUNCATE ON %s FOR EACH STATEMENT'),
        ('!forge_mark_', 'mark', 'AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'),
        ('!forge_each_', 'each', 'AFTER UPDATE OR DELETE ON %s FOR EACH ROW'),
        ('!forge_apply_', 'row', 'AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'))
    SELECT r.oid, (kind.prefix || setup.relname)::name::text, format('log_%s_%s', tracked, kind.function),
           format('CREATE TRIGGER %I %s EXECUTE FUNCTION forge.log_%s_%s()', (kind.prefix || setup.relname)::name,
                  format(replace(kind.timing, '@', tracked::text), r.oid::regclass), tracked, kind.function)
    FROM setup, kind, forge.relations_of($2) r (oid)
    WHERE CASE kind.function
        WHEN 'begin' THEN setup.relkind = 'p'
        WHEN 'move' THEN setup.relkind = 'p'
        WHEN 'mark' THEN setup.log_order = 'marks'
        WHEN 'each' THEN setup.log_order = 'rows'
        WHEN 'update' THEN setup.log_order <> 'rows'
        WHEN 'delete' THEN setup.log_order <> 'rows'
        WHEN 'row' THEN CASE kind.prefix WHEN 'forge_route_' THEN setup.relkind = 'p' ELSE setup.replica END
        WHEN 'truncate' THEN r.oid = $2 AND NOT setup.inherited
        WHEN 'empty' THEN r.oid <> $2 OR setup.inherited
        ELSE true END
$body$;

-- Drops the triggers of a tracked table that are not wanted on the relation; all of them if it is NULL.
CREATE OR REPLACE FUNCTION forge.drop_triggers(tracked integer, relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    item   record;
    wanted text[] := ARRAY(SELECT concat_ws(' ', w.target, w.function, w.name) FROM forge.wanted_triggers(tracked, relation) w);
BEGIN
    FOR item IN
        SELECT t.tgname, t.tgrelid FROM forge.functions_of(tracked) p
        CROSS JOIN LATERAL (SELECT d.objid FROM pg_depend d WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
                            AND d.classid = 'pg_trigger'::regclass OFFSET 0) d  -- by the index of referenced objects
        JOIN pg_trigger t ON t.oid = d.objid
        WHERE NOT t.tgisinternal AND t.tgparentid = 0
          AND concat_ws(' ', t.tgrelid, p.proname, t.tgname) <> ALL (wanted)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', item.tgname, item.tgrelid::regclass);
    END LOOP;
END
$body$;

-- Reconciles the triggers: adds missing ones, drops those of Forge that are not wanted. A wanted trigger that was
-- disabled or altered by hand is left unchanged, for forge doctor to report.
CREATE OR REPLACE FUNCTION forge.write_triggers(tracked integer, relation oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $body$
DECLARE
    item   record;
    firing text;
BEGIN
    PERFORM forge.drop_triggers(tracked, relation);
    FOR item IN
        SELECT w.*, t.replica FROM forge.wanted_triggers(tracked, relation) w, forge.tracked_table t WHERE t.id = tracked
        ORDER BY w.target <> relation, w.target
    LOOP
        IF EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgrelid = item.target AND t.tgname = item.name
                   AND (p.pronamespace <> 'forge'::regnamespace OR p.proname <> item.function)) THEN
            RAISE EXCEPTION USING ERRCODE = 'FG102', MESSAGE = format('%s has a trigger %I of its own', item.target::regclass, item.name),
                HINT = format('ALTER TRIGGER %I ON %s RENAME TO …', item.name, item.target::regclass);
        END IF;
        -- PostgreSQL copies a row trigger on a partitioned table to its partitions
        IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = item.target AND t.tgname = item.name) THEN
            EXECUTE item.definition;
        END IF;
        -- under session_replication_role = replica, and in logical-replication apply, only row triggers see every row
        firing := CASE WHEN item.function ~ '_row$' THEN 'REPLICA'
                       WHEN item.replica AND item.function ~ '_(truncate|empty)$' THEN 'ALWAYS' END;
        IF firing IS NOT NULL AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = item.target AND t.tgname = item.name AND t.tgenabled = 'O') THEN
            EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', item.target::regclass, firing, item.name);
        END IF;
    END LOOP;
END
$body$;

-- A change of a table as a whole: S for its definition, X if the changed rows are unknown.
CREATE OR REPLACE FUNCTION forge.log_table_event(version integer, op "char", note json) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $body$
    INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, user_id, function_name, trace_id, context, db_user, application_name)
    SELECT pg_current_xact_id(), a, forge.log_day(a), version, op, nullif(current_setting('forge.user_id', true), ''),
           nullif(current_setting('forge.function_name', true), ''), nullif(current_setting('forge.trace_id', true), ''),
           note, session_user, nullif(current_setting('application_name'), '')
    FROM clock_timestamp() a;
    SELECT pg_notify('forge_changes', forge.wakeup_payload(v.table_name, 'SCHEMA', '*')) FROM forge.table_version v
    WHERE v.id = version AND current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll';
$body$;

-- Brings the functions, triggers and version of one tracked table up to date with its definition. Returns whether
-- anything changed. If a relation is given, that one is tracked from then on, whatever it was before. Its settings, as
-- those of the functions below, make the planner look everything up by the catalog's indexes: else the cost per table
-- rises with the number of tables.
CREATE OR REPLACE FUNCTION forge.refresh(tracked integer, relation oid DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $body$
DECLARE
    setup    forge.tracked_table := (SELECT t FROM forge.tracked_table t WHERE t.id = tracked);
    forced   boolean := relation IS NOT NULL;
    found    oid := coalesce(relation, (SELECT r.table_oid FROM forge.tracked_relation r WHERE r.id = tracked));
    newest   forge.table_version := (SELECT v FROM forge.table_version v WHERE v.tracked_table = tracked ORDER BY v.id DESC LIMIT 1);
    print    text := forge.fingerprint(found);
    version  integer := newest.id;
    class    record;
    added    oid[];
BEGIN
    IF found IS NULL THEN
        IF to_regclass(format('%I.%I', setup.schema_name, setup.table_name)) IS NULL THEN
            PERFORM forge.stop_tracking(tracked, json_build_object('dropped', true));
            RETURN true;
        END IF;
        RETURN false;
    END IF;
    IF print = newest.fingerprint AND NOT forced THEN
        RETURN false;
    END IF;
    PERFORM set_config('forge.refreshing', 'yes', true);
    -- a renamed column stays excluded or masked, and so does a dropped one that is added again
    UPDATE forge.tracked_table t SET
        excluded = (SELECT coalesce(array_agg(DISTINCT n), '{}') FROM unnest(t.excluded) x, forge.names_now(newest, found, x) n),
        masked = (SELECT coalesce(array_agg(DISTINCT n), '{}') FROM unnest(t.masked) x, forge.names_now(newest, found, x) n)
    WHERE t.id = tracked AND newest.id IS NOT NULL AND NOT forced
    RETURNING * INTO setup;
    SELECT c.relname, n.nspname INTO class FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = found;
    UPDATE forge.tracked_table SET schema_name = class.nspname, table_name = class.relname WHERE id = tracked RETURNING * INTO setup;
    INSERT INTO forge.table_version (tracked_table, relation, schema_name, table_name, columns, key_columns, fingerprint, empty)
    SELECT tracked, found, class.nspname, class.relname,
           (SELECT jsonb_agg(jsonb_build_object('name', c.name, 'type', c.type, 'kind', c.kind, 'attnum', a.attnum,
                                                'type_oid', a.atttypid::bigint, 'parts', forge.type_parts(a.atttypid)) ORDER BY c.position)
            FROM forge.table_columns(found, setup.excluded, setup.masked) c
            JOIN pg_attribute a ON a.attrelid = found AND a.attname = c.name),
           forge.key_columns(found), print,
           CASE WHEN newest.id IS NULL OR forced AND setup.enabled_at > newest.recorded_at THEN forge.is_empty(found) END
    RETURNING id INTO version;
    SELECT coalesce(array_agg(r), '{}') INTO added FROM forge.relations_of(found) r
    WHERE NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                      WHERE t.tgrelid = r AND p.pronamespace = 'forge'::regnamespace AND p.proname = format('log_%s_insert', tracked));
    PERFORM forge.write_functions(tracked, found, version);
    PERFORM forge.write_triggers(tracked, found);
    IF forced OR forge.may_change_rows(newest.fingerprint, print, added) THEN
        PERFORM forge.log_table_event(version, 'S', NULL);
    END IF;
    PERFORM set_config('forge.refreshing', '', true);
    RETURN true;
END
$body$;

-- Whether a table that is locked against writers is empty; false if that cannot be known for sure.
CREATE OR REPLACE FUNCTION forge.is_empty(relation oid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $body$
DECLARE
    found boolean;
BEGIN
    -- an old snapshot shows an old table
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT NOT EXISTS (SELECT FROM %s)', relation::regclass) INTO found;
    RETURN found;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END
$body$;

-- Whether a table can have different rows after a change of definition. Empty new partitions add none: their triggers
-- exist by then, so no writer comes in between; unless the definition is only polled.
CREATE OR REPLACE FUNCTION forge.may_change_rows(older text, newer text, added oid[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off AS $body$
DECLARE
    was   text[] := string_to_array(older, '.');
    now   text[] := string_to_array(newer, '.');
    item  oid;
    found boolean;
BEGIN
    IF was[1] <> now[1] OR was[2]::bigint + cardinality(added) <> now[2]::bigint OR cardinality(added) > 0 AND NOT forge.sees_ddl() THEN
        RETURN true;
    END IF;
    FOREACH item IN ARRAY added LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', item::regclass) INTO found;
        IF found THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN cardinality(added) = 0 AND was[3] <> now[3];
END
$body$;

-- Current names of a column of an older version: by its number if the table is still the same relation (a restored one
-- is not, and numbers its columns again), and in any case every column that has its name or may get it again.
CREATE OR REPLACE FUNCTION forge.names_now(older forge.table_version, relation oid, name text) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH renamed AS (
        SELECT a.attname::text AS name FROM jsonb_array_elements(older.columns) c
        JOIN pg_attribute a ON a.attrelid = relation AND a.attnum = (c ->> 'attnum')::int AND NOT a.attisdropped
        WHERE c ->> 'name' = $3 AND older.relation = $2)
    SELECT renamed.name FROM renamed
    UNION SELECT $3 WHERE NOT EXISTS (SELECT FROM renamed)
        OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = $2 AND a.attname = $3 AND NOT a.attisdropped
                   AND NOT EXISTS (SELECT FROM jsonb_array_elements(older.columns) c WHERE (c ->> 'attnum')::int = a.attnum AND older.relation = $2))
$body$;

-- Brings every tracked table up to date with its definition. Returns how many had changed.
CREATE OR REPLACE FUNCTION forge.refresh_all() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    item    integer;
    changed integer := 0;
BEGIN
    IF current_setting('forge.refreshing', true) IS NOT DISTINCT FROM 'yes' THEN
        RETURN 0;
    END IF;
    FOR item IN SELECT id FROM forge.tracked_table WHERE disabled_at IS NULL ORDER BY id LOOP
        IF forge.refresh(item) THEN
            changed := changed + 1;
        END IF;
    END LOOP;
    RETURN changed;
END
$body$;

CREATE OR REPLACE FUNCTION public.forge_enable_reactivity(
    name text, exclude text[] DEFAULT '{}', mask text[] DEFAULT '{}', replica boolean DEFAULT false, on_failure text DEFAULT 'fail'
) RETURNS void
LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM forge.enable(forge.find_table(name), exclude, mask, replica, on_failure);
END
$body$;

CREATE OR REPLACE FUNCTION forge.enable(relation oid, exclude text[], mask text[], replica boolean, on_failure text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $body$
#variable_conflict use_column
DECLARE
    wanted  forge.tracked_table;
    tracked forge.tracked_table;
BEGIN
    wanted.excluded := coalesce(exclude, '{}');
    wanted.masked := coalesce(mask, '{}');
    wanted.replica := coalesce(replica, false);
    wanted.on_failure := coalesce(on_failure, 'fail');
    PERFORM forge.check_trackable(relation, wanted.excluded, wanted.masked);
    IF wanted.on_failure NOT IN ('fail', 'invalidate') THEN
        RAISE EXCEPTION USING ERRCODE = 'FG102', MESSAGE = format('on_failure cannot be %s', on_failure), HINT = 'use fail or invalidate';
    END IF;
    -- no writer may be between the old functions and the new ones
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', relation::regclass);
    SELECT n.nspname, c.relname INTO wanted.schema_name, wanted.table_name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation;
    SELECT t.* INTO tracked FROM forge.tracked_table t WHERE t.id = forge.tracked_id(relation);
    IF tracked.id IS NULL THEN
        -- the same name again, without its triggers: tracking starts again under the old number
        UPDATE forge.tracked_table t SET disabled_at = NULL, enabled_at = clock_timestamp()
        WHERE t.id = (SELECT max(o.id) FROM forge.tracked_table o WHERE o.schema_name = wanted.schema_name AND o.table_name = wanted.table_name)
        RETURNING * INTO tracked;
    END IF;
    IF tracked.id IS NULL THEN
        INSERT INTO forge.tracked_table (schema_name, table_name) VALUES (wanted.schema_name, wanted.table_name) RETURNING * INTO tracked;
    ELSIF forge.tracked_id(relation) = tracked.id
          AND (tracked.excluded, tracked.masked, tracked.replica, tracked.on_failure)
              = (wanted.excluded, wanted.masked, wanted.replica, wanted.on_failure)
          AND NOT EXISTS (SELECT FROM forge.wanted_triggers(tracked.id, relation) w WHERE NOT EXISTS (
              SELECT FROM pg_trigger t WHERE t.tgrelid = w.target AND t.tgname = w.name AND t.tgenabled <> 'D')) THEN
        PERFORM forge.refresh(tracked.id);
        RETURN;
    END IF;
    UPDATE forge.tracked_table t SET excluded = wanted.excluded, masked = wanted.masked, replica = wanted.replica, on_failure = wanted.on_failure
    WHERE t.id = tracked.id;
    PERFORM set_config('forge.refreshing', 'yes', true);
    PERFORM forge.drop_triggers(tracked.id, NULL);
    PERFORM forge.refresh(tracked.id, relation);
END
$body$;

CREATE OR REPLACE FUNCTION public.forge_disable_reactivity(name text) RETURNS boolean
LANGUAGE plpgsql AS $body$
BEGIN
    RETURN forge.disable(forge.find_table(name));
END
$body$;

CREATE OR REPLACE FUNCTION forge.disable(relation oid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $body$
DECLARE
    tracked integer := forge.tracked_id(relation);
BEGIN
    IF tracked IS NULL THEN
        RAISE NOTICE '% is not tracked', relation::regclass;
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', relation::regclass);
    PERFORM forge.stop_tracking(tracked, json_build_object('disabled', true));
    RETURN true;
END
$body$;

CREATE OR REPLACE FUNCTION forge.stop_tracking(tracked integer, note json) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $body$
DECLARE
    item record;
BEGIN
    PERFORM set_config('forge.refreshing', 'yes', true);
    PERFORM forge.drop_triggers(tracked, NULL);
    FOR item IN SELECT p.oid::regprocedure AS signature FROM forge.functions_of(tracked) p LOOP
        EXECUTE format('DROP FUNCTION %s', item.signature);
    END LOOP;
    UPDATE forge.tracked_table SET disabled_at = clock_timestamp() WHERE id = tracked;
    PERFORM forge.log_table_event((SELECT max(v.id) FROM forge.table_version v WHERE v.tracked_table = tracked), 'S', note);
    PERFORM set_config('forge.refreshing', '', true);
END
$body$;

REVOKE ALL ON FUNCTION public.forge_enable_reactivity(text, text[], text[], boolean, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.forge_disable_reactivity(text) FROM PUBLIC;

-- After an upgrade of Forge: every tracked table gets this version's functions, without a new table version.
CREATE OR REPLACE FUNCTION forge.rewrite_all() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $body$
DECLARE
    item record;
BEGIN
    PERFORM forge.refresh_all();
    PERFORM set_config('forge.refreshing', 'yes', true);
    FOR item IN SELECT r.id, r.table_oid, max(v.id) AS version FROM forge.tracked_relation r
                JOIN forge.table_version v ON v.tracked_table = r.id GROUP BY r.id, r.table_oid LOOP
        PERFORM forge.write_functions(item.id, item.table_oid, item.version);
        PERFORM forge.write_triggers(item.id, item.table_oid);
    END LOOP;
    PERFORM set_config('forge.refreshing', '', true);
END
$body$;
