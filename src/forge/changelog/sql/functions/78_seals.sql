-- The chain of seals: see forge.history.chain for what it proves.

-- The sealed values of a row, in order. `hidden` is a parameter, because a redaction adds to it. The function has no
-- settings of its own, so it is inlined into the query that uses it, which is many times faster; therefore every name
-- in it is qualified, and the printing of values does not depend on session settings. The digest of a row is
--   sha256(string_agg(sha256(sha256(salt || path) || value), '' ORDER BY n))
-- where salt is the row's; so each value has its own salt, and a redaction can keep the salts of the remaining values.
CREATE OR REPLACE FUNCTION forge.event_leaves(event forge.forge_event_log, hidden text[])
RETURNS TABLE (n bigint, path text, name text, value text)
LANGUAGE sql STABLE AS $body$
    SELECT 0::bigint, 'row'::pg_catalog.text, NULL::pg_catalog.text, pg_catalog.json_build_array(
        event.id, event.rank, event.transaction_id::pg_catalog.text,
        (extract(epoch FROM event.at) OPERATOR(pg_catalog.*) 1000000)::bigint, event.day, event.version,
        event.op::pg_catalog.text, event.row_id, hidden, event.user_id, event.function_name, event.trace_id,
        event.context::pg_catalog.text, event.db_user, event.application_name)::pg_catalog.text
    UNION ALL SELECT b.n, 'before.' OPERATOR(pg_catalog.||) b.key, b.key, b.value::pg_catalog.text
        FROM pg_catalog.json_each(event.before) WITH ORDINALITY b (key, value, n)
    UNION ALL SELECT 10000 OPERATOR(pg_catalog.+) a.n, 'after.' OPERATOR(pg_catalog.||) a.key, a.key, a.value::pg_catalog.text
        FROM pg_catalog.json_each(event.after) WITH ORDINALITY a (key, value, n)
$body$;

CREATE OR REPLACE FUNCTION forge.seal_head(seal forge.log_seal) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT sha256(seal.previous || convert_to(json_build_array(seal.id, seal.day, seal.log, seal.since::text, seal.until::text, seal.last_place,
                                              seal.last_id, seal.rows)::text, 'UTF8') || seal.root
                  || coalesce(convert_to(seal.versions::text, 'UTF8') || seal.definitions, ''))
$body$;

-- The sealed part of a table's version. No salt: it is not secret, and nothing is ever redacted from it.
CREATE OR REPLACE FUNCTION forge.definition_digest(version forge.table_version) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT sha256(convert_to(json_build_array(version.id, version.tracked_table, version.relation::bigint, version.schema_name, version.table_name,
        version.columns::text, version.key_columns, version.fingerprint, version.empty, (extract(epoch FROM version.recorded_at) * 1000000)::bigint)::text, 'UTF8'))
$body$;

CREATE OR REPLACE FUNCTION forge.is_sealed() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce((SELECT s.enabled FROM forge.sealing s ORDER BY s.id DESC LIMIT 1), false)
$body$;

-- Appends a seal to the chain, with the table versions that no earlier seal has.
CREATE OR REPLACE FUNCTION forge.add_seal(seal forge.log_seal) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    SELECT s.id + 1, s.head INTO seal.id, seal.previous FROM forge.log_seal s ORDER BY s.id DESC LIMIT 1;
    IF seal.id IS NULL THEN
        seal.id := 0;
        seal.previous := sha256(uuid_send(gen_random_uuid()));
    END IF;
    SELECT array_agg(v.id ORDER BY v.id), string_agg(forge.definition_digest(v), '' ORDER BY v.id) INTO seal.versions, seal.definitions
    FROM forge.table_version v
    WHERE NOT EXISTS (SELECT FROM forge.log_seal s WHERE s.versions IS NOT NULL AND v.id = ANY (s.versions));
    seal.root := sha256(seal.digests);
    seal.head := forge.seal_head(seal);
    seal.sealed_at := clock_timestamp();
    INSERT INTO forge.log_seal SELECT seal.*;
END
$body$;

