-- Returns the identity of this log. Records a new one when the server, its timeline, the database or the log itself is
-- not the same as last time. Writers active by then have finished when this returns, so every row that a cursor of the
-- new identity can ask for has an id from first_id on.
CREATE OR REPLACE FUNCTION forge.current_identity() RETURNS forge.log_identity
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    found forge.log_identity;
    server text;
    line integer;
    here oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    made oid := 'forge.forge_event_log'::regclass;
    writers text[];
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = 'FG001', MESSAGE = 'this server is a standby; the log can be read on a primary only',
            HINT = 'connect to the primary';
    END IF;
    SELECT system_identifier::text INTO server FROM pg_control_system();
    line := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
    SELECT * INTO found FROM forge.log_identity ORDER BY id DESC LIMIT 1;
    IF (found.system_identifier, found.timeline, found.database, found.log) = (server, line, here, made) THEN
        found.secret := NULL;  -- any role that follows the log may call this
        RETURN found;
    END IF;
    LOCK TABLE forge.log_identity IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO found FROM forge.log_identity ORDER BY id DESC LIMIT 1;
    IF (found.system_identifier, found.timeline, found.database, found.log) IS DISTINCT FROM (server, line, here, made) THEN
        INSERT INTO forge.log_identity (system_identifier, timeline, database, log, first_id)
        VALUES (server, line, here, made, CASE WHEN found.id IS NULL THEN 1 ELSE nextval('forge.event_id') END)
        RETURNING * INTO found;
        -- Snapshots of another server or timeline say nothing about this one.
        DELETE FROM forge.instant;
        writers := ARRAY(SELECT l.virtualtransaction FROM pg_locks l WHERE l.relation = made AND l.database = here
                         AND l.mode = 'RowExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid());
        WHILE EXISTS (SELECT FROM pg_locks l WHERE l.relation = made AND l.database = here AND l.virtualtransaction = ANY (writers)) LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
    END IF;
    found.secret := NULL;
    RETURN found;
END
$body$;
