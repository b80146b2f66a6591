-- register: Add a consumer's shard, if it is new to the database.
WITH made AS (
    INSERT INTO forge.consumer (name, shard, shards, tables)
    SELECT %(name)s, s, %(shards)s, %(tables)s FROM generate_series(0, %(shards)s::integer - 1) s
    ON CONFLICT (name, shard) DO UPDATE SET tables = excluded.tables
    WHERE forge.consumer.tables IS DISTINCT FROM excluded.tables
)
INSERT INTO forge.consumer_cursor (name, shard, cursor)
SELECT %(name)s, s, %(cursor)s FROM generate_series(0, %(shards)s::integer - 1) s
ON CONFLICT (name, shard) DO NOTHING;

-- register_source: Add a consumer of another source, if it is new to the database; its cursor may be now or start.
WITH made AS (
    INSERT INTO forge.consumer (name, tables, source) VALUES (%(name)s, %(tables)s, %(source)s)
    ON CONFLICT (name, shard) DO UPDATE SET tables = excluded.tables, source = excluded.source
    WHERE (forge.consumer.tables, forge.consumer.source) IS DISTINCT FROM (excluded.tables, excluded.source)
)
INSERT INTO forge.consumer_cursor (name, shard, cursor) VALUES (%(name)s, 0, %(cursor)s)
ON CONFLICT (name, shard) DO NOTHING;

-- readers: The consumers of a source with the source of each, and the consumer of a name.
SELECT c.name, c.source FROM forge.consumer c
WHERE c.shard = 0 AND (c.name = %(name)s OR c.source = %(source)s) ORDER BY c.name;

-- standing: Every shard of a consumer, in order.
SELECT r.id, c.shard, c.shards, r.cursor FROM forge.consumer c JOIN forge.consumer_cursor r USING (name, shard)
WHERE c.name = %(name)s ORDER BY c.shard;

-- reshard: Set another number of shards, all at one position; letters find their shard by their hash.
WITH kept AS (UPDATE forge.consumer SET shards = %(shards)s WHERE name = %(name)s AND shard < %(shards)s),
     fenced AS (UPDATE forge.consumer_cursor SET fence = fence + 1 WHERE name = %(name)s AND shard < %(shards)s),
     gone AS (DELETE FROM forge.consumer WHERE name = %(name)s AND shard >= %(shards)s),
     met AS (DELETE FROM forge.consumer_barrier WHERE consumer = %(name)s),
     made AS (
         INSERT INTO forge.consumer (name, shard, shards, tables, state)
         SELECT c.name, s, %(shards)s, c.tables, c.state
         FROM generate_series(0, %(shards)s::integer - 1) s JOIN forge.consumer c ON c.name = %(name)s AND c.shard = 0
         WHERE NOT EXISTS (SELECT FROM forge.consumer o WHERE o.name = %(name)s AND o.shard = s))
INSERT INTO forge.consumer_cursor (name, shard, cursor)
SELECT %(name)s, s, %(cursor)s FROM generate_series(0, %(shards)s::integer - 1) s
WHERE NOT EXISTS (SELECT FROM forge.consumer_cursor o WHERE o.name = %(name)s AND o.shard = s);

-- shards: The state of a node's consumers: state, fence, and whether letters are marked for replay.
SELECT r.id, c.name, c.shard, c.shards, c.state, r.fence,
       EXISTS (SELECT FROM forge.dead_letter d WHERE d.consumer = c.name AND d.replay)
FROM forge.consumer c JOIN forge.consumer_cursor r USING (name, shard)
WHERE c.name = ANY (%(names)s) ORDER BY c.name, c.shard;

-- holders: The sessions that hold leases of consumers: (session, kind of lease, number of a shard).
SELECT l.pid, split_part(l.name, ' ', 1), split_part(l.name, ' ', 2)::bigint FROM forge.held_lease l
WHERE l.name ~ '^(shard|member) ';

-- take_over: Set a new owner, with a new unique fence.
UPDATE forge.consumer_cursor r SET fence = r.fence + 1 FROM forge.consumer c
WHERE r.id = %(id)s AND c.name = r.name AND c.shard = r.shard AND c.state = 'running'
RETURNING r.cursor, r.fence;

-- own: Record the worker of a shard.
UPDATE forge.consumer SET owner = %(owner)s, tries = 0 WHERE name = %(name)s AND shard = %(shard)s;

-- disown: Record that a shard has no worker, unless another has begun.
UPDATE forge.consumer SET owner = NULL, tries = 0 WHERE name = %(name)s AND shard = %(shard)s AND owner = %(owner)s;

