-- Tamper evidence: whether the log is sealed, and by whom that was decided; the last row counts. Nothing here: it is not.
CREATE TABLE forge.sealing (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    enabled boolean NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    by      text NOT NULL DEFAULT session_user
);

-- The chain. One row for some rows of the log, all of one day, in the reader's order: what they had in common, then 32 bytes
-- of salt and 32 of digest for each. `head` is made of the head before it and of all of that but the salts, so any head
-- proves everything before it. Where a day was dropped, its rows' part is NULL, and `root` stands for it.
-- A batch is what `until` shows and `since` did not; it goes on behind (day, last_place, last_id).
CREATE TABLE forge.log_seal (
    id         bigint PRIMARY KEY,
    day        date NOT NULL,
    log        text NOT NULL,
    since      pg_snapshot NOT NULL,
    until      pg_snapshot NOT NULL,
    last_place bigint NOT NULL,
    last_id    bigint NOT NULL,
    rows       integer NOT NULL,
    events     bigint[],
    salts      bytea,
    digests    bytea,
    root       bytea NOT NULL,
    previous   bytea NOT NULL,
    head       bytea NOT NULL,
    sealed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE forge.log_seal ALTER salts SET STORAGE EXTERNAL, ALTER digests SET STORAGE EXTERNAL;
CREATE INDEX log_seal_day ON forge.log_seal (day, id);

-- Rows of the log that were sealed before values were taken out of them: which, by which tombstones (ids of R rows), and what
-- proves the rest: for each value either its own salt, or, where it is gone, its digest.
CREATE TABLE forge.redaction (
    event_id   bigint PRIMARY KEY,
    columns    text[] NOT NULL,
    tombstones bigint[] NOT NULL,
    hidden     text[],
    proof      jsonb NOT NULL
);
