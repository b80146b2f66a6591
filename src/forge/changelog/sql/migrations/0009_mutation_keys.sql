-- Mutations that were called with a key, and their answers: a repeated key gets the same answer. `caller` is [tenant,
-- user], `digest` is the digest of the mutation's name and arguments; xid is NULL if it wrote nothing.
CREATE TABLE forge.mutation_key (
    caller  text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    digest  bytea NOT NULL,
    result  bytea NOT NULL,
    xid     text,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (caller, key)
);
CREATE INDEX mutation_key_at ON forge.mutation_key (at);