-- save: Save the cursor, only as the holder of the fence; no row means that another worker has it.
UPDATE forge.consumer_cursor SET cursor = %(cursor)s, saved_at = clock_timestamp()
WHERE id = %(id)s AND fence = %(fence)s RETURNING id;

-- flush: Bring all earlier commits to disk; no row means that the fence is gone.
UPDATE forge.consumer_cursor SET saved_at = saved_at
WHERE id = %(id)s AND fence = %(fence)s AND set_config('synchronous_commit', 'on', true) = 'on' RETURNING id;

-- keep_page: Store the current batch of a source; in binary form, because escaping the quotes of many texts is slow.
INSERT INTO forge.consumer_page (id, cursor, changes) VALUES (%(id)s, %(cursor)s, %(changes)b)
ON CONFLICT (id) DO UPDATE SET cursor = excluded.cursor, changes = excluded.changes;

-- drop_page: Delete a handled batch.
DELETE FROM forge.consumer_page WHERE id = %(id)s;

-- kept_page: The stored batch, and the cursor after it.
SELECT p.cursor, p.changes FROM forge.consumer_page p WHERE p.id = %(id)s;

-- fenced: Whether the fence still holds, until the end of this transaction.
SELECT id FROM forge.consumer_cursor WHERE id = %(id)s AND fence = %(fence)s FOR SHARE;

-- report: Store the state of a shard; counts are added.
UPDATE forge.consumer SET delivered = delivered + %(delivered)s, retried = retried + %(retried)s,
    parked = parked + %(parked)s, tries = %(tries)s, lag_events = %(lag_events)s, lag_seconds = %(lag_seconds)s,
    lag_bytes = %(lag_bytes)s, last_error = coalesce(%(error)s, last_error),
    error_at = CASE WHEN %(error)s::text IS NULL THEN error_at ELSE clock_timestamp() END,
    reported_at = clock_timestamp()
WHERE name = %(name)s AND shard = %(shard)s;

-- expire: The changes after the cursor are gone: no worker begins before an operator sets a new position.
UPDATE forge.consumer SET state = 'expired', last_error = %(error)s, error_at = clock_timestamp()
WHERE name = %(name)s AND shard = %(shard)s AND state = 'running';

-- lag: The number of changes of its tables after a cursor, up to a limit, and the time of the oldest.
WITH behind AS (
    SELECT l.at FROM forge.forge_event_log l
    WHERE {after_snapshot}
      AND {of_this_log}
      AND (%(until)s::text IS NULL OR NOT pg_visible_in_snapshot(l.transaction_id, %(until)s::text::pg_snapshot)
           OR ({position}) > (%(place)s::bigint, %(last)s::bigint))
      AND (%(tables)s::text[] IS NULL OR l.version = ANY (ARRAY(
          SELECT v.id FROM forge.table_version v
          WHERE v.table_name ~ ANY (%(tables)s) OR v.schema_name || '.' || v.table_name ~ ANY (%(tables)s))))
    LIMIT %(most)s
)
SELECT count(*), extract(epoch FROM clock_timestamp() - min(b.at))::double precision FROM behind b;

-- park: Park a change, once even if repeated. A change that was to wait behind letters that are discarded meanwhile, or
-- being replayed, is replayed with them.
INSERT INTO forge.dead_letter (consumer, hash, schema_name, table_name, key, change_id, change, error, tries, behind, replay)
VALUES (%(consumer)s, %(hash)s, %(schema)s, %(table)s, %(key)s, %(change_id)s, %(change)s, %(error)s, %(tries)s, %(behind)s,
    %(behind)s AND NOT EXISTS (
        SELECT FROM forge.dead_letter o
        WHERE o.consumer = %(consumer)s AND (o.schema_name, o.table_name) = (%(schema)s, %(table)s) AND NOT o.replay
          AND (o.key IS NULL OR %(key)s::text IS NULL OR o.key = %(key)s)))
ON CONFLICT (consumer, change_id) DO NOTHING;

-- blocked: Those of these rows that have letters, or whose table has: later changes must queue behind them.
SELECT DISTINCT d.schema_name, d.table_name, d.key FROM forge.dead_letter d
WHERE d.consumer = %(consumer)s AND (d.schema_name, d.table_name) IN (
    SELECT s, t FROM unnest(%(schemas)s::text[], %(tables)s::text[]) u (s, t))
  AND (d.key IS NULL OR d.key = ANY (%(keys)s));

-- blocked_tables: Those of these tables that have letters of any row.
SELECT DISTINCT d.schema_name, d.table_name FROM forge.dead_letter d
WHERE d.consumer = %(consumer)s AND (d.schema_name, d.table_name) IN (
    SELECT s, t FROM unnest(%(schemas)s::text[], %(tables)s::text[]) u (s, t));

