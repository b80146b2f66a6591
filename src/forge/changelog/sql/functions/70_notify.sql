-- NOTIFY within the caller's transaction. A payload too large for NOTIFY is stored and sent as {"forge_ref": "<uuid>"}.
CREATE OR REPLACE FUNCTION public.forge_notify(channel text, payload text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    kept uuid;
BEGIN
    IF channel = 'forge_changes' OR channel = '' OR octet_length(channel) > 63 THEN
        RAISE EXCEPTION USING ERRCODE = 'FG301', MESSAGE = format('%s cannot be a channel', quote_literal(channel)),
            HINT = 'use a name of 1 to 63 bytes other than forge_changes';
    END IF;
    IF octet_length(payload) < 7000 AND payload NOT LIKE '{"forge_ref"%' THEN
        PERFORM pg_notify(channel, payload);
    ELSE
        INSERT INTO forge.large_payload (channel, payload) VALUES (channel, payload) RETURNING reference INTO kept;
        PERFORM pg_notify(channel, json_build_object('forge_ref', kept)::text);
    END IF;
END
$body$;

-- The payload of a reference; NULL if it was cleaned up.
CREATE OR REPLACE FUNCTION public.forge_payload(reference uuid) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
    SELECT p.payload FROM forge.large_payload p WHERE p.reference = $1
$body$;
