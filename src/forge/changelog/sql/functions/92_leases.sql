-- Leases: elect the one session that does a job. An advisory lock is not enough: any role may take any number. Only
-- roles that the owner permits can write a row of forge.lease.

-- Whether the session of a lease still runs. A role that may not see the start time of another role's session knows
-- only its pid and role: a session of a role that may hold leases counts as the holder, so that there are never two;
-- with any other role, the pid was reused.
CREATE OR REPLACE FUNCTION forge.lease_holds(pid integer, started timestamptz) RETURNS boolean LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $body$
    SELECT EXISTS (
        SELECT FROM pg_stat_get_activity($1) a
        WHERE a.backend_start = $2
           OR (a.backend_start IS NULL OR $2 IS NULL)
              AND (has_table_privilege(a.usesysid, 'forge.lease', 'UPDATE')
                   OR pg_has_role(a.usesysid, (SELECT c.relowner FROM pg_class c WHERE c.oid = 'forge.lease'::regclass), 'MEMBER')))
$body$;

-- Takes a lease for this session, until the session ends or gives it up; false if another session holds it. A holder
-- that has ended never comes back, so the session that replaces exactly the row it found is the only one. The row is
-- read before the sessions: in the opposite order a session that started in between would count as ended.
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

-- Gives up a lease of this session.
CREATE OR REPLACE FUNCTION forge.drop_lease(held text) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $body$
    DELETE FROM forge.lease l WHERE l.name = $1 AND l.pid = pg_backend_pid()
$body$;

-- The held leases and their holders. The start time and client address of a session are shown to roles that may see
-- them.
CREATE OR REPLACE VIEW forge.held_lease AS
SELECT l.name, l.pid, l.since, a.usesysid::regrole::text AS role, a.application_name, host(a.client_addr) AS client
FROM forge.lease l CROSS JOIN LATERAL pg_stat_get_activity(l.pid) a
WHERE forge.lease_holds(l.pid, l.started);
