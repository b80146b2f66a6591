-- Tamper evidence: whether the log is sealed, and who decided that; the last row wins. No row: it is not sealed.
CREATE TABLE forge.sealing (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    enabled boolean NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    by      text NOT NULL DEFAULT session_user
);

-- The chain. One row for a set of log rows, all of one day, in the reader's order: what they have in common, then 32
-- bytes of salt and 32 of digest for each. `head` is the digest of the previous head and of all of that except the
-- salts, so any head proves everything before it. Where a day was dropped, its rows' part is NULL, and `root` replaces
-- it. A batch is what `until` shows and `since` did not; it continues after (day, last_place, last_id).
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

-- Rows of the log that were sealed before values were redacted: the row, its tombstones (ids of R rows), and the proof
-- of the rest: for each value either its own salt, or, if it was removed, its digest.
CREATE TABLE forge.redaction (
    event_id   bigint PRIMARY KEY,
    columns    text[] NOT NULL,
    tombstones bigint[] NOT NULL,
    hidden     text[],
    proof      jsonb NOT NULL
);
