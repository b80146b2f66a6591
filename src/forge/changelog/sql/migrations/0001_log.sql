-- The durable log, the definitions of tables, and the record of what was trimmed. Everything starts closed: no grants.
CREATE SCHEMA forge;

CREATE TABLE forge.schema_version (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_by text NOT NULL DEFAULT session_user
);

-- One row per incarnation of this log. A failover, a restore, a dump or a copy creates a new one: rows with an id below
-- its first_id belong to an older one and are kept for history, but no cursor delivers them.
CREATE TABLE forge.log_identity (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uuid              uuid NOT NULL DEFAULT gen_random_uuid(),
    system_identifier text NOT NULL,
    timeline          integer NOT NULL,
    database          oid NOT NULL,
    log               oid NOT NULL,
    secret            text NOT NULL DEFAULT gen_random_uuid()::text,
    first_id          bigint NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A table that is or was tracked. Its current relation is identified by the trigger that calls its functions.
CREATE TABLE forge.tracked_table (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schema_name text NOT NULL,
    table_name  text NOT NULL,
    excluded    text[] NOT NULL DEFAULT '{}',
    masked      text[] NOT NULL DEFAULT '{}',
    replica     boolean NOT NULL DEFAULT false,
    on_failure  text NOT NULL DEFAULT 'fail' CHECK (on_failure IN ('fail', 'invalidate')),
    enabled_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at timestamptz
);
CREATE UNIQUE INDEX tracked_table_name ON forge.tracked_table (schema_name, table_name) WHERE disabled_at IS NULL;

-- The definition of a tracked table while its log rows were written; every log row names one of these.
CREATE TABLE forge.table_version (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tracked_table integer NOT NULL REFERENCES forge.tracked_table,
    relation      oid NOT NULL,
    schema_name   text NOT NULL,
    table_name    text NOT NULL,
    columns       jsonb NOT NULL,
    key_columns   text[] NOT NULL,
    fingerprint   text NOT NULL,
    recorded_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX table_version_tracked ON forge.table_version (tracked_table, id);

CREATE SEQUENCE forge.event_id AS bigint CACHE 1;

-- One row per change. `rank` is set where a statement's rows must come before the rows of statements that its own
-- triggers ran; order is by coalesce(rank, id), id. An update's `before` holds at least the changed values.
CREATE TABLE forge.forge_event_log (
    id               bigint NOT NULL DEFAULT nextval('forge.event_id'),
    rank             bigint,
    transaction_id   xid8 NOT NULL,
    at               timestamptz NOT NULL,
    day              date NOT NULL,
    version          integer NOT NULL,
    op               "char" NOT NULL,
    row_id           text,
    before           json,
    after            json,
    hidden           text[],
    user_id          text,
    function_name    text,
    trace_id         text,
    context          json,
    db_user          text,
    application_name text
) PARTITION BY RANGE (day);
CREATE INDEX forge_event_log_transaction ON forge.forge_event_log (transaction_id);
CREATE INDEX forge_event_log_row ON forge.forge_event_log (row_id);

-- Holds changes of a day that has no partition: the day is then 'infinity', the time is true.
CREATE TABLE forge.forge_event_overflow PARTITION OF forge.forge_event_log
    FOR VALUES FROM ('infinity') TO (MAXVALUE);
ALTER TABLE forge.forge_event_overflow REPLICA IDENTITY FULL;

-- Trimmed rows: log rows of transactions up to last_transaction that were finished in the snapshot may be missing.
CREATE TABLE forge.trimmed (
    id               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition        text NOT NULL,
    reason           text NOT NULL,
    rows             bigint NOT NULL,
    last_id          bigint,
    last_transaction xid8,
    snapshot         pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    trimmed_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Instants and what was committed then: as-of uses the last of these at or before the requested instant.
CREATE TABLE forge.instant (
    at       timestamptz PRIMARY KEY,
    snapshot pg_snapshot NOT NULL
);

-- Payloads too large for NOTIFY; listeners fetch them by their unguessable reference.
CREATE TABLE forge.large_payload (
    reference uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    channel   text NOT NULL,
    payload   text NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX large_payload_at ON forge.large_payload (at);

-- The days that have partitions; maintenance replaces this function after it creates some and before it drops some.
-- Because it is immutable it costs a writer nothing: the planner folds it into the trigger's plan.
CREATE FUNCTION forge.log_day(at timestamptz) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 'infinity'::date;
