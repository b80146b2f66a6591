-- Functions of change versions. Run at every install.
--
-- Locks come before stamps: a writer that stamps a document already holds its row lock, so of two changes of a document
-- the later has the greater stamp. The identity is a column of a unique index, so PostgreSQL treats its change as a
-- change of the key: it waits for all sessions that hold the row FOR KEY SHARE, as writers of an edge to it do, and
-- they wait for it.
--
-- A session caches its plans, and a plan made for a single row would take hours for a hundred thousand. So statements
-- on sets are planned each time: by force_custom_plan, and by EXECUTE where they join the rows of a trigger's
-- statement, whose number a cached plan keeps as well.

-- Hash of a document's content: its body, and its edges as {name: [child, in_identity]}.
CREATE OR REPLACE FUNCTION forge_versions.content_hash(body jsonb, edges jsonb) RETURNS bytea LANGUAGE sql STABLE
RETURN sha256(convert_to(body::text || edges::text, 'UTF8'));

CREATE OR REPLACE FUNCTION forge_versions.edges(document bigint) RETURNS jsonb LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(jsonb_object_agg(r.name, jsonb_build_array(r.child, r.in_identity)), '{}')
    FROM forge_versions.reference r WHERE r.parent = edges.document;
END;

-- The stamp of a change that its writer journals: the triggers do nothing until the writer ends this mode, or the
-- transaction ends.
CREATE OR REPLACE FUNCTION forge_versions.own_stamp() RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('forge_versions.stamping', 'yes', true);
    RETURN forge_versions.stamp();
END $$;

