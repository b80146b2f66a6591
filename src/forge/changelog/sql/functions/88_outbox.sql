-- Puts a message into the outbox within the caller's transaction; returns its id. A message with a future due_at waits
-- until then.
CREATE OR REPLACE FUNCTION public.forge_outbox(topic text, payload bytea, key text DEFAULT NULL,
                                               content_type text DEFAULT 'application/octet-stream',
                                               headers jsonb DEFAULT NULL, due_at timestamptz DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    made uuid := gen_random_uuid();
BEGIN
    IF topic IS NULL OR topic !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}$' THEN
        RAISE EXCEPTION USING ERRCODE = 'FG401', MESSAGE = format('%s cannot be a topic', quote_nullable(left(topic, 40))),
            HINT = 'use 1 to 200 letters, digits and . _ : / - such as order.paid';
    ELSIF payload IS NULL OR octet_length(payload) > 1048576 THEN
        RAISE EXCEPTION USING ERRCODE = 'FG402', MESSAGE = format('the payload has %s bytes; 1048576 is the most', coalesce(octet_length(payload), 0)),
            HINT = 'keep the data in a table and send its key';
    ELSIF octet_length(key) > 512 OR key = '' OR octet_length(content_type) > 200 OR octet_length(headers::text) > 8192 OR jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION USING ERRCODE = 'FG403', MESSAGE = 'the key, the content type or the headers of a message are malformed',
            HINT = 'a key has 1 to 512 bytes, headers are an object of up to 8192 bytes';
    END IF;
    IF due_at > clock_timestamp() THEN
        INSERT INTO forge.outbox_later (due_at, id, topic, key, payload, content_type, headers)
        VALUES (due_at, made, topic, key, payload, content_type, headers);
        PERFORM pg_notify('forge_outbox', '');
    ELSE
        INSERT INTO forge.outbox (id, topic, key, payload, content_type, headers) VALUES (made, topic, key, payload, content_type, headers);
        PERFORM pg_notify('forge_outbox', topic);
    END IF;
    RETURN made;
END
$body$;

-- True in the first transaction that accepts a message for a consumer and commits; false in every other.
CREATE OR REPLACE FUNCTION public.forge_inbox(consumer text, message_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    INSERT INTO forge.inbox (consumer, id) VALUES (consumer, message_id) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$body$;

-- The owner decides which roles may write messages: GRANT EXECUTE ON FUNCTION forge_outbox, forge_inbox TO …
REVOKE ALL ON FUNCTION public.forge_outbox(text, bytea, text, text, jsonb, timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.forge_inbox(text, text) FROM PUBLIC;
