-- add: Add an endpoint; no row where the name is taken.
INSERT INTO forge.webhook (name, url, secrets, tables, ops, columns, condition, envelope, payload, batch, in_flight,
                           timeout, tries, headers, allow)
VALUES (%(name)s, %(url)s, jsonb_build_array(jsonb_build_object('secret', %(secret)s::text)), %(tables)s, %(ops)s, %(columns)s, %(condition)s, %(envelope)s,
        %(payload)s::jsonb, %(batch)s, %(in_flight)s, %(timeout)s, %(tries)s, %(headers)s::jsonb, %(allow)s)
ON CONFLICT (name) DO NOTHING RETURNING name;

-- all: Every endpoint, or one, with its valid secrets.
SELECT w.name, w.url,
       ARRAY(SELECT s.value ->> 'secret' FROM jsonb_array_elements(w.secrets) WITH ORDINALITY s (value, place)
             WHERE s.value ->> 'until' IS NULL OR (s.value ->> 'until')::timestamptz > clock_timestamp()
             ORDER BY s.place),
       w.tables, w.ops, w.columns, w.condition, w.envelope, w.payload::text, w.batch, w.in_flight, w.timeout, w.tries,
       w.headers::text, w.allow
FROM forge.webhook w WHERE %(name)s::text IS NULL OR w.name = %(name)s ORDER BY w.name;

-- rotate: Add a secret; the current ones remain valid for a while, and none longer than before.
UPDATE forge.webhook w SET secrets = jsonb_build_array(jsonb_build_object('secret', %(secret)s::text)) || coalesce((
    SELECT jsonb_agg(jsonb_build_object('secret', s.value ->> 'secret', 'until', least(
               (s.value ->> 'until')::timestamptz, clock_timestamp() + make_interval(secs => %(seconds)s)
           )) ORDER BY s.place)
    FROM jsonb_array_elements(w.secrets) WITH ORDINALITY s (value, place)
    WHERE %(seconds)s > 0 AND (s.value ->> 'until' IS NULL OR (s.value ->> 'until')::timestamptz > clock_timestamp())
), '[]') WHERE w.name = %(name)s RETURNING w.name;

-- remove: Delete an endpoint.
DELETE FROM forge.webhook WHERE name = %(name)s RETURNING name;
