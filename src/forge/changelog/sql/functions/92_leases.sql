-- Leases: who does a job that one session at a time may do. An advisory lock would not do: any role may take any number.
-- A row of forge.lease can be written by those alone whom the owner lets.

-- Whether the session of a lease still runs. A role that may not see when another's session began knows the pid and the role
-- of it: a session of Forge's counts as the one, so that there are never two; of any other role, the pid was reused.
CREATE OR REPLACE FUNCTION forge.lease_holds(pid integer, started timestamptz) RETURNS boolean LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $body$
    SELECT EXISTS (
        SELECT FROM pg_stat_get_activity($1) a
        WHERE a.backend_start = $2
           OR (a.backend_start IS NULL OR $2 IS NULL)
              AND (has_table_privilege(a.usesysid, 'forge.lease', 'UPDATE')
                   OR pg_has_role(a.usesysid, (SELECT c.relowner FROM pg_class c WHERE c.oid = 'forge.lease'::regclass), 'MEMBER')))
$body$;

-- Take a lease for this session, until it ends or gives it up; false when another session holds it. A holder that has ended
-- never comes back, so whoever replaces exactly the row that it found is the only one. The row is read before it is looked
-- who lives: in the opposite order a session that began in between would count as ended.
CREATE OR REPLACE FUNCTION forge.take_lease(wanted text) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    holder forge.lease;
    began  timestamptz;
BEGIN
    PERFORM pg_stat_clear_snapshot();
    SELECT a.backend_start INTO began FROM pg_stat_get_activity(pg_backend_pid()) a;
    SELECT * INTO holder FROM forge.lease l WHERE l.name = wanted;
    IF NOT FOUND THEN
        INSERT INTO forge.lease (name, pid, started) VALUES (wanted, pg_backend_pid(), began) ON CONFLICT DO NOTHING;
        RETURN FOUND;
    END IF;
    IF holder.pid = pg_backend_pid() AND holder.started = began THEN
        RETURN true;
    END IF;
    PERFORM pg_stat_clear_snapshot();
    IF holder.pid <> pg_backend_pid() AND forge.lease_holds(holder.pid, holder.started) THEN
        RETURN false;
    END IF;
    UPDATE forge.lease l SET pid = pg_backend_pid(), started = began, since = clock_timestamp()
    WHERE l.name = wanted AND l.pid = holder.pid AND l.started IS NOT DISTINCT FROM holder.started;
    RETURN FOUND;
END
$body$;

-- Give a lease of this session's up.
CREATE OR REPLACE FUNCTION forge.drop_lease(held text) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $body$
    DELETE FROM forge.lease l WHERE l.name = $1 AND l.pid = pg_backend_pid()
$body$;

-- The leases that are held, and by whom. Where a session began, and from where, is shown to roles that may see it.
CREATE OR REPLACE VIEW forge.held_lease AS
SELECT l.name, l.pid, l.since, a.usesysid::regrole::text AS role, a.application_name, host(a.client_addr) AS client
FROM forge.lease l CROSS JOIN LATERAL pg_stat_get_activity(l.pid) a
WHERE forge.lease_holds(l.pid, l.started);
