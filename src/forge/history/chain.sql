-- links: Every seal with its checks: its own head, that it follows from the previous seal, that none is missing, that
-- it is complete.
SELECT s.id, CASE WHEN isfinite(s.day) THEN s.day END, encode(s.head, 'hex'), s.head = forge.seal_head(s),
       s.id = 0 OR s.previous IS NOT DISTINCT FROM lag(s.head) OVER w, s.id = 0 OR s.id IS NOT DISTINCT FROM lag(s.id) OVER w + 1,
       CASE WHEN s.events IS NULL THEN s.salts IS NULL AND s.digests IS NULL
            ELSE s.root = sha256(s.digests) AND octet_length(s.digests) = 32 * s.rows AND octet_length(s.salts) = 32 * s.rows
                 AND cardinality(s.events) = s.rows END
       AND octet_length(s.definitions) IS NOT DISTINCT FROM 32 * cardinality(s.versions)
FROM forge.log_seal s
WINDOW w AS (ORDER BY s.id)
ORDER BY s.id;

-- definitions: The table versions that differ from their seals, or are gone; and how many are sealed, in a row of
-- NULLs.
WITH sealed AS MATERIALIZED (
    SELECT s.id AS seal, k.id, substr(s.definitions, (32 * (k.n - 1) + 1)::integer, 32) AS digest
    FROM forge.log_seal s CROSS JOIN LATERAL unnest(s.versions) WITH ORDINALITY k (id, n)
    WHERE s.versions IS NOT NULL
)
SELECT NULL::bigint AS seal, NULL::integer AS id, NULL::boolean AS gone, count(*) AS sealed FROM sealed
UNION ALL SELECT s.seal, s.id, v.id IS NULL, NULL FROM sealed s LEFT JOIN forge.table_version v ON v.id = s.id
WHERE v.id IS NULL OR forge.definition_digest(v) IS DISTINCT FROM s.digest
ORDER BY seal NULLS FIRST, id;

-- sealed_days: The days that have seals, whether the seals lost their digests of rows, and how many rows they covered.
SELECT s.day, bool_or(s.events IS NULL), sum(s.rows) FROM forge.log_seal s WHERE s.rows > 0 AND isfinite(s.day) GROUP BY s.day ORDER BY s.day;

-- day: Compares the rows of one day with their seals. First a row of counts: sealed, redacted, unsealed; then findings.
WITH newest AS (
    SELECT s.*, (SELECT min(i.first_id) FROM forge.log_identity i WHERE i.uuid::text = s.log) AS first_id,
           coalesce((SELECT min(n.first_id) FROM forge.log_identity n WHERE n.id > ANY (
               SELECT i.id FROM forge.log_identity i WHERE i.uuid::text = s.log)), 9223372036854775807) AS next_id
    FROM forge.log_seal s ORDER BY s.id DESC LIMIT 1
), sealed AS MATERIALIZED (
    SELECT s.id AS seal, e.id, substr(s.salts, (32 * (e.n - 1) + 1)::integer, 32) AS salt,
           substr(s.digests, (32 * (e.n - 1) + 1)::integer, 32) AS digest
    FROM forge.log_seal s CROSS JOIN LATERAL unnest(s.events) WITH ORDINALITY e (id, n)
    WHERE s.day = %(day)s::text::date
), unsealed AS MATERIALIZED (
    -- covered: the newest seal, or one before it, had to take it
    SELECT l.id, coalesce(l.id < newest.first_id OR l.id < newest.next_id AND (
               pg_visible_in_snapshot(l.transaction_id, newest.since)
               OR pg_visible_in_snapshot(l.transaction_id, newest.until)
                  AND (l.day, coalesce(l.rank, l.id), l.id) <= (newest.day, newest.last_place, newest.last_id)), false) AS covered
    FROM forge.forge_event_log l CROSS JOIN newest
    WHERE l.day = %(day)s::text::date AND NOT EXISTS (SELECT FROM sealed WHERE sealed.id = l.id)
), compared AS MATERIALIZED (
    SELECT sealed.id, sealed.seal, r.event_id IS NOT NULL AS redacted, CASE
        WHEN l.id IS NULL THEN CASE WHEN %(day)s <> 'infinity' OR sealed.id > coalesce((
            SELECT max(t.last_id) FROM forge.trimmed t WHERE t.partition = 'forge_event_overflow'), 0) THEN 'removed' END
        WHEN d.digest IS DISTINCT FROM sealed.digest THEN 'changed'
        WHEN r.event_id IS NOT NULL AND NOT (
            r.columns <@ ARRAY(SELECT unnest(t.hidden) FROM forge.forge_event_log t
                               WHERE t.op = 'R' AND t.id = ANY (r.tombstones) AND t.row_id = l.row_id)
            AND (SELECT coalesce(bool_and(substr(p.path, strpos(p.path, '.') + 1) = ANY (r.columns || text '$redacted')), true)
                 FROM jsonb_each(r.proof) p (path, value) WHERE p.value ? 'leaf')
            AND NOT EXISTS (
                SELECT FROM (SELECT * FROM json_each(l.before) UNION ALL SELECT * FROM json_each(l.after)) v (name, value)
                WHERE v.name = ANY (r.columns) AND v.value::text <> '{"$redacted":true}')
            AND coalesce(r.hidden, '{}') <@ coalesce(l.hidden, '{}')
            AND coalesce(l.hidden, '{}') <@ (coalesce(r.hidden, '{}') || r.columns)) THEN 'redacted' END AS what
    FROM sealed
    LEFT JOIN forge.forge_event_log l ON l.day = %(day)s::text::date AND l.id = sealed.id
    LEFT JOIN forge.redaction r ON r.event_id = sealed.id
    -- where something was redacted, each value is proved by its own salt, or, if it is gone, by the digest that was
    -- kept
    CROSS JOIN LATERAL (
        SELECT sha256(string_agg(CASE
            WHEN r.event_id IS NULL THEN sha256(sha256(sealed.salt || convert_to(v.path, 'UTF8')) || convert_to(v.value, 'UTF8'))
            ELSE coalesce(decode(r.proof -> v.path ->> 'leaf', 'hex'),
                          sha256(coalesce(decode(r.proof -> v.path ->> 'salt', 'hex'), '') || convert_to(v.value, 'UTF8')))
            END, ''::bytea ORDER BY v.n)) AS digest
        FROM forge.event_leaves(l, CASE WHEN r.event_id IS NULL THEN l.hidden ELSE r.hidden END) v
        WHERE r.event_id IS NULL OR v.name IS DISTINCT FROM '$redacted' OR r.proof ? v.path) d
)
SELECT (SELECT count(*) FROM compared), (SELECT count(*) FROM compared WHERE redacted),
       CASE WHEN (SELECT count(*) FROM newest) > 0 THEN (SELECT count(*) FROM unsealed WHERE NOT covered) ELSE 0 END::text
UNION ALL (SELECT c.id, c.seal, c.what FROM compared c WHERE c.what IS NOT NULL ORDER BY c.id LIMIT %(most)s)
UNION ALL (SELECT c.id, c.seal, 'inserted' FROM compared c GROUP BY c.id, c.seal HAVING count(*) > 1 ORDER BY c.id LIMIT %(most)s)
UNION ALL (SELECT u.id, NULL, 'inserted' FROM unsealed u WHERE u.covered ORDER BY u.id LIMIT %(most)s);
