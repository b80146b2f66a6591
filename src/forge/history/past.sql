-- before_barrier: Whether a log row `l` is before the barrier, if there is one.
(%(barrier_place)s::bigint IS NULL OR ({position}) < (%(barrier_place)s::bigint, %(barrier_id)s::bigint));

-- of_row: Whether a log row `l` is about a single row.
l.row_id = %(row_id)s::text;

-- until: Whether the snapshot sees a log row `l` of the table, written since the table's rows are known.
l.id >= %(first)s AND l.version = ANY (%(versions)s) AND pg_visible_in_snapshot(l.transaction_id, %(snapshot)s::text::pg_snapshot)
AND l.id > %(trimmed_id)s AND ({position}) > (%(floor_place)s::bigint, %(floor_id)s::bigint);

-- last: The last change of each row that the snapshot sees.
SELECT DISTINCT ON (l.row_id) l.row_id, l.op, l.version, l.after
FROM forge.forge_event_log l WHERE l.op IN ('I', 'U', 'D') AND {until} AND {one}
ORDER BY l.row_id, coalesce(l.rank, l.id) DESC, l.id DESC;

-- no_last: As last, where it is not needed.
SELECT NULL::text AS row_id, NULL::text AS op, NULL::integer AS version, NULL::json AS after WHERE false;

-- keyed: The rows of a table with a key: for each row changed since, its first change since and its last one up to the
-- snapshot; then the rest.
WITH first AS MATERIALIZED ({first}), last AS MATERIALIZED ({last})
SELECT f.op::text, f.version, f.before::text, f.after::text, a.version, a.after::text
FROM first f LEFT JOIN last a USING (row_id) WHERE f.op <> 'I'
UNION ALL {rest};

-- rest_behind: The rest behind a barrier: rows not changed from the snapshot up to it.
SELECT NULL, NULL, NULL, NULL, a.version, a.after::text
FROM last a WHERE a.op <> 'D' AND NOT EXISTS (SELECT FROM first f WHERE f.row_id = a.row_id);

-- rest_now: The rest without a barrier: rows not changed since are the current ones.
SELECT NULL, {version}, row_to_json({alias}_image)::text, NULL, a.version, a.after::text
FROM {relation} {alias}{source} LEFT JOIN last a ON a.row_id = {row_id}
WHERE NOT EXISTS (SELECT FROM first f WHERE f.row_id = {row_id}) AND {same};

-- counted: The number of rows per image in a table without a key: from now backwards, or from when it was empty.
SELECT sum(c.n)::bigint, c.image
FROM (
    SELECT r.n, {image} AS image
    FROM ({now}
          SELECT {removed}, {before}, l.version FROM forge.forge_event_log l WHERE l.op IN ('U', 'D') AND {bounds}
          UNION ALL
          SELECT {added}, l.after::text, l.version FROM forge.forge_event_log l WHERE l.op IN ('I', 'U') AND {bounds}
         ) r (n, image, version)) c
GROUP BY c.image HAVING sum(c.n) <> 0;

-- rows_now: The current rows, for counted.
SELECT 1, row_to_json({alias}_image)::text, {version} FROM {relation} {alias}{source};

-- projected: An image `r` in the form of the past definition: without columns that were added since, under the names of
-- then.
CASE WHEN r.version = ANY (%(others)s) THEN (
    SELECT '{' || coalesce(string_agg(to_json(m.new)::text || ':' || e.value::text, ',' ORDER BY m.n), '') || '}'
    FROM json_each(r.image::json) e
    JOIN unnest(%(others)s::int[], %(old_names)s::text[], %(new_names)s::text[], %(numbers)s::int[]) m (version, old, new, n)
      ON m.version = r.version AND m.old = e.key) ELSE r.image END;

-- changes: The number of changes of the table, written by an instant, that a snapshot does not see and a newer one
-- does; counted up to a limit.
SELECT count(*) FROM (
    SELECT FROM forge.forge_event_log l
    WHERE l.id >= %(first)s AND l.version = ANY (%(versions)s) AND {after_snapshot} AND l.at <= %(asked)s
      AND (%(newer)s::text IS NULL OR pg_visible_in_snapshot(l.transaction_id, %(newer)s::text::pg_snapshot))
    LIMIT %(most)s) c;

-- trimmed: Whether log rows that a snapshot does not see were trimmed.
SELECT forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[], %(first)s);

-- first_seeing: The first recorded instant from a time on that sees a transaction, and after which the log is complete.
SELECT i.at FROM forge.instant i
WHERE i.at >= %(at)s AND (%(xid)s::text IS NULL OR pg_visible_in_snapshot(%(xid)s::text::xid8, i.snapshot))
  AND (%(whole)s OR NOT forge.trimmed_since(pg_snapshot_xmax(i.snapshot), ARRAY(SELECT pg_snapshot_xip(i.snapshot)), %(first)s))
ORDER BY i.at LIMIT 1;
