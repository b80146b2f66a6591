-- Forge's tables in a database file. No constraint here can fail: a trigger's statement inherits the conflict clause of
-- the statement that fired it, so the writer would decide whether a failing one is ignored or replaces.

-- One row: the identity of this file, its schema version at the last check, and the last removed id of the queue.
CREATE TABLE forge_state (
    identity TEXT, format INTEGER, schema_version INTEGER, removed INTEGER, removed_at REAL
);

-- Each definition of each tracked table, as JSON; `current` is 1 for the one in force.
CREATE TABLE forge_version (id INTEGER PRIMARY KEY, name TEXT, current INTEGER, definition TEXT);

-- The changes, one row each, in commit order. The newest row is never removed, so no id is reused. Values follow as v0,
-- v1, … without a type; there are as many as the widest tracked table needs.
CREATE TABLE forge_queue (id INTEGER PRIMARY KEY, version, op, at, context);

-- Rows that REPLACE may be about to delete, while the statement runs.
CREATE TABLE forge_replaced (n INTEGER PRIMARY KEY, version, r);

-- The context of the writing transaction; empty outside of one. If foreign keys are enforced, a transaction that leaves
-- its context behind cannot commit.
CREATE TABLE forge_nobody (id INTEGER PRIMARY KEY);
CREATE TABLE forge_context (
    text TEXT, open INTEGER REFERENCES forge_nobody (id) DEFERRABLE INITIALLY DEFERRED
);