-- any_letters: Whether a consumer has letters at all.
SELECT EXISTS (SELECT FROM forge.dead_letter d WHERE d.consumer = %(consumer)s);

-- next_letter: The first letter of a shard that is marked for replay and has none before it.
SELECT d.id, d.change FROM forge.dead_letter d
WHERE d.consumer = %(consumer)s AND d.replay AND d.hash %% %(shards)s = %(shard)s
  AND NOT EXISTS (
      SELECT FROM forge.dead_letter o
      WHERE o.consumer = d.consumer AND o.schema_name = d.schema_name AND o.table_name = d.table_name AND o.id < d.id
        AND (o.key IS NULL OR d.key IS NULL OR o.key = d.key))
ORDER BY d.id LIMIT 1;

-- letter_sent: Delete a handled letter.
DELETE FROM forge.dead_letter WHERE id = %(id)s;

-- keep_letters: Block parking until the end of this transaction.
LOCK TABLE forge.dead_letter IN SHARE ROW EXCLUSIVE MODE;

-- discard_letter: Delete a letter; those that waited behind it, and behind no other failed letter, are replayed.
-- Returns the number of deleted letters. A whole-table change waits behind all rows, and then all rows behind it.
WITH gone AS (
    DELETE FROM forge.dead_letter WHERE id = %(id)s RETURNING id, consumer, schema_name, table_name, key
), left_over AS (
    SELECT d.id, d.key, d.behind, d.replay FROM forge.dead_letter d JOIN gone g
      ON d.consumer = g.consumer AND d.schema_name = g.schema_name AND d.table_name = g.table_name AND d.id <> g.id
), released AS (
    UPDATE forge.dead_letter u SET replay = true FROM left_over d, gone g
    WHERE u.id = d.id AND d.id > g.id AND d.behind
      AND (d.key = g.key OR d.key IS NULL OR g.key IS NULL OR EXISTS (
          SELECT FROM left_over t WHERE t.key IS NULL AND t.id BETWEEN g.id AND d.id))
      AND NOT EXISTS (
          SELECT FROM left_over o
          WHERE o.id < d.id AND NOT o.behind AND NOT o.replay AND (o.key IS NULL OR d.key IS NULL OR o.key = d.key OR EXISTS (
              SELECT FROM left_over t WHERE t.key IS NULL AND t.id BETWEEN o.id AND d.id)))
)
SELECT count(*) FROM gone;

-- letter_failed: Keep a letter and all behind it; unless it was discarded meanwhile, which released them.
UPDATE forge.dead_letter d SET replay = false,
    error = CASE WHEN d.id = %(id)s THEN %(error)s ELSE d.error END,
    tries = CASE WHEN d.id = %(id)s THEN d.tries + %(tries)s ELSE d.tries END,
    behind = d.id <> %(id)s
WHERE d.consumer = %(consumer)s AND d.id >= %(id)s AND (d.schema_name, d.table_name) = (%(schema)s, %(table)s)
  AND (%(key)s::text IS NULL OR d.key IS NULL OR d.key = %(key)s)
  AND EXISTS (SELECT FROM forge.dead_letter l WHERE l.id = %(id)s);

-- once: True in the first transaction that inserts the id.
INSERT INTO forge.consumer_once (consumer, id) VALUES (%(consumer)s, %(id)s) ON CONFLICT DO NOTHING RETURNING true;

-- arrive: Record that a shard has handled everything before a whole-table change.
INSERT INTO forge.consumer_barrier (consumer, change_id, shard) VALUES (%(consumer)s, %(change_id)s, %(shard)s)
ON CONFLICT DO NOTHING;

-- arrived: The number of shards that have arrived, whether the change is handled, and the first shard that waits there;
-- the number of shards that wait at any change, and the first change that is waited for.
WITH waiting AS (
    SELECT b.change_id, b.shard FROM forge.consumer_barrier b WHERE b.consumer = %(consumer)s AND NOT EXISTS (
        SELECT FROM forge.consumer_barrier d WHERE d.consumer = b.consumer AND d.change_id = b.change_id AND d.done)
)
SELECT count(*), coalesce(bool_or(b.done), false), min(b.shard),
       (SELECT count(DISTINCT w.shard) FROM waiting w), (SELECT min(w.change_id) FROM waiting w)
FROM forge.consumer_barrier b WHERE b.consumer = %(consumer)s AND b.change_id = %(change_id)s;

