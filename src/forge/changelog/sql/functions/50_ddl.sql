-- DDL changes rows without firing a trigger. Where an event trigger is permitted, DDL is seen in its own transaction;
-- elsewhere maintenance calls forge.refresh_all().
CREATE OR REPLACE FUNCTION forge.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    touched oid[];
    named   boolean;
    item    integer;
BEGIN
    SELECT array_agg(r.oid), bool_and(r.oid IS NOT NULL) INTO touched, named
    FROM pg_event_trigger_ddl_commands() c
    CROSS JOIN LATERAL (SELECT CASE c.classid
        WHEN 'pg_class'::regclass THEN coalesce((SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = c.objid), c.objid)
        WHEN 'pg_trigger'::regclass THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = c.objid)
        WHEN 'pg_attrdef'::regclass THEN (SELECT d.adrelid FROM pg_attrdef d WHERE d.oid = c.objid)
        WHEN 'pg_constraint'::regclass THEN (SELECT o.conrelid FROM pg_constraint o WHERE o.oid = c.objid) END) r (oid)
    -- temporary tables are frequent and never tracked
    WHERE c.schema_name IS DISTINCT FROM 'pg_temp';
    IF touched IS NULL AND EXISTS (SELECT FROM pg_event_trigger_ddl_commands()) THEN
        RETURN;
    END IF;
    IF touched IS NULL OR NOT named OR TG_TAG NOT IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE TRIGGER') OR forge.is_type_of_others(touched) THEN
        PERFORM forge.refresh_all();
    ELSIF current_setting('forge.refreshing', true) IS DISTINCT FROM 'yes' THEN
        FOR item IN SELECT n FROM forge.tracked_near(touched) n ORDER BY n LOOP
            PERFORM forge.refresh(item);
        END LOOP;
    END IF;
END
$body$;

-- Whether other tables have columns of these relations' row types, which change with them.
CREATE OR REPLACE FUNCTION forge.is_type_of_others(relations oid[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT EXISTS (
        SELECT FROM pg_class c JOIN pg_type t ON t.oid = c.reltype
        JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray)
        WHERE c.oid = ANY (relations) AND NOT (d.classid = 'pg_type'::regclass AND d.objid = t.typarray))
$body$;

-- The tracked tables that a change of these relations can affect: the relations themselves, the tables they are part
-- of, and their foreign-key neighbours, because referential actions decide how changes are ordered.
CREATE OR REPLACE FUNCTION forge.tracked_near(relations oid[]) RETURNS SETOF integer
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    WITH RECURSIVE near AS (
        SELECT unnest(relations) AS oid
        UNION SELECT f.confrelid FROM pg_constraint f WHERE f.contype = 'f' AND f.conrelid = ANY (relations)
        UNION SELECT f.conrelid FROM pg_constraint f WHERE f.contype = 'f' AND f.confrelid = ANY (relations)
    ), whole AS (
        SELECT near.oid FROM near
        UNION SELECT i.inhparent FROM whole JOIN pg_inherits i ON i.inhrelid = whole.oid
    )
    SELECT DISTINCT substring(p.proname FROM '^log_([0-9]+)_')::integer
    FROM whole JOIN pg_trigger t ON t.tgrelid = whole.oid JOIN pg_proc p ON p.oid = t.tgfoid
    JOIN forge.tracked_table k ON k.id = substring(p.proname FROM '^log_([0-9]+)_')::integer AND k.disabled_at IS NULL
    WHERE p.pronamespace = 'forge'::regnamespace
$body$;

CREATE OR REPLACE FUNCTION forge.on_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    version integer;
BEGIN
    SELECT max(v.id) INTO version
    FROM forge.tracked_relation t JOIN forge.table_version v ON v.tracked_table = t.id
    WHERE pg_event_trigger_table_rewrite_oid() IN (SELECT forge.relations_of(t.table_oid))
    GROUP BY t.id;
    IF version IS NOT NULL THEN
        PERFORM forge.log_table_event(version, 'S', json_build_object('rewritten', true,
            'reason', pg_event_trigger_table_rewrite_reason()));
    END IF;
END
$body$;

-- Views, functions, policies and grants change what queries return without any row changing: nodes that serve live
-- queries are notified, as defined in forge.serve.bus. The seal uses a secret that other roles cannot read: the first
-- one of the log, which a failover does not change.
CREATE OR REPLACE FUNCTION forge.tell_definitions() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    SELECT pg_notify('forge_nodes', concat_ws(' ', 'definitions', x.id, encode(sha256(convert_to(
               concat_ws(' ', i.secret, 'definitions', x.id), 'UTF8')), 'hex')))
    FROM (SELECT pg_current_xact_id()::text AS id) x, (SELECT l.secret FROM forge.log_identity l ORDER BY l.id LIMIT 1) i
$body$;
REVOKE ALL ON FUNCTION forge.tell_definitions() FROM PUBLIC;

CREATE OR REPLACE FUNCTION forge.on_definition() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- a transaction that will be PREPAREd cannot NOTIFY
    IF current_setting('forge.refreshing', true) IS DISTINCT FROM 'yes' AND current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll'
       AND (NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands())
            OR EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE c.schema_name IS DISTINCT FROM 'pg_temp')) THEN
        PERFORM forge.tell_definitions();
    END IF;
END
$body$;

DO $body$
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
        RETURN;
    END IF;
    DROP EVENT TRIGGER IF EXISTS forge_ddl;
    CREATE EVENT TRIGGER forge_ddl ON ddl_command_end
        WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'DROP TABLE', 'CREATE SCHEMA', 'ALTER SCHEMA', 'DROP SCHEMA', 'ALTER TYPE', 'DROP TYPE',
                     'DROP DOMAIN', 'DROP COLLATION', 'CREATE TRIGGER', 'DROP TRIGGER', 'DROP FUNCTION', 'DROP ROUTINE', 'DROP OWNED',
                     'CREATE EXTENSION', 'ALTER EXTENSION', 'DROP EXTENSION')
        EXECUTE FUNCTION forge.on_ddl();
    DROP EVENT TRIGGER IF EXISTS forge_rewrite;
    CREATE EVENT TRIGGER forge_rewrite ON table_rewrite EXECUTE FUNCTION forge.on_rewrite();
    DROP EVENT TRIGGER IF EXISTS forge_definition;
    CREATE EVENT TRIGGER forge_definition ON ddl_command_end
        WHEN TAG IN ('CREATE VIEW', 'ALTER VIEW', 'DROP VIEW', 'CREATE FUNCTION', 'ALTER FUNCTION', 'CREATE POLICY', 'ALTER POLICY',
                     'DROP POLICY', 'GRANT', 'REVOKE', 'ALTER TABLE')
        EXECUTE FUNCTION forge.on_definition();
    -- also in the replica role: the trigger functions must know the columns there as well
    ALTER EVENT TRIGGER forge_ddl ENABLE ALWAYS;
    ALTER EVENT TRIGGER forge_rewrite ENABLE ALWAYS;
    ALTER EVENT TRIGGER forge_definition ENABLE ALWAYS;
END
$body$;