-- Why some client could not read a body or an identity; NULL where all can. The rules of forge.versions.texts, for
-- writes by SQL, and for identities that follow from contained ones.
CREATE OR REPLACE FUNCTION forge_versions.unfit(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN jsonb_typeof(value) <> 'object' THEN 'it is a JSON ' || jsonb_typeof(value) || ', not an object'
    WHEN jsonb_path_exists(value, 'strict $.**{101}') THEN 'it is nested deeper than 100 levels'
    WHEN jsonb_path_exists(value, 'strict $.** ? (@ >= 1e4000 || @ <= -1e4000)') THEN
        'a number in it has more than 4,000 digits'
END;

CREATE OR REPLACE FUNCTION forge_versions.on_unfit() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the % of document % cannot be written: %',
        CASE WHEN forge_versions.unfit(NEW.identity) IS NULL THEN 'body' ELSE 'identity' END, NEW.id,
        coalesce(forge_versions.unfit(NEW.identity), forge_versions.unfit(NEW.body))
        USING ERRCODE = 'FG705', HINT = 'write an object, make it flatter, and long numbers texts';
END $$;

-- Lock the targets of references: [{name, document} or {name, resource, identity}]; and the referring document, if
-- known, against all (`whole`) or against other writers. All sessions lock in the order of ids. `child` is NULL where
-- the target does not exist.
DROP FUNCTION IF EXISTS forge_versions.hold(jsonb);
CREATE OR REPLACE FUNCTION forge_versions.hold(wanted jsonb, parent bigint DEFAULT NULL, whole boolean DEFAULT false)
RETURNS TABLE (name text, child bigint, identity jsonb) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    w record;
BEGIN
    FOR w IN
        SELECT false AS refers, e.name, d.id, e.identity AS asked
        FROM jsonb_to_recordset(wanted) AS e (name text, document bigint, resource integer, identity jsonb)
        LEFT JOIN LATERAL (
            SELECT o.id FROM forge_versions.document o WHERE o.id = e.document
            UNION ALL
            SELECT o.id FROM forge_versions.document o WHERE o.resource = e.resource AND o.identity = e.identity) d ON true
        UNION ALL
        SELECT true, NULL, parent, NULL WHERE parent IS NOT NULL
        ORDER BY 3
    LOOP
        IF w.refers AND whole THEN
            PERFORM FROM forge_versions.document d WHERE d.id = w.id FOR UPDATE;
        ELSIF w.refers THEN
            PERFORM FROM forge_versions.document d WHERE d.id = w.id FOR NO KEY UPDATE;
        ELSE
            name := w.name;
            SELECT d.id, d.identity INTO child, identity FROM forge_versions.document d
            WHERE d.id = w.id AND (w.asked IS NULL OR d.identity = w.asked) FOR KEY SHARE;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- All documents whose identities are contained in those of `children`, and `children` themselves, locked.
CREATE OR REPLACE FUNCTION forge_versions.hold_contained(children bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    found bigint[] := '{}';
    level bigint[] := children;
BEGIN
    WHILE level <> '{}' LOOP
        found := found || level;
        PERFORM FROM forge_versions.document d WHERE d.id = ANY (level) ORDER BY d.id FOR KEY SHARE;
        level := ARRAY(SELECT r.child FROM forge_versions.reference r WHERE r.parent = ANY (level) AND r.in_identity
                       EXCEPT SELECT f.id FROM unnest(found) f (id));
    END LOOP;
    RETURN found;
END $$;

-- Refuse references by which the identity of one of these documents would contain itself.
CREATE OR REPLACE FUNCTION forge_versions.refuse_cycles(parents bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    one bigint;
BEGIN
    FOREACH one IN ARRAY parents LOOP
        PERFORM FROM forge_versions.document d WHERE d.id = one FOR UPDATE;
        IF one = ANY (forge_versions.hold_contained(ARRAY(
            SELECT r.child FROM forge_versions.reference r WHERE r.parent = one AND r.in_identity))) THEN
            RAISE EXCEPTION 'the identity of document % would contain itself', one
                USING ERRCODE = 'FG701', HINT = 'leave one of the references out of the identity';
        END IF;
    END LOOP;
END $$;

-- Lock `roots` and all documents whose identity contains that of one of them, directly or through others; return these.
-- They are locked in the order of ids, so that two sessions with overlapping sets do not deadlock; documents that
-- appeared meanwhile are locked in another pass, until there are none. No document can join the set afterwards: its
-- writer would need a lock on a document that is locked.
CREATE OR REPLACE FUNCTION forge_versions.hold_dependents(roots bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    found bigint[] := roots;
    more  bigint[] := roots;
    held  bigint[] := '{}';
    level bigint[];
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'identities are changed in READ COMMITTED only' USING ERRCODE = 'FG702',
            HINT = 'an older snapshot does not show all whose identity contains it: use READ COMMITTED for this transaction';
    END IF;
    WHILE more <> '{}' LOOP
        level := found;
        WHILE level <> '{}' LOOP
            level := ARRAY(SELECT r.parent FROM forge_versions.reference r WHERE r.child = ANY (level) AND r.in_identity
                           EXCEPT SELECT f.id FROM unnest(found) f (id));
            found := found || level;
        END LOOP;
        more := ARRAY(SELECT f.id FROM unnest(found) f (id) EXCEPT SELECT h.id FROM unnest(held) h (id));
        PERFORM FROM forge_versions.document d WHERE d.id = ANY (more) ORDER BY d.id FOR UPDATE;
        held := held || more;
    END LOOP;
    RETURN ARRAY(SELECT h.id FROM unnest(held) h (id) EXCEPT SELECT r.id FROM unnest(roots) r (id));
END $$;

-- Update the identities of `roots` and of all documents that contain them to match the identities that they contain,
-- each document after all that it contains. Changes are stamped and journaled. All of the documents are locked.
CREATE OR REPLACE FUNCTION forge_versions.carry(roots bigint[], stamp bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    level  bigint[];
    looped boolean;
BEGIN
    FOR level, looped IN
        WITH RECURSIVE above (id, depth) AS (
            SELECT r.id, 0 FROM unnest(roots) r (id)
            UNION
            SELECT r.parent, a.depth + 1 FROM above a
            JOIN forge_versions.reference r ON r.child = a.id AND r.in_identity
        ) CYCLE id SET looped USING way
        SELECT array_agg(d.id), bool_or(d.looped)
        FROM (SELECT a.id, max(a.depth) AS depth, bool_or(a.looped) AS looped FROM above a GROUP BY a.id) d
        GROUP BY d.depth ORDER BY d.depth
    LOOP
        IF looped THEN
            RAISE EXCEPTION 'the identity of one of the documents % contains itself', level USING ERRCODE = 'FG701',
                HINT = 'it was not made by Forge: take one of the references out of the identity';
        END IF;
        WITH fresh AS (
            SELECT p.id, p.identity AS old, p.identity_version AS was,
                   p.identity || jsonb_object_agg(r.name, c.identity) AS new
            FROM forge_versions.document p
            JOIN forge_versions.reference r ON r.parent = p.id AND r.in_identity
            JOIN forge_versions.document c ON c.id = r.child
            WHERE p.id = ANY (level) GROUP BY p.id
        ), written AS (
            UPDATE forge_versions.document d
            SET identity = f.new, identity_version = carry.stamp, identity_at = clock_timestamp()
            FROM fresh f WHERE d.id = f.id AND f.new::text <> f.old::text
            RETURNING d.id, d.resource, f.old, f.new, f.was
        ), direct AS (
            INSERT INTO forge_versions.document_change (version, document, resource)
            SELECT carry.stamp, w.id, w.resource FROM written w ON CONFLICT DO NOTHING
        ), indirect AS (
            INSERT INTO forge_versions.identity_change (version, document)
            SELECT carry.stamp, w.id FROM written w ON CONFLICT DO NOTHING
        )
        -- a document created by this stamp has no older key
        INSERT INTO forge_versions.key_change AS k (version, document, resource, old_identity, new_identity)
        SELECT carry.stamp, w.id, w.resource, w.old, w.new FROM written w
        WHERE w.was <> carry.stamp
           OR EXISTS (SELECT FROM forge_versions.key_change e WHERE e.version = carry.stamp AND e.document = w.id)
        ON CONFLICT (version, document) DO UPDATE SET new_identity = excluded.new_identity;
    END LOOP;
END $$;

-- The greatest version below which nothing is uncommitted. A new pair is taken only with `record`, which must be
-- outside of any transaction block: it has its own xid, assigned after the sequence was read, and all transactions with
-- a stamp up to that value have a lower xid. (The xmax of a snapshot would not work: it is one above the latest xid
-- that ended, and running transactions may be above it.) The result was committed with its pair, so a crash cannot
-- reset the sequence below it. One session at a time takes a pair: by a table lock, which only roles that may write
-- pairs can take.
DROP FUNCTION IF EXISTS forge_versions.newest(boolean, bigint);
CREATE OR REPLACE FUNCTION forge_versions.newest(record boolean) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last    bigint;
    best    bigint;
    mine    xid8;
    oldest  xid8;
BEGIN
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO last FROM forge_versions.change_version s;
    SELECT coalesce(max(s.version), 0) INTO best FROM forge_versions.settled s
    WHERE s.horizon <= pg_snapshot_xmin(pg_current_snapshot());
    IF best >= last OR NOT record OR pg_is_in_recovery()
        OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
        OR current_setting('transaction_read_only')::boolean
        OR pg_current_xact_id_if_assigned() IS NOT NULL
        -- a pair that waits for a running transaction: another would wait for it too (a pair of another cluster does
        -- not). The longer the first of them waits, the rarer they become, so that a hanging transaction leaves only
        -- some hundred
        OR (SELECT max(s.version) >= last
                   OR max(s.at) > clock_timestamp()
                                  - greatest(interval '100 milliseconds', (clock_timestamp() - min(s.at)) / 10)
            FROM forge_versions.settled s
            WHERE s.version > best AND s.horizon < pg_snapshot_xmax(pg_current_snapshot())) THEN
        RETURN best;
    END IF;
    BEGIN
        LOCK TABLE forge_versions.settled IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN best;
    END;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    mine := pg_current_xact_id();
    oldest := pg_snapshot_xmin(pg_current_snapshot());
    IF oldest = mine THEN
        best := last;
    END IF;
    INSERT INTO forge_versions.settled AS s (version, horizon) VALUES (last, mine)
    ON CONFLICT (version) DO UPDATE SET horizon = least(s.horizon, excluded.horizon);
    DELETE FROM forge_versions.settled s WHERE s.version < best;
    RETURN best;
END $$;

-- Trigger mode: for applications that write documents and references by SQL of their own. --------------------------------

-- The stamp for a change of the content of locked documents: that of an earlier change in this transaction, where none
-- of them has a greater one. Documents inserted after it, or with another identity, always get a new one.
CREATE OR REPLACE FUNCTION forge_versions.transaction_stamp(held bigint[]) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    mine bigint := nullif(current_setting('forge_versions.stamp', true), '')::bigint;
BEGIN
    IF mine IS NULL OR EXISTS (
        SELECT FROM forge_versions.document d
        WHERE d.id = ANY (held) AND greatest(d.content_version, d.identity_version, d.max_dependency) > mine) THEN
        RETURN forge_versions.new_transaction_stamp();
    END IF;
    RETURN mine;
END $$;

CREATE OR REPLACE FUNCTION forge_versions.new_transaction_stamp() RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stamp bigint := forge_versions.stamp();
BEGIN
    PERFORM set_config('forge_versions.stamp', stamp::text, true);
    RETURN stamp;
END $$;

CREATE OR REPLACE FUNCTION forge_versions.on_document_insert() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    stamp bigint;
    made  bigint[];
BEGIN
    IF current_setting('forge_versions.stamping', true) = 'yes' OR NOT EXISTS (SELECT FROM new_rows) THEN
        RETURN NULL;
    END IF;
    made := ARRAY(SELECT n.id FROM new_rows n);
    stamp := forge_versions.new_transaction_stamp();
    PERFORM set_config('forge_versions.stamping', 'yes', true);
    UPDATE forge_versions.document d
    SET content_version = stamp, identity_version = stamp,
        content_hash = forge_versions.content_hash(d.body, forge_versions.edges(d.id))
    WHERE d.id = ANY (made);
    INSERT INTO forge_versions.document_change (version, document, resource) SELECT stamp, n.id, n.resource FROM new_rows n;
    INSERT INTO forge_versions.identity_change (version, document) SELECT stamp, n.id FROM new_rows n;
    PERFORM set_config('forge_versions.stamping', '', true);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION forge_versions.on_document_update() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    stamp      bigint;
    content    bigint[];
    identities bigint[];
    strange    boolean;
BEGIN
    IF current_setting('forge_versions.stamping', true) = 'yes' THEN
        RETURN NULL;
    END IF;
    EXECUTE 'SELECT coalesce(array_agg(n.id) FILTER (WHERE n.body::text <> o.body::text), ''{}''),'
            '       coalesce(array_agg(n.id) FILTER (WHERE n.identity::text <> o.identity::text), ''{}''),'
            '       bool_or(o.id IS NULL OR n.resource <> o.resource)'
            ' FROM new_rows n LEFT JOIN old_rows o USING (id)' INTO content, identities, strange;
    IF strange THEN
        RAISE EXCEPTION 'a document keeps its id and its resource' USING ERRCODE = 'FG703',
            HINT = 'delete it and insert another';
    END IF;
    IF identities <> '{}' THEN
        PERFORM forge_versions.hold_dependents(identities);
        stamp := forge_versions.new_transaction_stamp();
    ELSIF content <> '{}' THEN
        stamp := forge_versions.transaction_stamp(content);
    ELSE
        RETURN NULL;
    END IF;
    PERFORM set_config('forge_versions.stamping', 'yes', true);
    UPDATE forge_versions.document d
    SET content_version = stamp, content_at = clock_timestamp(),
        content_hash = forge_versions.content_hash(d.body, forge_versions.edges(d.id))
    WHERE d.id = ANY (content);
    UPDATE forge_versions.document d SET identity_version = stamp, identity_at = clock_timestamp()
    WHERE d.id = ANY (identities);
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT stamp, d.id, d.resource FROM forge_versions.document d WHERE d.id = ANY (content || identities)
    ON CONFLICT DO NOTHING;
    IF identities = '{}' THEN
        PERFORM set_config('forge_versions.stamping', '', true);
        RETURN NULL;
    END IF;
    INSERT INTO forge_versions.identity_change (version, document)
    SELECT stamp, i.id FROM unnest(identities) i (id);
    EXECUTE 'INSERT INTO forge_versions.key_change (version, document, resource, old_identity, new_identity)'
            ' SELECT $1, n.id, n.resource, o.identity, n.identity FROM new_rows n JOIN old_rows o USING (id)'
            ' WHERE n.identity::text <> o.identity::text' USING stamp;
    PERFORM forge_versions.carry(identities, stamp);
    PERFORM set_config('forge_versions.stamping', '', true);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION forge_versions.on_document_delete() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    stamp bigint;
BEGIN
    IF current_setting('forge_versions.stamping', true) = 'yes' OR NOT EXISTS (SELECT FROM old_rows) THEN
        RETURN NULL;
    END IF;
    stamp := forge_versions.new_transaction_stamp();
    INSERT INTO forge_versions.deletion (version, document, resource, identity)
    SELECT stamp, o.id, o.resource, o.identity FROM old_rows o;
    EXECUTE 'WITH gone AS (DELETE FROM forge_versions.access a USING old_rows o WHERE a.document = o.id'
            '              RETURNING o.id, o.resource, o.identity, a.subject)'
            ' INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)'
            ' SELECT $1, g.id, g.resource, g.identity, g.subject FROM gone g' USING stamp;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION forge_versions.on_truncate() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'TRUNCATE leaves no tombstones' USING ERRCODE = 'FG704', HINT = 'use DELETE';
END $$;

-- Another set of edges is another content of their parents; for edges in an identity also another identity.
CREATE OR REPLACE FUNCTION forge_versions.on_reference() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    stamp   bigint;
    parents bigint[];
    into_it bigint[] := '{}';
    held    bigint[];
BEGIN
    IF current_setting('forge_versions.stamping', true) = 'yes' THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        parents := ARRAY(SELECT DISTINCT n.parent FROM new_rows n);
        into_it := ARRAY(SELECT DISTINCT n.parent FROM new_rows n WHERE n.in_identity);
    ELSIF TG_OP = 'DELETE' THEN
        parents := ARRAY(SELECT DISTINCT o.parent FROM old_rows o);
    ELSE
        parents := ARRAY(
            SELECT c.parent FROM ((SELECT n.parent, n.name, n.child, n.in_identity FROM new_rows n
                                   EXCEPT SELECT o.parent, o.name, o.child, o.in_identity FROM old_rows o)
                                  UNION
                                  (SELECT o.parent, o.name, o.child, o.in_identity FROM old_rows o
                                   EXCEPT SELECT n.parent, n.name, n.child, n.in_identity FROM new_rows n)) c
            GROUP BY c.parent);
        into_it := ARRAY(SELECT n.parent FROM new_rows n WHERE n.in_identity
                         INTERSECT SELECT p.id FROM unnest(parents) p (id));
    END IF;
    IF parents = '{}' THEN
        RETURN NULL;
    END IF;
    PERFORM FROM forge_versions.document d WHERE d.id = ANY (parents) ORDER BY d.id FOR NO KEY UPDATE;
    held := parents;
    IF into_it <> '{}' THEN
        PERFORM forge_versions.refuse_cycles(into_it);
        held := held || forge_versions.hold_dependents(into_it);
    END IF;
    -- edges are also deleted with their document, which no longer exists
    IF NOT EXISTS (SELECT FROM forge_versions.document d WHERE d.id = ANY (parents)) THEN
        RETURN NULL;
    END IF;
    stamp := forge_versions.transaction_stamp(held);
    PERFORM set_config('forge_versions.stamping', 'yes', true);
    WITH written AS (
        UPDATE forge_versions.document d
        SET content_version = stamp, content_at = clock_timestamp(),
            content_hash = forge_versions.content_hash(d.body, forge_versions.edges(d.id))
        WHERE d.id = ANY (parents) RETURNING d.id, d.resource
    )
    INSERT INTO forge_versions.document_change (version, document, resource)
    SELECT stamp, w.id, w.resource FROM written w ON CONFLICT DO NOTHING;
    PERFORM forge_versions.carry(into_it, stamp);
    PERFORM set_config('forge_versions.stamping', '', true);
    RETURN NULL;
END $$;

-- Strategies: what they keep, whoever writes. ----------------------------------------------------------------------------

-- monotonic: an edge was written; its parent stores the identity token of its child.
CREATE OR REPLACE FUNCTION forge_versions.monotonic_reference() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
BEGIN
    EXECUTE 'UPDATE forge_versions.document p SET max_dependency = m.version'
            ' FROM (SELECT n.parent, max(c.identity_version) AS version'
            '       FROM new_rows n JOIN forge_versions.document c ON c.id = n.child GROUP BY n.parent) m'
            ' WHERE p.id = m.parent AND p.max_dependency < m.version';
    RETURN NULL;
END $$;

-- monotonic: an identity token rose; all referrers store it. They are locked before their edges are read, so that a
-- session that drops its reference has the later stamp.
CREATE OR REPLACE FUNCTION forge_versions.monotonic_document() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    risen bigint[];
BEGIN
    IF current_setting('forge_versions.telling', true) = 'yes' THEN
        RETURN NULL;
    END IF;
    EXECUTE 'SELECT array_agg(n.id) FROM new_rows n JOIN old_rows o USING (id)'
            ' WHERE n.identity_version > o.identity_version' INTO risen;
    IF risen IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM FROM forge_versions.document p
    WHERE p.id IN (SELECT r.parent FROM forge_versions.reference r WHERE r.child = ANY (risen))
    ORDER BY p.id FOR NO KEY UPDATE;
    PERFORM set_config('forge_versions.telling', 'yes', true);
    UPDATE forge_versions.document p SET max_dependency = m.version
    FROM (SELECT r.parent, max(c.identity_version) AS version
          FROM forge_versions.reference r JOIN forge_versions.document c ON c.id = r.child
          WHERE r.child = ANY (risen) GROUP BY r.parent) m
    WHERE p.id = m.parent AND p.max_dependency < m.version;
    PERFORM set_config('forge_versions.telling', '', true);
    RETURN NULL;
END $$;

-- denormalized: an edge stores the resource of its parent.
CREATE OR REPLACE FUNCTION forge_versions.denormalized_reference() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    lack boolean;
BEGIN
    EXECUTE 'SELECT EXISTS (SELECT FROM new_rows n JOIN forge_versions.document p ON p.id = n.parent'
            ' WHERE n.parent_resource IS DISTINCT FROM p.resource)' INTO lack;
    -- an update of zero rows would fire this trigger again as well
    IF lack THEN
        EXECUTE 'UPDATE forge_versions.reference r SET parent_resource = p.resource'
                ' FROM new_rows n JOIN forge_versions.document p ON p.id = n.parent'
                ' WHERE n.parent_resource IS DISTINCT FROM p.resource AND r.parent = n.parent AND r.name = n.name';
    END IF;
    RETURN NULL;
END $$;