CREATE OR REPLACE FUNCTION forge.start_sealing(enabled boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    LOCK TABLE forge.log_seal IN SHARE ROW EXCLUSIVE MODE;
    IF enabled IS DISTINCT FROM forge.is_sealed() THEN
        INSERT INTO forge.sealing (enabled) VALUES (enabled);
    END IF;
    IF enabled AND NOT EXISTS (SELECT FROM forge.log_seal) THEN
        PERFORM forge.add_seal(ROW(NULL, '-infinity', '', '1:1:', '1:1:', 0, 0, 0, '{}', '', '', NULL, NULL, NULL, NULL, NULL, NULL)::forge.log_seal);
    END IF;
END
$body$;

-- Seals committed rows that are not sealed yet, with a given number per seal, up to 20 seals of one day. Returns the
-- number of rows; 0 if there are none.
CREATE OR REPLACE FUNCTION forge.seal_page(most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    last    forge.log_seal;
    found   forge.log_seal;
    self    forge.log_identity;
    today   date;
    done    integer := 0;
BEGIN
    IF NOT forge.is_sealed() THEN
        RETURN 0;
    END IF;
    self := forge.current_identity();
    LOCK TABLE forge.log_seal IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO last FROM forge.log_seal ORDER BY id DESC LIMIT 1;
    -- rows of an older incarnation, or from before sealing began: their transaction numbers mean nothing here
    IF last.log <> self.uuid::text THEN
        FOR today IN SELECT forge.log_days() LOOP
            FOR found IN SELECT * FROM forge.sealed_page(today, '1:1:', pg_current_snapshot(), '-infinity', 0, 0, 1, self.first_id - 1, most, true) LOOP
                found.log := last.log;
                PERFORM forge.add_seal(found);
                done := done + found.rows;
            END LOOP;
            IF done > 0 THEN
                RETURN done;
            END IF;
        END LOOP;
        last.since := '1:1:'; last.until := '1:1:'; last.day := 'infinity'; last.last_place := 0; last.last_id := 0;
    END IF;
    FOR attempt IN 1..2 LOOP
        FOR today IN SELECT d FROM forge.log_days() d WHERE d >= last.day LOOP
            FOR found IN SELECT * FROM forge.sealed_page(today, last.since, last.until, last.day, last.last_place, last.last_id,
                                                         self.first_id, 9223372036854775807, most, false) LOOP
                found.log := self.uuid;
                PERFORM forge.add_seal(found);
                done := done + found.rows;
            END LOOP;
            IF done > 0 THEN
                RETURN done;
            END IF;
        END LOOP;
        -- that batch is complete: the next one is what was committed since
        last.since := last.until; last.until := pg_current_snapshot(); last.day := '-infinity'; last.last_place := 0; last.last_id := 0;
    END LOOP;
    RETURN 0;
END
$body$;

-- The days that the log has, the overflow last.
CREATE OR REPLACE FUNCTION forge.log_days() RETURNS SETOF date
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT to_date(substring(c.relname FROM '^forge_event_log_([0-9]{8})$'), 'YYYYMMDD') AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'forge.forge_event_log'::regclass AND NOT i.inhdetachpending AND c.relname ~ '^forge_event_log_[0-9]{8}$'
    UNION ALL SELECT 'infinity' ORDER BY 1
$body$;

-- Seals over the next rows of a day between two snapshots, not yet part of the chain. With `rest`, all unsealed rows.
CREATE OR REPLACE FUNCTION forge.sealed_page(
    today date, since pg_snapshot, until pg_snapshot, reached date, place bigint, id bigint, first_id bigint, last_id bigint, most integer, rest boolean
) RETURNS SETOF forge.log_seal
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $body$
    SELECT NULL::bigint, today, NULL::text, since, until, max(p.place), (array_agg(p.id ORDER BY p.place DESC, p.id DESC))[1], count(*)::integer,
           array_agg(p.id ORDER BY p.place, p.id), string_agg(p.salt, '' ORDER BY p.place, p.id),
           string_agg(d.digest, '' ORDER BY p.place, p.id), NULL::bytea, NULL::bytea, NULL::bytea, NULL::timestamptz, NULL::integer[], NULL::bytea
    FROM (
        SELECT l AS event, l.id, coalesce(l.rank, l.id) AS place, (row_number() OVER (ORDER BY coalesce(l.rank, l.id), l.id) - 1) / most AS chunk,
               uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) AS salt
        FROM forge.forge_event_log l
        LEFT JOIN (SELECT unnest(s.events) AS event FROM forge.log_seal s WHERE rest AND s.day = today) known ON known.event = l.id
        WHERE l.day = today AND l.id BETWEEN first_id AND sealed_page.last_id AND known.event IS NULL
          AND (rest OR l.transaction_id >= pg_snapshot_xmin(since)
               AND pg_visible_in_snapshot(l.transaction_id, until) AND NOT pg_visible_in_snapshot(l.transaction_id, since)
               AND (today > reached OR (coalesce(l.rank, l.id), l.id) > (sealed_page.place, sealed_page.id)))
        ORDER BY coalesce(l.rank, l.id), l.id
        LIMIT 20 * most) p
    CROSS JOIN LATERAL (
        SELECT sha256(string_agg(sha256(sha256(p.salt || convert_to(v.path, 'UTF8')) || convert_to(v.value, 'UTF8')), ''::bytea ORDER BY v.n)) AS digest
        FROM forge.event_leaves(p.event, (p.event).hidden) v) d
    GROUP BY p.chunk ORDER BY p.chunk
$body$;

-- After days were dropped: removes their rows' part of the chain. Returns the number of seals changed.
CREATE OR REPLACE FUNCTION forge.forget_seals() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    forgotten integer;
BEGIN
    WITH old AS (
        SELECT s.id, s.events FROM forge.log_seal s
        WHERE s.events IS NOT NULL AND s.rows > 0 AND isfinite(s.day) AND s.day NOT IN (SELECT forge.log_days())
          AND EXISTS (SELECT FROM forge.trimmed t WHERE t.partition = 'forge_event_log_' || to_char(s.day, 'YYYYMMDD'))
    ), gone AS (
        DELETE FROM forge.redaction r USING old WHERE r.event_id = ANY (old.events)
    )
    UPDATE forge.log_seal s SET events = NULL, salts = NULL, digests = NULL FROM old WHERE s.id = old.id;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END
$body$;
REVOKE ALL ON FUNCTION forge.start_sealing(boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION forge.seal_page(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION forge.add_seal(forge.log_seal) FROM PUBLIC;
REVOKE ALL ON FUNCTION forge.forget_seals() FROM PUBLIC;
