-- The session that does a job which only one session at a time may do: see forge.take_lease. A row is valid while its
-- session lives. `started` is when that session began, NULL if it may not see that of its own; with the pid it
-- identifies one session permanently. Unlogged: after a crash no session is left, so nothing here is worth a flush.
CREATE UNLOGGED TABLE forge.lease (
    name    text PRIMARY KEY,
    pid     integer NOT NULL,
    started timestamptz,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row, locked while scheduled messages join the outbox.
CREATE TABLE forge.outbox_turn (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one));
INSERT INTO forge.outbox_turn DEFAULT VALUES;
