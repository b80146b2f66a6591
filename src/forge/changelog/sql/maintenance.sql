-- trim_overflow: Delete the oldest transactions of the overflow from before a time, and extend the record of it.
WITH oldest AS (
    SELECT ctid AS place, at FROM forge.forge_event_overflow ORDER BY transaction_id LIMIT %(batch)s
), gone AS (
    DELETE FROM forge.forge_event_overflow o USING oldest
    WHERE o.ctid = oldest.place AND oldest.at < %(before)s RETURNING o.id, o.transaction_id
), last AS (
    SELECT (SELECT max(id) FROM gone) AS id, transaction_id FROM gone
    WHERE id >= (SELECT first_id FROM forge.log_identity ORDER BY id DESC LIMIT 1)
    ORDER BY transaction_id DESC LIMIT 1
), recorded AS (
    UPDATE forge.trimmed t SET rows = t.rows + (SELECT count(*) FROM gone), trimmed_at = clock_timestamp(),
        snapshot = pg_current_snapshot(), last_id = greatest((SELECT id FROM last), t.last_id),
        last_transaction = coalesce((SELECT transaction_id FROM last), t.last_transaction)
    WHERE t.id = %(record)s
)
SELECT count(*) FROM gone;

-- trim_payloads: Delete large payloads of notifications.
WITH gone AS (
    DELETE FROM forge.large_payload WHERE reference IN (
        SELECT reference FROM forge.large_payload WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
)
SELECT count(*) FROM gone;

-- trim_once: Delete ids that handlers have marked as done.
WITH gone AS (
    DELETE FROM forge.consumer_once WHERE (consumer, id) IN (
        SELECT consumer, id FROM forge.consumer_once WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
)
SELECT count(*) FROM gone;

-- trim_inbox: Delete ids of received messages.
WITH gone AS (
    DELETE FROM forge.inbox WHERE (consumer, id) IN (
        SELECT consumer, id FROM forge.inbox WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
)
SELECT count(*) FROM gone;

-- trim_keys: Delete idempotency keys of mutations.
WITH gone AS (
    DELETE FROM forge.mutation_key WHERE (caller, key) IN (
        SELECT caller, key FROM forge.mutation_key WHERE at < %(before)s ORDER BY at LIMIT %(batch)s) RETURNING 1
)
SELECT count(*) FROM gone;

-- trim_leases: Delete leases of sessions that have ended: these never come back. Only the examined holder is removed: which
-- sessions live is known as of the start of the statement, so a holder that replaced it in between would count as ended.
WITH ended AS MATERIALIZED (
    SELECT name, pid, started FROM forge.lease WHERE NOT forge.lease_holds(pid, started)
)
DELETE FROM forge.lease l USING ended e
WHERE l.name = e.name AND l.pid = e.pid AND l.started IS NOT DISTINCT FROM e.started;

-- trim_barriers: Delete barriers that the shards of a consumer have passed.
WITH gone AS (
    DELETE FROM forge.consumer_barrier WHERE ctid IN (
        SELECT ctid FROM forge.consumer_barrier WHERE at < %(before)s LIMIT %(batch)s) RETURNING 1
)
SELECT count(*) FROM gone;

-- trim_instants: Delete instants. The last one before the limit stays: it is the answer for the time until the next one.
WITH gone AS (
    DELETE FROM forge.instant WHERE at IN (
        SELECT at FROM forge.instant WHERE at < (SELECT max(at) FROM forge.instant WHERE at <= %(before)s)
        ORDER BY at LIMIT %(batch)s) RETURNING 1
)
SELECT count(*) FROM gone;

-- oldest_overflow: When the oldest row of the overflow was written.
SELECT at FROM forge.forge_event_overflow ORDER BY transaction_id LIMIT 1;

-- record_overflow: Begin the record of a trim of the overflow.
INSERT INTO forge.trimmed (partition, reason, rows) VALUES (%(partition)s, 'retention', 0) RETURNING id;

-- tracked: The tracked tables.
SELECT id, table_name FROM forge.tracked_table WHERE disabled_at IS NULL ORDER BY id;

-- writers_of: The number of running transactions that have written to a partition.
SELECT count(*) FROM pg_locks
WHERE relation = to_regclass(%(relation)s) AND mode = 'RowExclusiveLock'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- last_of: The last id and the last transaction of a partition in the present log.
SELECT (SELECT max(o.id) FROM {partition} o), l.transaction_id::text FROM {partition} l
WHERE l.id >= (SELECT first_id FROM forge.log_identity ORDER BY id DESC LIMIT 1)
ORDER BY l.transaction_id DESC LIMIT 1;

-- recorded: Whether a trim is recorded up to this transaction.
SELECT count(*) FROM forge.trimmed
WHERE partition = %(partition)s AND last_transaction::text IS NOT DISTINCT FROM %(last_transaction)s;

-- record_trim: Record a trim.
INSERT INTO forge.trimmed (partition, reason, rows, last_id, last_transaction)
VALUES (%(partition)s, %(reason)s, %(rows)s, %(last_id)s, %(last_transaction)s::text::xid8);

-- estimated_rows: The planner's estimate of the rows of a table, and its pages.
SELECT reltuples, pg_relation_size(oid) / 8192 FROM pg_class WHERE oid = to_regclass(%(relation)s);

-- unsettled: The number of transactions that read this database and cannot see the record of a trim.
SELECT count(*) FROM forge.trimmed t
JOIN pg_stat_activity a ON a.datname = current_database() AND a.pid <> pg_backend_pid()
 AND a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= age(t.xmin)
 AND a.xact_start < t.trimmed_at + interval '10 seconds'
WHERE t.partition = %(partition)s;

-- last_event_id: The last id that a row of the log has taken.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM forge.event_id;

-- record_instant: Record an instant and what was committed by then, if rows were written or a transaction ended since. The commit
-- waits for no disk and no standby: an instant lost in a crash only leaves a gap.
INSERT INTO forge.instant (at, snapshot)
SELECT greatest(clock_timestamp(), (SELECT max(at) + interval '1 microsecond' FROM forge.instant)), pg_current_snapshot()
FROM set_config('synchronous_commit', 'off', true)
WHERE %(moved)s OR EXISTS (SELECT FROM unnest(%(unfinished)s::text[]) x
                           WHERE pg_visible_in_snapshot(x::xid8, pg_current_snapshot()))
RETURNING snapshot::text, pg_current_xact_id()::text;
