-- The session that maintains the journals or changes the strategy, as forge.lease for the jobs of the log.
CREATE UNLOGGED TABLE forge_versions.lease (
    name    text PRIMARY KEY,
    pid     integer NOT NULL,
    started timestamptz,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);
