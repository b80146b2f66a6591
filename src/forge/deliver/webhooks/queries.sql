-- add: A new endpoint; no row where the name is taken.
INSERT INTO forge.webhook (name, url, secrets, tables, ops, columns, condition, envelope, payload, batch, in_flight,
                           timeout, tries, headers, allow)
VALUES (%(name)s, %(url)s, %(secrets)s, %(tables)s, %(ops)s, %(columns)s, %(condition)s, %(envelope)s,
        %(payload)s::jsonb, %(batch)s, %(in_flight)s, %(timeout)s, %(tries)s, %(headers)s::jsonb, %(allow)s)
ON CONFLICT (name) DO NOTHING RETURNING name;

-- all: Every endpoint, or one, with the secrets that are in force.
SELECT w.name, w.url,
       CASE WHEN w.rotated_until IS NULL OR w.rotated_until > clock_timestamp() THEN w.secrets ELSE w.secrets[1:1] END,
       w.tables, w.ops, w.columns, w.condition, w.envelope, w.payload::text, w.batch, w.in_flight, w.timeout, w.tries,
       w.headers::text, w.allow
FROM forge.webhook w WHERE %(name)s::text IS NULL OR w.name = %(name)s ORDER BY w.name;

-- rotate: A new secret; the one before it signs too for a while.
UPDATE forge.webhook SET secrets = ARRAY[%(secret)s, secrets[1]],
    rotated_until = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE name = %(name)s RETURNING name;

-- remove: An endpoint that is no more.
DELETE FROM forge.webhook WHERE name = %(name)s RETURNING name;
