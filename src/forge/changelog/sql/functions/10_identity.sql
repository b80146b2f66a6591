-- This log's identity now, recorded anew when the server, its timeline or the database is another than last time.
CREATE OR REPLACE FUNCTION forge.current_identity() RETURNS forge.log_identity
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    found forge.log_identity;
    server text;
    line integer;
    here oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = 'FG001', MESSAGE = 'this server is a standby; the log can be read on a primary only',
            HINT = 'connect to the primary';
    END IF;
    SELECT system_identifier::text INTO server FROM pg_control_system();
    line := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
    SELECT * INTO found FROM forge.log_identity ORDER BY id DESC LIMIT 1;
    IF (found.system_identifier, found.timeline, found.database) = (server, line, here) THEN
        RETURN found;
    END IF;
    LOCK TABLE forge.log_identity IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO found FROM forge.log_identity ORDER BY id DESC LIMIT 1;
    IF (found.system_identifier, found.timeline, found.database) IS DISTINCT FROM (server, line, here) THEN
        INSERT INTO forge.log_identity (system_identifier, timeline, database, first_id)
        VALUES (server, line, here, CASE WHEN found.id IS NULL THEN 1 ELSE nextval('forge.event_id') END)
        RETURNING * INTO found;
        -- Snapshots of another server or timeline say nothing about this one.
        DELETE FROM forge.instant;
    END IF;
    RETURN found;
END
$body$;
