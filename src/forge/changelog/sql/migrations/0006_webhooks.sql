-- Endpoints that changes are sent to, by the consumer `webhook:name`. The first secret is the newest; the others sign too
-- until `rotated_until`. Whoever may read this table may sign as Forge does.
CREATE TABLE forge.webhook (
    name          text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,53}$'),
    url           text NOT NULL,
    secrets       text[] NOT NULL CHECK (cardinality(secrets) BETWEEN 1 AND 2),
    rotated_until timestamptz,
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
