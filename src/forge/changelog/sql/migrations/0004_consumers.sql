-- A durable consumer's shard: its request, its worker and its status. Rewritten at most about once per second.
CREATE TABLE forge.consumer (
    name        text NOT NULL,
    shard       integer NOT NULL DEFAULT 0,
    shards      integer NOT NULL DEFAULT 1 CHECK (shard >= 0 AND shard < shards),
    tables      text[] NOT NULL DEFAULT '{}',
    state       text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'expired')),
    owner       text,
    delivered   bigint NOT NULL DEFAULT 0,
    retried     bigint NOT NULL DEFAULT 0,
    parked      bigint NOT NULL DEFAULT 0,
    tries       integer NOT NULL DEFAULT 0,
    lag_events  bigint,
    lag_seconds double precision,
    last_error  text,
    error_at    timestamptz,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    reported_at timestamptz,
    PRIMARY KEY (name, shard)
);

-- The position of a shard. Only the holder of the current fence moves the cursor; a takeover or a rewind raises the
-- fence.
CREATE TABLE forge.consumer_cursor (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text NOT NULL,
    shard    integer NOT NULL,
    cursor   text NOT NULL,
    fence    bigint NOT NULL DEFAULT 0,
    saved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (name, shard),
    FOREIGN KEY (name, shard) REFERENCES forge.consumer ON UPDATE CASCADE ON DELETE CASCADE
) WITH (fillfactor = 50);

-- Changes that a consumer could not handle, and later changes of the same rows; ordered by id. `key` is NULL for a
-- change of the whole table, `hash` says which shard it belongs to.
CREATE TABLE forge.dead_letter (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text NOT NULL,
    hash        bigint NOT NULL,
    schema_name text NOT NULL,
    table_name  text NOT NULL,
    key         text,
    change_id   text NOT NULL,
    change      text NOT NULL,
    error       text NOT NULL,
    tries       integer NOT NULL,
    behind      boolean NOT NULL DEFAULT false,
    replay      boolean NOT NULL DEFAULT false,
    parked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (consumer, change_id)
);
CREATE INDEX dead_letter_table ON forge.dead_letter (consumer, schema_name, table_name, key, id);
CREATE INDEX dead_letter_replay ON forge.dead_letter (consumer, id) WHERE replay;

-- Steps that a consumer has done permanently: see ctx.once. Trimmed with the log: nothing older can be delivered again.
CREATE TABLE forge.consumer_once (
    consumer text NOT NULL,
    id       text NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, id)
);
CREATE INDEX consumer_once_at ON forge.consumer_once (at);

-- Shards that have reached a change of a whole table, and wait until all have and it is handled.
CREATE TABLE forge.consumer_barrier (
    consumer  text NOT NULL,
    change_id text NOT NULL,
    shard     integer NOT NULL,
    done      boolean NOT NULL DEFAULT false,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, change_id, shard)
);
