-- Which session does a job that one session at a time may do: see forge.take_lease. A row holds while its session lives.
-- `started` is when that session began, NULL where it may not see that of its own; with the pid it names one session for
-- ever. Unlogged: after a crash no session is left, and none of this is worth a flush.
CREATE UNLOGGED TABLE forge.lease (
    name    text PRIMARY KEY,
    pid     integer NOT NULL,
    started timestamptz,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row, which is locked for the moment in which scheduled messages join the outbox.
CREATE TABLE forge.outbox_turn (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one));
INSERT INTO forge.outbox_turn DEFAULT VALUES;