-- passed: Record that the change at a barrier is handled, and that its shard continues.
UPDATE forge.consumer_barrier SET done = true WHERE consumer = %(consumer)s AND change_id = %(change_id)s;

-- list: Every shard: its stored state, its worker, and the number of letters of its consumer.
SELECT c.name, c.shard, c.shards, c.tables, c.state, c.owner, r.id, r.cursor, r.fence, r.saved_at, c.delivered, c.retried,
       c.parked, c.tries, c.last_error, c.error_at, c.source, c.lag_events, c.lag_seconds, c.lag_bytes,
       (SELECT count(*) FROM forge.dead_letter d WHERE d.consumer = c.name AND d.hash %% c.shards = c.shard),
       EXISTS (SELECT FROM forge.held_lease l WHERE l.name = 'shard ' || r.id)
FROM forge.consumer c JOIN forge.consumer_cursor r USING (name, shard)
WHERE %(name)s::text IS NULL OR c.name = %(name)s ORDER BY c.name, c.shard;

-- pause: Let no worker begin; running workers end after the current call.
UPDATE forge.consumer SET state = 'paused' WHERE name = %(name)s AND state = 'running';

-- resume: Let workers begin again.
UPDATE forge.consumer SET state = 'running' WHERE name = %(name)s AND state = 'paused';

-- rewind: Set another position for every shard; its worker finds its fence gone.
WITH moved AS (
    UPDATE forge.consumer_cursor SET cursor = %(cursor)s, fence = fence + 1, saved_at = clock_timestamp()
    WHERE name = %(name)s
), met AS (
    DELETE FROM forge.consumer_barrier WHERE consumer = %(name)s
), kept AS (
    DELETE FROM forge.consumer_page WHERE id IN (SELECT r.id FROM forge.consumer_cursor r WHERE r.name = %(name)s)
)
UPDATE forge.consumer SET state = 'running', last_error = NULL, error_at = NULL, lag_events = NULL, lag_seconds = NULL,
    lag_bytes = NULL
WHERE name = %(name)s AND state = 'expired';

-- instant: The snapshot of the last recorded instant at or before a time.
SELECT i.at, i.snapshot::text FROM forge.instant i WHERE i.at <= %(at)s ORDER BY i.at DESC LIMIT 1;

-- oldest_instant: The first recorded instant.
SELECT min(i.at) FROM forge.instant i;

-- trimmed: Whether changes are gone that a snapshot did not show.
SELECT forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[],
                           (SELECT i.first_id FROM forge.log_identity i ORDER BY i.id DESC LIMIT 1));

-- ask_replay: Mark letters for replay: all of a consumer, or those of one table or row.
UPDATE forge.dead_letter d SET replay = true
WHERE d.consumer = %(consumer)s
  AND (%(table)s::text IS NULL OR d.table_name = %(table)s OR d.schema_name || '.' || d.table_name = %(table)s)
  AND (%(key)s::text IS NULL OR d.key = %(key)s);

-- replay_letter: Mark a letter for replay, with all of its row or whole table: it is replayed only when none is before
-- it.
UPDATE forge.dead_letter d SET replay = true FROM forge.dead_letter l
WHERE l.id = %(id)s AND d.consumer = l.consumer AND (d.schema_name, d.table_name) = (l.schema_name, l.table_name)
  AND (d.key = l.key OR d.key IS NULL OR l.key IS NULL);

-- replaying: The number of letters marked for replay, and of all letters.
SELECT count(*) FILTER (WHERE d.replay), count(*) FROM forge.dead_letter d WHERE d.consumer = %(consumer)s;

-- letters: The parked changes, in order.
SELECT d.id, d.schema_name, d.table_name, d.key, d.change_id, d.error, d.tries, d.behind, d.replay, d.parked_at, d.change
FROM forge.dead_letter d WHERE d.consumer = %(consumer)s ORDER BY d.id LIMIT %(limit)s;

-- parked: The letters of all consumers, in order, without their changes.
SELECT d.id, d.consumer, d.schema_name || '.' || d.table_name, d.key, d.change_id, d.error, d.tries, d.behind, d.replay,
       d.parked_at
FROM forge.dead_letter d ORDER BY d.id LIMIT %(limit)s;

-- forget: Delete a consumer: its cursor, letters and handled ids.
WITH letters AS (DELETE FROM forge.dead_letter WHERE consumer = %(name)s),
     met AS (DELETE FROM forge.consumer_barrier WHERE consumer = %(name)s),
     done AS (DELETE FROM forge.consumer_once WHERE consumer = %(name)s)
DELETE FROM forge.consumer WHERE name = %(name)s;

-- snapshot_now: The present snapshot.
SELECT pg_current_snapshot()::text;
