-- settings: Settings of a worker's session. A worker that is silent for the length of the lease loses its rows; its
-- deletes need not be on disk, because a message that comes back is sent again; the planner must never scan the whole
-- outbox for a claim.
SELECT set_config('synchronous_commit', 'off', false), set_config('jit', 'off', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false), set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('lock_timeout', '0', false), set_config('idle_in_transaction_session_timeout', %(lease)s, false),
       set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10000', false);

-- claim: The next page of a route's messages after a position. Messages that may be sent are locked: all messages of
-- their key before them are locked too, in this page, and none of them waits for a retry. A session that cannot lock
-- the first message of a key locks none of it. `place` counts within a key; a message that another worker has leaves a
-- gap. The result includes the WAL position that must be flushed for all of it to be on disk, read before any lock, and
-- per message whether it is known to be on disk, because a durable snapshot shows it. A page ends early where its
-- payloads grow large.
WITH head AS MATERIALIZED (
    SELECT pg_current_wal_insert_lsn() AS lsn, pg_current_wal_flush_lsn() AS flushed, clock_timestamp() AS now,
           pg_current_snapshot() AS snapshot, $4::pg_snapshot AS safe
), seen AS MATERIALIZED (
    SELECT o.seq, o.key, o.retry_at,
           sum(octet_length(o.payload)) OVER (ORDER BY o.seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - octet_length(o.payload) AS before
    FROM forge.outbox o
    WHERE o.seq > $1 AND o.topic ~ %(take)s AND (%(leave)s::text IS NULL OR o.topic !~ %(leave)s)
      AND (SELECT h.lsn FROM head h) IS NOT NULL
    ORDER BY o.seq LIMIT $2
), linked AS (
    SELECT p.seq, p.key, row_number() OVER w AS place, first_value(p.seq) OVER w AS first,
           p.retry_at IS NULL OR p.retry_at <= (SELECT h.now FROM head h) AS ready,
           p.key IS NULL OR lag(p.seq) OVER w IS NOT DISTINCT FROM (
               SELECT b.seq FROM forge.outbox b WHERE b.key = p.key AND b.seq < p.seq ORDER BY b.seq DESC LIMIT 1) AS next
    FROM seen p WHERE p.before < %(bytes)s WINDOW w AS (PARTITION BY p.key ORDER BY p.seq)
), chained AS MATERIALIZED (
    SELECT l.seq, l.key, CASE WHEN l.key IS NULL THEN 1 ELSE l.place END AS place, l.first, l.next,
           CASE WHEN l.key IS NULL THEN l.ready ELSE bool_and(l.ready AND l.next) OVER (PARTITION BY l.key ORDER BY l.seq) END AS free,
           l.key IS NOT NULL AND EXISTS (SELECT FROM forge.outbox_dead d WHERE d.key = l.key) AS behind
    FROM linked l
), page AS MATERIALIZED (
    SELECT max(c.seq) AS last, count(*) AS size, bool_or(NOT c.next) AS blocked, bool_or(c.free) AS free FROM chained c
), firsts AS MATERIALIZED (
    SELECT c.place, c.behind, o.seq, o.id::text AS id, o.topic, o.key, o.payload, o.content_type, o.headers, o.at, o.tries,
           pg_visible_in_snapshot(o.xid, (SELECT h.safe FROM head h)) AS sure
    FROM chained c JOIN forge.outbox o ON o.seq = c.seq
    WHERE c.free AND c.place = 1 AND (o.retry_at IS NULL OR o.retry_at <= (SELECT h.now FROM head h))
    ORDER BY o.seq LIMIT $3 FOR UPDATE OF o SKIP LOCKED
), others AS MATERIALIZED (
    SELECT c.place, c.behind, o.seq, o.id::text AS id, o.topic, o.key, o.payload, o.content_type, o.headers, o.at, o.tries,
           pg_visible_in_snapshot(o.xid, (SELECT h.safe FROM head h)) AS sure
    FROM chained c JOIN forge.outbox o ON o.seq = c.seq
    WHERE c.free AND c.place > 1 AND c.first = ANY (ARRAY(SELECT f.seq FROM firsts f))
      AND (o.retry_at IS NULL OR o.retry_at <= (SELECT h.now FROM head h))
    ORDER BY o.seq LIMIT $3 FOR UPDATE OF o SKIP LOCKED
)
SELECT h.snapshot::text, h.lsn::text, h.flushed >= h.lsn, p.last,
       (SELECT count(*) FROM seen s) >= least($2, p.size + 1), p.blocked, p.free, l.*
FROM head h CROSS JOIN page p LEFT JOIN (SELECT * FROM firsts UNION ALL SELECT * FROM others) l ON true ORDER BY l.seq;

-- sent: Delete delivered messages.
DELETE FROM forge.outbox WHERE seq = ANY ($1);

-- failed: Schedule a retry of each message after its delay in seconds.
UPDATE forge.outbox o SET tries = o.tries + f.counts, retry_at = clock_timestamp() + f.delay * interval '1 second', error = f.error
FROM unnest(%(seqs)s::bigint[], %(counts)s::integer[], %(delays)s::double precision[], %(errors)s::text[]) f (seq, counts, delay, error)
WHERE o.seq = f.seq;

-- park: Park messages that were refused, or failed too often.
WITH gone AS (
    DELETE FROM forge.outbox o USING unnest(%(seqs)s::bigint[], %(errors)s::text[]) f (seq, error)
    WHERE o.seq = f.seq RETURNING o.*, f.error AS why
)
INSERT INTO forge.outbox_dead (seq, id, topic, key, payload, content_type, headers, at, xid, tries, error, behind)
SELECT g.seq, g.id, g.topic, g.key, g.payload, g.content_type, g.headers, g.at, g.xid, g.tries + 1, g.why, false FROM gone g;

-- hold_dead: Block replays of dead letters until the end of this transaction.
LOCK TABLE forge.outbox_dead IN ROW EXCLUSIVE MODE;

-- park_behind: Park messages behind a dead letter of their key, if there still is one.
WITH gone AS (
    DELETE FROM forge.outbox o WHERE o.seq = ANY (%(seqs)s)
      AND EXISTS (SELECT FROM forge.outbox_dead d WHERE d.key = o.key) RETURNING o.*
)
INSERT INTO forge.outbox_dead (seq, id, topic, key, payload, content_type, headers, at, xid, tries, error, behind)
SELECT g.seq, g.id, g.topic, g.key, g.payload, g.content_type, g.headers, g.at, g.xid, g.tries, g.error, true FROM gone g;

-- next_try: The seconds until the next retry; NULL when no message waits for one.
SELECT extract(epoch FROM min(o.retry_at) - clock_timestamp())::double precision FROM forge.outbox o
WHERE o.retry_at > statement_timestamp();

-- next_due: The seconds until the next scheduled message is due; NULL when there is none.
SELECT extract(epoch FROM min(l.due_at) - clock_timestamp())::double precision FROM forge.outbox_later l;

-- promote: Move due messages into the outbox, in the order of their time; one session at a time does so, the one that
-- locks the row of forge.outbox_turn. Their retry_at, which is in the past, records since when they wait.
WITH turn AS MATERIALIZED (
    SELECT true FROM forge.outbox_turn FOR UPDATE SKIP LOCKED
), due AS (
    DELETE FROM forge.outbox_later l WHERE l.number IN (
        SELECT d.number FROM forge.outbox_later d
        WHERE EXISTS (SELECT FROM turn) AND d.due_at <= clock_timestamp()
        ORDER BY d.due_at, d.number LIMIT 1000)
    RETURNING l.*
), joined AS (
    INSERT INTO forge.outbox (id, topic, key, payload, content_type, headers, at, xid, retry_at)
    SELECT d.id, d.topic, d.key, d.payload, d.content_type, d.headers, d.at, d.xid, d.due_at FROM due d
    ORDER BY d.due_at, d.number
    RETURNING topic
)
SELECT count(pg_notify('forge_outbox', t.topic)) FROM (SELECT DISTINCT j.topic FROM joined j) t;

-- flushed: Whether the WAL is on disk up to a position.
SELECT pg_current_wal_flush_lsn() >= %(lsn)s::text::pg_lsn;

-- flush: Write a commit, which flushes everything before it.
SELECT pg_logical_emit_message(true, 'forge', '');

-- lag: Per topic: the number of waiting messages, the wait of the oldest, the numbers of failed, scheduled and dead
-- ones. `most` limits the count of each kind.
SELECT t.topic, sum(t.waiting)::bigint, extract(epoch FROM clock_timestamp() - min(t.since))::double precision,
       sum(t.retrying)::bigint, sum(t.scheduled)::bigint, sum(t.dead)::bigint
FROM (
    SELECT o.topic, count(*) AS waiting, min(CASE WHEN o.error IS NULL THEN coalesce(o.retry_at, o.at) ELSE o.at END) AS since,
           count(o.error) AS retrying, 0 AS scheduled, 0 AS dead
    FROM (SELECT * FROM forge.outbox ORDER BY seq LIMIT %(most)s::bigint) o GROUP BY o.topic
    UNION ALL SELECT l.topic, 0, NULL, 0, count(*), 0
    FROM (SELECT * FROM forge.outbox_later ORDER BY due_at, number LIMIT %(most)s::bigint) l GROUP BY l.topic
    UNION ALL SELECT d.topic, 0, NULL, 0, 0, count(*)
    FROM (SELECT * FROM forge.outbox_dead ORDER BY seq LIMIT %(most)s::bigint) d GROUP BY d.topic
) t
WHERE %(topic)s::text IS NULL OR t.topic = %(topic)s GROUP BY t.topic ORDER BY t.topic;

-- waiting: Messages in the order in which they will be sent, then the scheduled ones.
SELECT * FROM (
    (SELECT CASE WHEN o.error IS NULL THEN 'waiting' ELSE 'retrying' END, o.id::text, o.topic, o.key, o.at,
            o.retry_at, o.tries, o.error, octet_length(o.payload), o.xid::text
     FROM forge.outbox o WHERE %(topic)s::text IS NULL OR o.topic = %(topic)s ORDER BY o.seq LIMIT %(limit)s)
    UNION ALL
    (SELECT 'scheduled', l.id::text, l.topic, l.key, l.at, l.due_at, 0, NULL, octet_length(l.payload), l.xid::text
     FROM forge.outbox_later l WHERE %(topic)s::text IS NULL OR l.topic = %(topic)s ORDER BY l.due_at, l.number LIMIT %(limit)s)
) m LIMIT %(limit)s;

-- dead: Parked messages, in order.
SELECT CASE WHEN d.behind THEN 'behind' ELSE 'dead' END, d.id::text, d.topic, d.key, d.at, d.parked_at, d.tries, d.error,
       octet_length(d.payload), d.xid::text
FROM forge.outbox_dead d WHERE %(topic)s::text IS NULL OR d.topic = %(topic)s ORDER BY d.seq LIMIT %(limit)s;

-- keep_dead: Block parking until the end of this transaction.
LOCK TABLE forge.outbox_dead IN SHARE ROW EXCLUSIVE MODE;

-- tell: Notify the watchers of the outbox of a change.
SELECT pg_notify('forge_outbox', '');

-- drop_dead: Delete the messages that failed, not those that wait behind them.
DELETE FROM forge.outbox_dead d
WHERE NOT d.behind AND (%(topic)s::text IS NULL OR d.topic = %(topic)s) AND (%(key)s::text IS NULL OR d.key = %(key)s)
  AND (%(id)s::text IS NULL OR d.id::text = %(id)s);

-- replay_dead: Put the chosen messages, with all of the same keys, back into the outbox at their positions. Returns
-- their number.
WITH chosen AS (
    SELECT d.seq, d.key FROM forge.outbox_dead d
    WHERE (%(topic)s::text IS NULL OR d.topic = %(topic)s) AND (%(key)s::text IS NULL OR d.key = %(key)s)
      AND (%(id)s::text IS NULL OR d.id::text = %(id)s)
), gone AS (
    DELETE FROM forge.outbox_dead d
    WHERE d.seq IN (SELECT c.seq FROM chosen c) OR d.key IN (SELECT c.key FROM chosen c WHERE c.key IS NOT NULL) RETURNING d.*
), joined AS (
    INSERT INTO forge.outbox (seq, id, topic, key, payload, content_type, headers, at, xid)
    SELECT g.seq, g.id, g.topic, g.key, g.payload, g.content_type, g.headers, g.at, g.xid FROM gone g RETURNING topic
), told AS (
    SELECT count(pg_notify('forge_outbox', t.topic)) FROM (SELECT DISTINCT j.topic FROM joined j) t
)
SELECT count(*), (SELECT * FROM told) FROM joined;

-- release: Put messages that wait behind nothing back into the outbox. Returns their number.
WITH gone AS (
    DELETE FROM forge.outbox_dead d
    WHERE d.behind AND NOT EXISTS (SELECT FROM forge.outbox_dead o WHERE o.key = d.key AND NOT o.behind) RETURNING d.*
), joined AS (
    INSERT INTO forge.outbox (seq, id, topic, key, payload, content_type, headers, at, xid)
    SELECT g.seq, g.id, g.topic, g.key, g.payload, g.content_type, g.headers, g.at, g.xid FROM gone g RETURNING topic
), told AS (
    SELECT count(pg_notify('forge_outbox', t.topic)) FROM (SELECT DISTINCT j.topic FROM joined j) t
)
SELECT count(*), (SELECT * FROM told) FROM joined;
