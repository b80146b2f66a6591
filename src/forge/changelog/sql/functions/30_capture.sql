-- Writes the trigger functions of one tracked table: forge.log_<id>_insert, _update, _delete, _truncate, _empty, _each,
-- _row, _mark; of a partitioned one also _begin, _move.
--
-- Invariants of these functions:
--   * search_path is pinned, and those printing settings that the table's types depend on; nothing else in the
--     writer's session affects what is logged.
--   * Old and new rows of an update are paired by position. A changed key is a delete and an insert, all deletes of a
--     statement before all its inserts. When the two sides differ in number, every old row is a delete and every new
--     one an insert.
--   * The log row is written before the wake-up is decided, so the writer holds its lock on the log by then.
--   * Of one key, a later change has a later `at`: an insert of a statement that also deletes is a microsecond later,
--     and where `rank` is set `at` is the time that it stands for, a microsecond apart for updates, deletes, inserts.
CREATE OR REPLACE FUNCTION forge.write_functions(tracked integer, relation oid, version integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    setup     forge.tracked_table := (SELECT t FROM forge.tracked_table t WHERE t.id = tracked);
    plain     boolean;
    pins      text;
    o         text := 'forge_o';
    n         text := 'forge_n';
    r         text := 'forge_r';
    delta     boolean;
    ordered   boolean := forge.log_order(relation) = 'marks';
    declared  text;
    context   text;
    rank_into text := '';
    rank_done text := '';
    parted    boolean;
    moves     jsonb := '{}';
    lost      text := '';
    whole     text;
    begins    text;
    ends      text;
    wake      text;
    wake_old  text;
    wake_new  text;
    which     text;
    put       text;
    log       text := 'INSERT INTO forge.forge_event_log (rank, transaction_id, at, day, version, op, row_id, before, after, hidden, '
                      'user_id, function_name, trace_id, context, db_user, application_name) ';
    tail      text := 'v_user, v_function, v_trace, v_context, session_user, v_application';
    head      text;
    late      text;
    pairs     text;
    name      text;
    relation_name text;
BEGIN
    -- functions take at most 100 arguments; and columns may be named only if DDL that drops them is seen at once
    SELECT bool_and(c.native), count(*) <= 90 AND (forge.sees_ddl() OR NOT bool_and(c.native)) INTO plain, delta
    FROM forge.table_columns(relation, setup.excluded, setup.masked) c;
    SELECT coalesce(string_agg(format(' SET %s = %L', split_part(p, '=', 1), split_part(p, '=', 2)), ''), '') INTO pins
    FROM (SELECT DISTINCT unnest(c.pins) p FROM forge.table_columns(relation, setup.excluded, setup.masked) c) pin;
    -- an inheriting child's own columns are not the table's
    plain := plain AND NOT forge.has_children(relation);
    -- row_to_json(alias) would mean a column of that name if one existed
    WHILE EXISTS (SELECT FROM forge.relations_of(relation) part JOIN pg_attribute a ON a.attrelid = part
                  WHERE a.attname IN (o, n, r, o || '_image', n || '_image')) LOOP
        o := o || '_'; n := n || '_'; r := r || '_';
    END LOOP;
    SELECT c.relname, c.relkind = 'p' INTO relation_name, parted FROM pg_class c WHERE c.oid = relation;

    head := format('v_rank, v_transaction, v_at, v_day, %s, ', version);
    late := format('v_rank, v_transaction, v_at + interval ''1 microsecond'', v_day, %s, ', version);
    -- single columns: the fields of a whole row of a transition table are miscounted after a dropped column
    pairs := format(
        '(SELECT row_number() OVER () AS %3$s, %1$s, %1$s.* FROM forge_old_rows %1$s) a '
        'FULL JOIN (SELECT row_number() OVER () AS %3$s, %2$s, %2$s.* FROM forge_new_rows %2$s) b USING (%3$s)', o, n, r);
    declared := $d$
#variable_conflict use_variable
DECLARE
    v_rows        bigint;
    v_old_rows    bigint;
    v_logged      bigint;
    v_rank        bigint;
    v_row         text := '*';
    v_transaction xid8 := pg_current_xact_id();
    v_at          timestamptz := clock_timestamp();
    v_day         date := forge.log_day(v_at);
    v_user        text := nullif(current_setting('forge.user_id', true), '');
    v_function    text := nullif(current_setting('forge.function_name', true), '');
    v_trace       text := nullif(current_setting('forge.trace_id', true), '');
    v_context     json;
    v_application text := nullif(current_setting('application_name'), '');
    v_mark        text;
$d$ || CASE WHEN parted THEN $d$    v_name        text;
    v_left        text;
    v_entered     text;
$d$ ELSE '' END || E'BEGIN\n';
    context := $d$    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
$d$;
    IF ordered THEN
        rank_into := $d$    v_mark := ltrim(nullif(current_setting('forge.mark_%1$s_' || pg_trigger_depth(), true), ''), '-');
    -- a writer could have set it, but cannot seal it
    IF forge.sealed(v_mark, v_transaction) THEN
        v_rank := split_part(v_mark, ' ', %2$s);
        v_at := timestamptz 'epoch' + split_part(v_mark, ' ', 4)::bigint * interval '1 microsecond'
                + (%2$s - 1) * interval '1 microsecond';
        v_day := forge.log_day(v_at);
    END IF;
$d$;
        rank_done := format($d$    IF v_mark IS NOT NULL THEN
        PERFORM set_config('forge.mark_%s_' || pg_trigger_depth(), '-' || v_mark, true);
    END IF;
$d$, tracked);
    END IF;
    -- the row is looked up only when a reader must be woken
    wake := $d$
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll'
       AND pg_try_advisory_xact_lock_shared(%1$s) THEN
        %3$s
        PERFORM pg_notify('forge_changes', forge.wakeup_payload(%2$L, TG_OP, v_row));
    END IF;
    RETURN NULL;
$d$;
    which := 'IF v_rows = 1 THEN SELECT %s INTO v_row FROM %s %s; END IF;';
    wake_old := format(wake, forge.wakeup_lock(), relation_name, format(which, forge.row_id_expression(relation, o), 'forge_old_rows', o));
    wake_new := format(wake, forge.wakeup_lock(), relation_name, format(which, forge.row_id_expression(relation, n), 'forge_new_rows', n));
    wake := format(wake, forge.wakeup_lock(), relation_name, '');
    begins := CASE setup.on_failure WHEN 'invalidate' THEN E'BEGIN\n' ELSE '' END || context;
    whole := format('INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, user_id, function_name, trace_id, context, db_user,'
                    ' application_name) VALUES (v_transaction, v_at, v_day, %s, ''X'', v_user, v_function, v_trace, %%s, session_user, v_application)', version);
    ends := CASE setup.on_failure WHEN 'invalidate' THEN format($d$
EXCEPTION WHEN OTHERS THEN
    %s;
    RAISE WARNING 'forge could not log a %% on %%: %%', TG_OP, %L, SQLERRM
        USING HINT = 'the table is logged as changed as a whole; see forge doctor';
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll' THEN
        PERFORM pg_notify('forge_changes', forge.wakeup_payload(%L, 'INVALIDATE', '*'));
    END IF;
    PERFORM set_config('forge.mark_%s_' || pg_trigger_depth(), '', true);
    RETURN NULL;
END;
$d$, format(whole, $d$json_build_object('failure', SQLERRM, 'sqlstate', SQLSTATE)$d$), relation_name, relation_name, tracked) ELSE '' END;

    -- An UPDATE that moves a row to another partition deletes it in one and inserts it in the other; the UPDATE trigger
    -- gets both rows. In a MERGE (PostgreSQL 15 to 18) its DELETE and INSERT triggers get them, and those fire only if
    -- the MERGE has such actions: else no trigger gets them. So the first row that left a partition, and the first that
    -- entered one, while an UPDATE runs are remembered, and must be among the rows of some trigger of the statement.
    -- forge.updating_<id> has one letter per running UPDATE, the innermost first: `i` if its statement inserts too
    -- (MERGE, ON CONFLICT), so that its INSERT trigger handles the entering rows, else `u`.
    IF parted THEN
        PERFORM forge.write_function(tracked, 'begin', '', format($d$
DECLARE
    v_name    text := 'forge.inserting_%1$s_' || pg_trigger_depth();
    v_inserts text := coalesce(current_setting(v_name, true), '');
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM set_config(v_name, v_inserts || '+', true);
    ELSE
        PERFORM set_config('forge.updating_%1$s', concat(CASE v_inserts WHEN '' THEN 'u' ELSE 'i' END,
                                                         current_setting('forge.updating_%1$s', true)), true);
    END IF;
    RETURN NULL;
END$d$, tracked));
        PERFORM forge.write_function(tracked, 'move', pins, format($d$
DECLARE
    v_name text := CASE TG_OP WHEN 'INSERT' THEN 'forge.entered_%1$s_' ELSE 'forge.left_%1$s_' END || pg_trigger_depth();
BEGIN
    IF coalesce(current_setting(v_name, true), '') = '' THEN
        IF TG_OP = 'INSERT' THEN
            PERFORM set_config(v_name, %2$s, true);
        ELSE
            PERFORM set_config(v_name, %3$s, true);
        END IF;
    END IF;
    RETURN NULL;
END$d$, tracked, forge.row_digest_expression(relation, 'NEW'), forge.row_digest_expression(relation, 'OLD')));
        moves := jsonb_build_object(
            'insert', format($d$    v_name := 'forge.inserting_%1$s_' || pg_trigger_depth();
    PERFORM set_config(v_name, substr(current_setting(v_name, true), 2), true);
    v_name := 'forge.entered_%1$s_' || pg_trigger_depth();
    v_entered := nullif(current_setting(v_name, true), '');
    IF v_entered IS NOT NULL THEN
        IF EXISTS (SELECT FROM forge_new_rows %2$s WHERE %3$s = v_entered) THEN
            PERFORM set_config(v_name, '', true);
        END IF;
    END IF;
$d$, tracked, n, forge.row_digest_expression(relation, n)),
            'update', format($d$    PERFORM set_config('forge.updating_%1$s', substr(current_setting('forge.updating_%1$s', true), 2), true);
    v_left := nullif(current_setting('forge.left_%1$s_' || pg_trigger_depth(), true), '');
    v_entered := nullif(current_setting('forge.entered_%1$s_' || pg_trigger_depth(), true), '');
    IF num_nonnulls(v_left, v_entered) > 0 THEN
        PERFORM set_config('forge.left_%1$s_' || pg_trigger_depth(), '', true), set_config('forge.entered_%1$s_' || pg_trigger_depth(), '', true);
        -- the INSERT trigger of the same statement fires later
        IF current_setting('forge.inserting_%1$s_' || pg_trigger_depth(), true) <> '' THEN
            v_entered := NULL;
        END IF;
    END IF;
$d$, tracked),
            'delete', format($d$    v_left := nullif(current_setting('forge.left_%1$s_' || pg_trigger_depth(), true), '');
    IF v_left IS NOT NULL THEN
        IF EXISTS (SELECT FROM forge_old_rows %2$s WHERE %3$s = v_left) THEN
            PERFORM set_config('forge.left_%1$s_' || pg_trigger_depth(), '', true);
        END IF;
    END IF;
$d$, tracked, o, forge.row_digest_expression(relation, o)));
        lost := format($d$    IF num_nonnulls(v_left, v_entered) > 0 THEN
        IF v_left IS NOT NULL AND NOT EXISTS (SELECT FROM forge_old_rows %1$s WHERE %2$s = v_left)
           OR v_entered IS NOT NULL AND NOT EXISTS (SELECT FROM forge_new_rows %3$s WHERE %4$s = v_entered) THEN
            %5$s;
            IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll' THEN
                PERFORM pg_notify('forge_changes', forge.wakeup_payload(%6$L, 'INVALIDATE', '*'));
            END IF;
        END IF;
    END IF;
$d$, o, forge.row_digest_expression(relation, o), n, forge.row_digest_expression(relation, n),
            format(whole, $d$json_build_object('reason', 'MERGE that moves rows between partitions')$d$), relation_name);
    END IF;

    FOREACH name IN ARRAY ARRAY['insert', 'delete'] LOOP
        put := CASE name
            WHEN 'insert' THEN format(
                '%s SELECT %s''I'', %s, NULL, %s, NULL, %s FROM forge_new_rows %s%s', log, head,
                forge.row_id_expression(relation, n), forge.image_expression(n, plain), tail, n,
                forge.image_source(relation, setup, n, n, plain))
            ELSE format(
                '%s SELECT %s''D'', %s, %s, NULL, NULL, %s FROM forge_old_rows %s%s', log, head,
                forge.row_id_expression(relation, o), forge.image_expression(o, plain), tail, o,
                forge.image_source(relation, setup, o, o, plain)) END;
        PERFORM forge.write_function(tracked, name, pins, concat(declared, moves ->> name, begins) || format($d$
%s    %s;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        RETURN NULL;
    END IF;
%s%s%s$d$,
            format(rank_into, tracked, CASE name WHEN 'insert' THEN 3 ELSE 2 END), put, rank_done,
            CASE name WHEN 'insert' THEN wake_new ELSE wake_old END, ends) || 'END');
    END LOOP;

    -- Most updates change one row: that is tried first, in one statement, which finds nothing if there are more rows.
    PERFORM forge.write_function(tracked, 'update', pins, concat(declared, moves ->> 'update', begins, lost) || format($d$
%1$s    %2$s;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        SELECT (SELECT count(*) FROM forge_new_rows), (SELECT count(*) FROM forge_old_rows) INTO v_rows, v_old_rows;
        IF v_rows = 0 AND v_old_rows = 0 THEN
            RETURN NULL;
        ELSIF v_rows = v_old_rows AND v_rows > 1 THEN
            %3$s;
            GET DIAGNOSTICS v_logged = ROW_COUNT;
        ELSE
            v_logged := 0;
        END IF;
        IF v_logged = v_rows THEN
            NULL;
        ELSIF v_rows = v_old_rows AND v_rows > 1 THEN
            %4$s;
            %5$s;
        ELSE
            %7$s;
            %8$s;
        END IF;
    END IF;
%10$s%6$s%9$s$d$,
        format(rank_into, tracked, 1),
        format('%s SELECT %s''U'', %s, %s, %s, %s, %s FROM forge_old_rows %s%s CROSS JOIN forge_new_rows %s%s'
               ' WHERE NOT EXISTS (SELECT FROM forge_new_rows OFFSET 1) AND NOT EXISTS (SELECT FROM forge_old_rows OFFSET 1) AND %s', log, head,
               forge.row_id_expression(relation, n), forge.image_expression(o, plain), forge.image_expression(n, plain),
               forge.hidden_expression(relation, setup, o, n), tail,
               o, forge.image_source(relation, setup, o, o, plain), n, forge.image_source(relation, setup, n, n, plain),
               forge.key_same_expression(relation, o, n)),
        format('%s SELECT %s''U'', %s, %s, %s, %s, %s FROM %s%s%s WHERE %s ORDER BY a.' || r, log, head,
               forge.row_id_expression(relation, 'b'),
               CASE WHEN delta THEN forge.delta_expression(relation, setup, 'a', 'b')
                    ELSE forge.image_expression(CASE WHEN plain THEN 'a.' || o ELSE o END, plain) END,
               forge.image_expression(CASE WHEN plain THEN 'b.' || n ELSE n END, plain),
               forge.hidden_expression(relation, setup, 'a', 'b'), tail, pairs,
               CASE WHEN delta THEN '' ELSE forge.image_source(relation, setup, 'a', o, plain) END,
               forge.image_source(relation, setup, 'b', n, plain),
               forge.key_same_expression(relation, 'a', 'b')),
        format('%s SELECT %s''D'', %s, %s, NULL, NULL, %s FROM %s%s WHERE NOT (%s) ORDER BY a.' || r, log, head,
               forge.row_id_expression(relation, 'a'),
               forge.image_expression(CASE WHEN plain THEN 'a.' || o ELSE o END, plain), tail, pairs,
               forge.image_source(relation, setup, 'a', o, plain),
               forge.key_same_expression(relation, 'a', 'b')),
        format('%s SELECT %s''I'', %s, NULL, %s, NULL, %s FROM %s%s WHERE NOT (%s) ORDER BY a.' || r, log, late,
               forge.row_id_expression(relation, 'b'),
               forge.image_expression(CASE WHEN plain THEN 'b.' || n ELSE n END, plain), tail, pairs,
               forge.image_source(relation, setup, 'b', n, plain),
               forge.key_same_expression(relation, 'a', 'b')),
        wake_new,
        format('%s SELECT %s''D'', %s, %s, NULL, NULL, %s FROM forge_old_rows %s%s', log, head,
               forge.row_id_expression(relation, o), forge.image_expression(o, plain), tail, o,
               forge.image_source(relation, setup, o, o, plain)),
        format('%s SELECT %s''I'', %s, NULL, %s, NULL, %s FROM forge_new_rows %s%s', log, late,
               forge.row_id_expression(relation, n), forge.image_expression(n, plain), tail, n,
               forge.image_source(relation, setup, n, n, plain)),
        ends, rank_done) || 'END');

    -- Row by row: where forge.log_order requires it, and in the replica role, because logical-replication apply fires
    -- no statement triggers.
    FOREACH name IN ARRAY ARRAY['each', 'row'] LOOP
        PERFORM forge.write_function(tracked, name, pins, declared || begins || format($d$
    IF TG_OP = 'INSERT' THEN
        %1$s RETURNING row_id INTO v_row;
    ELSIF TG_OP = 'DELETE' THEN
        %2$s RETURNING row_id INTO v_row;
    ELSIF %3$s THEN
        %4$s RETURNING row_id INTO v_row;
    ELSE
        %2$s;
        %1$s RETURNING row_id INTO v_row;
    END IF;
%5$s%6$s$d$,
        format('%s SELECT %s''I'', %s, NULL, %s, NULL, %s FROM (SELECT 1) forge_one%s', log, late, forge.row_id_expression(relation, 'NEW'),
               forge.image_expression(CASE WHEN plain THEN 'NEW' ELSE n END, plain), tail, forge.image_source(relation, setup, 'NEW', n, plain)),
        format('%s SELECT %s''D'', %s, %s, NULL, NULL, %s FROM (SELECT 1) forge_one%s', log, head, forge.row_id_expression(relation, 'OLD'),
               forge.image_expression(CASE WHEN plain THEN 'OLD' ELSE o END, plain), tail, forge.image_source(relation, setup, 'OLD', o, plain)),
        forge.key_same_expression(relation, 'OLD', 'NEW'),
        format('%s SELECT %s''U'', %s, %s, %s, %s, %s FROM (SELECT 1) forge_one%s%s', log, head, forge.row_id_expression(relation, 'NEW'),
               forge.image_expression(CASE WHEN plain THEN 'OLD' ELSE o END, plain),
               forge.image_expression(CASE WHEN plain THEN 'NEW' ELSE n END, plain),
               forge.hidden_expression(relation, setup, 'OLD', 'NEW'), tail,
               forge.image_source(relation, setup, 'OLD', o, plain), forge.image_source(relation, setup, 'NEW', n, plain)),
        wake, ends) || 'END');
    END LOOP;

    -- TRUNCATE of the table is one change. TRUNCATE of a single partition removes some of the table's rows, so each of
    -- them is logged as deleted; `forge.truncating_<id>` tells the two apart, and a writer cannot know its value. An
    -- inheriting child or parent is always logged row by row, because TRUNCATE ONLY looks the same to these triggers.
    PERFORM forge.write_function(tracked, 'truncate', pins, declared || begins || format($d$
    IF TG_WHEN = 'BEFORE' THEN
        PERFORM set_config('forge.truncating_%1$s', forge.seal('truncating', v_transaction), true);
        RETURN NULL;
    END IF;
    PERFORM set_config('forge.truncating_%1$s', '', true);
    %2$s;
%3$s%4$s$d$, tracked, format('%s SELECT %s''T'', NULL, NULL, NULL, NULL, %s', log, head, tail), wake, ends) || 'END');

    PERFORM forge.write_function(tracked, 'empty', pins || ' SET row_security = off', declared || begins || format($d$
    IF current_setting('forge.truncating_%1$s', true) = forge.seal('truncating', v_transaction) THEN
        RETURN NULL;
    END IF;
    -- an old snapshot does not show the rows that are removed
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        %6$s;
        %4$s
    END IF;
    EXECUTE %2$L || TG_RELID::regclass || %3$L
    USING v_rank, v_transaction, v_at, v_day, v_user, v_function, v_trace, v_context, v_application;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        RETURN NULL;
    END IF;
%4$s%5$s$d$, tracked,
        format('%s SELECT $1, $2, $3, $4, %s, ''D'', %s, %s, NULL, NULL, $5, $6, $7, $8, session_user, $9 FROM ONLY ', log, version,
               forge.row_id_expression(relation, o), forge.image_expression(o, plain)),
        format(' %s%s', o, forge.image_source(relation, setup, o, o, plain)),
        wake, ends, format(whole, $d$json_build_object('reason', 'TRUNCATE of a part under an old snapshot')$d$)) || 'END');

    -- Fires before any other row trigger of the statement, and records for the statement's own log rows that they come
    -- first: its updates, then its deletes, then its inserts. Referential actions on one child run as one statement,
    -- and the firing order of their triggers says nothing; but a deleted row is not updated afterwards.
    PERFORM forge.write_function(tracked, 'mark', '', format($d$
DECLARE
    v_name text := 'forge.mark_%s_' || pg_trigger_depth();
    v_mark text;
BEGIN
    IF coalesce(current_setting(v_name, true), '') !~ '^[0-9]' THEN
        v_mark := concat_ws(' ', nextval('forge.event_id'), nextval('forge.event_id'), nextval('forge.event_id'),
                            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
        PERFORM set_config(v_name, concat_ws(' ', v_mark, forge.seal(v_mark, pg_current_xact_id())), true);
    END IF;
    RETURN NULL;
END$d$, tracked));
END
$body$;

-- A seal of a text that only Forge's own functions can create within a transaction: settings that a writer could set
-- carry it.
CREATE OR REPLACE FUNCTION forge.seal(value text, transaction xid8) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT encode(sha256(convert_to(concat_ws(' ', i.secret, transaction, value), 'UTF8')), 'hex')
    FROM forge.log_identity i ORDER BY i.id DESC LIMIT 1
$body$;
REVOKE ALL ON FUNCTION forge.seal(text, xid8) FROM PUBLIC;

-- Whether the last word of a text is the seal of the text before it.
CREATE OR REPLACE FUNCTION forge.sealed(value text, transaction xid8) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT value IS NOT NULL AND split_part(value, ' ', 5) = forge.seal(left(value, -65), transaction)
$body$;
REVOKE ALL ON FUNCTION forge.sealed(text, xid8) FROM PUBLIC;

CREATE OR REPLACE FUNCTION forge.write_function(tracked integer, name text, pins text, body text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    owner text;
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION forge.log_%s_%s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER '
                   'SET search_path = pg_catalog, pg_temp%s AS %L', tracked, name, pins, body);
    EXECUTE format('REVOKE ALL ON FUNCTION forge.log_%s_%s() FROM PUBLIC', tracked, name);
    -- whichever role enables a table, the owner of Forge owns the functions and may have to replace them
    owner := (SELECT r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'forge');
    IF owner <> current_user THEN
        EXECUTE format('ALTER FUNCTION forge.log_%s_%s() OWNER TO %I', tracked, name, owner);
    END IF;
END
$body$;

-- The writer's forge.context as JSON; raises if it is not valid. Only an object that jsonb can hold is valid.
CREATE OR REPLACE FUNCTION forge.parsed_context(value text) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF octet_length(value) <= 8192 AND jsonb_typeof(value::jsonb) = 'object' THEN
        RETURN value::json;
    END IF;
    RAISE invalid_text_representation;
EXCEPTION WHEN data_exception OR statement_too_complex OR program_limit_exceeded THEN
    RAISE EXCEPTION USING ERRCODE = 'FG201', MESSAGE = 'the setting forge.context is not a JSON object of 8 kB at the most',
        HINT = 'set it by SELECT forge_context(…)';
END
$body$;

-- The advisory lock that the awake reader holds: see forge.changelog.wakeup.
CREATE OR REPLACE FUNCTION forge.wakeup_lock() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 5075401093471535105::bigint;

-- A hint, never the data: v1:{table}:{OP}:{row}#{last id}, always below the size limit of NOTIFY.
CREATE OR REPLACE FUNCTION forge.wakeup_payload(relation text, op text, row_id text) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT format('v1:%s:%s:%s#%s', replace(replace(relation, '%', '%25'), ':', '%3A'), op,
                  CASE WHEN octet_length(row_id) < 6000 THEN coalesce(row_id, '*') ELSE '*' END, lastval())
$body$;
