-- Removal of values from the log. A removed value is {"$redacted":true}, and the image names all such columns under
-- "$redacted": forge.values reads that.

CREATE OR REPLACE FUNCTION forge.redacted_image(image json, columns text[]) RETURNS json
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT CASE WHEN NOT bool_or(e.key = ANY (columns)) THEN image ELSE (
        '{' || string_agg(to_json(e.key)::text || ':' || CASE WHEN e.key = ANY (columns) THEN '{"$redacted":true}' ELSE e.value::text END,
                          ',' ORDER BY e.n) FILTER (WHERE e.key <> '$redacted')
        || ',"$redacted":' || array_to_json(ARRAY(
            SELECT o.key FROM json_object_keys(image) o (key)
            WHERE o.key = ANY (columns) OR o.key IN (SELECT json_array_elements_text(image -> '$redacted'))))::text || '}')::json END
    FROM json_each(image) WITH ORDINALITY e (key, value, n)
$body$;

-- Removes columns from one row of the log, for a tombstone. Its seal stays valid: the proof of the rest of the row is
-- kept, and the salt is deleted, because with it the values could be guessed from their digests. False if there was
-- nothing to remove.
CREATE OR REPLACE FUNCTION forge.redact_event(event bigint, "day" date, transaction xid8, columns text[], tombstone bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_column
DECLARE
    l        forge.forge_event_log;
    s        forge.log_seal;
    known    forge.redaction;
    place    integer;
    leaves   jsonb;
    gone     text[];
    differs  text[];
BEGIN
    SELECT e.* INTO l FROM forge.forge_event_log e
    WHERE e.day = redact_event.day AND e.transaction_id = transaction AND e.id = event FOR UPDATE;
    SELECT array_agg(DISTINCT k.key) INTO gone
    FROM (SELECT key, value FROM json_each(l.before) UNION ALL SELECT key, value FROM json_each(l.after)) k
    WHERE k.key = ANY (columns) AND k.value::text <> '{"$redacted":true}';
    IF gone IS NULL THEN
        RETURN false;
    END IF;
    IF l.op = 'U' THEN
        SELECT array_agg(c ORDER BY c) INTO differs FROM unnest(gone) c
        WHERE c <> ALL (coalesce(l.hidden, '{}')) AND l.before -> c IS NOT NULL
          AND (l.before -> c)::text IS DISTINCT FROM (l.after -> c)::text;
    END IF;
    SELECT x.* INTO s FROM forge.log_seal x WHERE x.day = redact_event.day AND x.events @> ARRAY[event];
    IF s.id IS NOT NULL THEN
        SELECT r.* INTO known FROM forge.redaction r WHERE r.event_id = event;
        place := 32 * (array_position(s.events, event) - 1) + 1;
        SELECT jsonb_object_agg(v.path, CASE
            WHEN known.proof -> v.path ? 'leaf' THEN known.proof -> v.path
            WHEN v.name = ANY (gone) OR v.name = '$redacted' THEN jsonb_build_object('leaf', encode(sha256(v.salt || convert_to(v.value, 'UTF8')), 'hex'))
            ELSE jsonb_build_object('salt', encode(v.salt, 'hex')) END) INTO leaves
        FROM (SELECT e.path, e.name, e.value, CASE WHEN known.event_id IS NULL THEN sha256(substr(s.salts, place, 32) || convert_to(e.path, 'UTF8'))
                                                   ELSE decode(known.proof -> e.path ->> 'salt', 'hex') END AS salt
              FROM forge.event_leaves(l, CASE WHEN known.event_id IS NULL THEN l.hidden ELSE known.hidden END) e) v
        WHERE known.event_id IS NULL OR known.proof ? v.path;
        INSERT INTO forge.redaction AS r (event_id, columns, tombstones, hidden, proof) VALUES (event, gone, ARRAY[tombstone], l.hidden, leaves)
        ON CONFLICT (event_id) DO UPDATE SET columns = r.columns || gone, tombstones = r.tombstones || tombstone, proof = leaves;
        UPDATE forge.log_seal x SET salts = overlay(x.salts PLACING decode(repeat('00', 32), 'hex') FROM place FOR 32) WHERE x.id = s.id;
    END IF;
    UPDATE forge.forge_event_log e
    SET before = forge.redacted_image(l.before, columns), after = forge.redacted_image(l.after, columns),
        hidden = CASE WHEN differs IS NULL THEN l.hidden ELSE coalesce(l.hidden, '{}') || differs END
    WHERE e.day = redact_event.day AND e.transaction_id = transaction AND e.id = event;
    RETURN true;
END
$body$;

-- Writes the Change that informs consumers: an R row with the key, the columns and a note; returns its id.
CREATE OR REPLACE FUNCTION forge.log_redaction(version integer, row_id text, key json, columns text[], note json) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    made bigint;
BEGIN
    INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, row_id, before, hidden, user_id, function_name, trace_id, context,
                                       db_user, application_name)
    SELECT pg_current_xact_id(), a, forge.log_day(a), version, 'R', row_id, key, columns, nullif(current_setting('forge.user_id', true), ''),
           nullif(current_setting('forge.function_name', true), ''), nullif(current_setting('forge.trace_id', true), ''),
           note, session_user, nullif(current_setting('application_name'), '')
    FROM clock_timestamp() a RETURNING id INTO made;
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll' THEN
        PERFORM pg_notify('forge_changes', forge.wakeup_payload(v.table_name, 'REDACT', row_id)) FROM forge.table_version v WHERE v.id = version;
    END IF;
    RETURN made;
END
$body$;
REVOKE ALL ON FUNCTION forge.redact_event(bigint, date, xid8, text[], bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION forge.log_redaction(integer, text, json, text[], json) FROM PUBLIC;
