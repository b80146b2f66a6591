-- DDL changes rows without firing a trigger. Where an event trigger is permitted it is seen in the DDL's own
-- transaction; elsewhere maintenance calls forge.refresh_all().
CREATE OR REPLACE FUNCTION forge.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    -- temporary tables come and go often, and are never tracked
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands())
       AND NOT EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE c.schema_name IS DISTINCT FROM 'pg_temp') THEN
        RETURN;
    END IF;
    PERFORM forge.refresh_all();
END
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
        PERFORM forge.log_table_event(version, 'S', json_build_object('rewritten', true));
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
END
$body$;
