-- holders: The held leases of a schema, by name.
SELECT name, pid, role, application_name, client, since FROM {schema}.held_lease ORDER BY name;

-- strangers: Sessions of roles that may not read the log, and hold or wait for one of its advisory locks.
SELECT CASE l.lock WHEN %(wake)s THEN 'wake-up' ELSE 'pacemaker' END, l.pid, a.usename, a.application_name,
       host(a.client_addr), a.state_change
FROM (SELECT pid, classid::bigint << 32 | objid::bigint AS lock FROM pg_locks
      WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) l
JOIN pg_stat_activity a USING (pid)
WHERE l.lock IN (%(wake)s, %(pace)s) AND NOT has_table_privilege(a.usesysid, 'forge.forge_event_log', 'SELECT')
ORDER BY 1, 2;
