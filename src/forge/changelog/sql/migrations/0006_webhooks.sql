-- Endpoints to which the consumer `webhook:name` sends changes. `secrets` is a list of {"secret", "until"}, the newest
-- first, which has no end; the others also sign until theirs. A role that may read this table can sign as Forge does.
CREATE TABLE forge.webhook (
    name          text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,53}$'),
    url           text NOT NULL,
    secrets       jsonb NOT NULL CHECK (jsonb_typeof(secrets) = 'array' AND jsonb_array_length(secrets) > 0),
    tables        text[] NOT NULL DEFAULT '{}',
    ops           text[] NOT NULL DEFAULT '{}',
    columns       text[] NOT NULL DEFAULT '{}',
    condition     text,
    envelope      text NOT NULL DEFAULT 'forge',
    payload       jsonb,
    batch         integer NOT NULL DEFAULT 1,
    in_flight     integer NOT NULL DEFAULT 16,
    timeout       double precision NOT NULL DEFAULT 10,
    tries         integer,
    headers       jsonb NOT NULL DEFAULT '{}',
    allow         text[] NOT NULL DEFAULT '{}',
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
