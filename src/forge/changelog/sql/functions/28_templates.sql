-- The trigger functions of a tracked table, as templates: one per function, and the parts that they share. A word in
-- double braces is replaced; forge.write_functions computes the words.
--
-- Invariants of these functions:
--   * search_path is pinned, and those printing settings that the table's types depend on; nothing else in the
--     writer's session affects what is logged.
--   * Old and new rows of an update are paired by position. A changed key is a delete and an insert, all deletes of a
--     statement before all its inserts. When the two sides differ in number, every old row is a delete and every new
--     one an insert.
--   * The log row is written before the wake-up is decided, so the writer holds its lock on the log by then. The row
--     that the wake-up names is looked up only when a reader must be woken.
--   * Of one key, a later change has a later `at`: an insert of a statement that also deletes is a microsecond later,
--     and where `rank` is set `at` is the time that it stands for, a microsecond apart for updates, deletes, inserts.
--
-- Words:
--   tracked, version, table   numbers of the tracked table and its version, its name as a literal
--   old, new                  aliases of rows of the transition tables; `a` and `b` are those rows paired by `number`
--   X_id, X_image, X_source   key string and image of the row X (old, new, a, b, OLD, NEW), FROM items of the image
--   a_before, a_before_source image of `a`, or only its values that differ from `b`
--   X_Y_same_key, X_Y_hidden  whether two rows have the same key, and the names of hidden columns that differ
--   X_digest                  digest of a row of a partitioned table

-- Replaces every {{word}} of a template. A word inside a replacement stays unchanged; an unknown word is an error.
CREATE OR REPLACE FUNCTION forge.fill(template text, words jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    pieces text[] := string_to_array(template, '{{');
    filled text := pieces[1];
    piece  text;
    word   text;
BEGIN
    FOREACH piece IN ARRAY pieces[2:] LOOP
        word := split_part(piece, '}}', 1);
        IF NOT words ? word THEN
            RAISE EXCEPTION 'the template has an unknown word: %', word;
        END IF;
        filled := concat(filled, words ->> word, substr(piece, length(word) + 3));
    END LOOP;
    RETURN filled;
END
$body$;

CREATE OR REPLACE FUNCTION forge.capture_template(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
RETURN CASE name

-- ---------------------------------------------------------------------------------------------------- the functions

WHEN 'insert' THEN $template$
{{declare}}
BEGIN
    {{begin_insert}}
{{try}}
    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
    {{take_rank_3}}
    {{log}} SELECT {{values}} 'I', {{new_id}}, NULL, {{new_image}}, NULL, {{actor}} FROM forge_new_rows {{new}}{{new_source}};
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        RETURN NULL;
    END IF;
    {{keep_rank}}
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll'
       AND pg_try_advisory_xact_lock_shared({{wakeup_lock}}) THEN
        IF v_rows = 1 THEN SELECT {{new_id}} INTO v_row FROM forge_new_rows {{new}}; END IF;
        PERFORM pg_notify('forge_changes', forge.wakeup_payload({{table}}, TG_OP, v_row));
    END IF;
    RETURN NULL;
{{failed}}
END
$template$

WHEN 'delete' THEN $template$
{{declare}}
BEGIN
    {{begin_delete}}
{{try}}
    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
    {{take_rank_2}}
    {{log}} SELECT {{values}} 'D', {{old_id}}, {{old_image}}, NULL, NULL, {{actor}} FROM forge_old_rows {{old}}{{old_source}};
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        RETURN NULL;
    END IF;
    {{keep_rank}}
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll'
       AND pg_try_advisory_xact_lock_shared({{wakeup_lock}}) THEN
        IF v_rows = 1 THEN SELECT {{old_id}} INTO v_row FROM forge_old_rows {{old}}; END IF;
        PERFORM pg_notify('forge_changes', forge.wakeup_payload({{table}}, TG_OP, v_row));
    END IF;
    RETURN NULL;
{{failed}}
END
$template$

-- Most updates change one row: that is tried first, in one statement, which finds nothing if there are more rows.
WHEN 'update' THEN $template$
{{declare}}
BEGIN
    {{begin_update}}
{{try}}
    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
    {{check_moves}}
    {{take_rank_1}}
    {{log}} SELECT {{values}} 'U', {{new_id}}, {{old_image}}, {{new_image}}, {{old_new_hidden}}, {{actor}}
        FROM forge_old_rows {{old}}{{old_source}} CROSS JOIN forge_new_rows {{new}}{{new_source}}
        WHERE NOT EXISTS (SELECT FROM forge_new_rows OFFSET 1) AND NOT EXISTS (SELECT FROM forge_old_rows OFFSET 1)
          AND {{old_new_same_key}};
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        SELECT (SELECT count(*) FROM forge_new_rows), (SELECT count(*) FROM forge_old_rows) INTO v_rows, v_old_rows;
        IF v_rows = 0 AND v_old_rows = 0 THEN
            RETURN NULL;
        ELSIF v_rows = v_old_rows AND v_rows > 1 THEN
            {{log}} SELECT {{values}} 'U', {{b_id}}, {{a_before}}, {{b_image}}, {{a_b_hidden}}, {{actor}}
                FROM {{pairs}}{{a_before_source}}{{b_source}} WHERE {{a_b_same_key}} ORDER BY a.{{number}};
            GET DIAGNOSTICS v_logged = ROW_COUNT;
        ELSE
            v_logged := 0;
        END IF;
        IF v_logged = v_rows THEN
            NULL;
        ELSIF v_rows = v_old_rows AND v_rows > 1 THEN
            {{log}} SELECT {{values}} 'D', {{a_id}}, {{a_image}}, NULL, NULL, {{actor}}
                FROM {{pairs}}{{a_source}} WHERE NOT ({{a_b_same_key}}) ORDER BY a.{{number}};
            {{log}} SELECT {{later_values}} 'I', {{b_id}}, NULL, {{b_image}}, NULL, {{actor}}
                FROM {{pairs}}{{b_source}} WHERE NOT ({{a_b_same_key}}) ORDER BY a.{{number}};
        ELSE
            {{log}} SELECT {{values}} 'D', {{old_id}}, {{old_image}}, NULL, NULL, {{actor}} FROM forge_old_rows {{old}}{{old_source}};
            {{log}} SELECT {{later_values}} 'I', {{new_id}}, NULL, {{new_image}}, NULL, {{actor}} FROM forge_new_rows {{new}}{{new_source}};
        END IF;
    END IF;
    {{keep_rank}}
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll'
       AND pg_try_advisory_xact_lock_shared({{wakeup_lock}}) THEN
        IF v_rows = 1 THEN SELECT {{new_id}} INTO v_row FROM forge_new_rows {{new}}; END IF;
        PERFORM pg_notify('forge_changes', forge.wakeup_payload({{table}}, TG_OP, v_row));
    END IF;
    RETURN NULL;
{{failed}}
END
$template$

-- Row by row: where forge.log_order requires it (`each`), and in the replica role (`row`), because logical-replication
-- apply fires no statement triggers.
WHEN 'each' THEN forge.capture_template('row')
WHEN 'row' THEN $template$
{{declare}}
BEGIN
{{try}}
    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
    IF TG_OP = 'INSERT' THEN
        {{log}} SELECT {{later_values}} 'I', {{NEW_id}}, NULL, {{NEW_image}}, NULL, {{actor}}
            FROM (SELECT 1) forge_one{{NEW_source}} RETURNING row_id INTO v_row;
    ELSIF TG_OP = 'DELETE' THEN
        {{log}} SELECT {{values}} 'D', {{OLD_id}}, {{OLD_image}}, NULL, NULL, {{actor}}
            FROM (SELECT 1) forge_one{{OLD_source}} RETURNING row_id INTO v_row;
    ELSIF {{OLD_NEW_same_key}} THEN
        {{log}} SELECT {{values}} 'U', {{NEW_id}}, {{OLD_image}}, {{NEW_image}}, {{OLD_NEW_hidden}}, {{actor}}
            FROM (SELECT 1) forge_one{{OLD_source}}{{NEW_source}} RETURNING row_id INTO v_row;
    ELSE
        {{log}} SELECT {{values}} 'D', {{OLD_id}}, {{OLD_image}}, NULL, NULL, {{actor}}
            FROM (SELECT 1) forge_one{{OLD_source}};
        {{log}} SELECT {{later_values}} 'I', {{NEW_id}}, NULL, {{NEW_image}}, NULL, {{actor}}
            FROM (SELECT 1) forge_one{{NEW_source}} RETURNING row_id INTO v_row;
    END IF;
    {{wake}}
    RETURN NULL;
{{failed}}
END
$template$

-- TRUNCATE of the table is one change. TRUNCATE of a single partition removes some of the table's rows, so each of them
-- is logged as deleted; `forge.truncating_<id>` tells the two apart, and a writer cannot know its value. An inheriting
-- child or parent is always logged row by row, because TRUNCATE ONLY looks the same to these triggers.
WHEN 'truncate' THEN $template$
{{declare}}
BEGIN
{{try}}
    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
    IF TG_WHEN = 'BEFORE' THEN
        PERFORM set_config('forge.truncating_{{tracked}}', forge.seal('truncating', v_transaction), true);
        RETURN NULL;
    END IF;
    PERFORM set_config('forge.truncating_{{tracked}}', '', true);
    {{log}} SELECT {{values}} 'T', NULL, NULL, NULL, NULL, {{actor}};
    {{wake}}
    RETURN NULL;
{{failed}}
END
$template$

WHEN 'empty' THEN $template$
{{declare}}
BEGIN
{{try}}
    v_context := forge.parsed_context(nullif(current_setting('forge.context', true), ''));
    IF current_setting('forge.truncating_{{tracked}}', true) = forge.seal('truncating', v_transaction) THEN
        RETURN NULL;
    END IF;
    -- an old snapshot does not show the rows that are removed
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, user_id, function_name, trace_id, context, db_user, application_name)
        VALUES (v_transaction, v_at, v_day, {{version}}, 'X', v_user, v_function, v_trace,
                json_build_object('reason', 'TRUNCATE of a part under an old snapshot'), session_user, v_application);
        {{wake}}
        RETURN NULL;
    END IF;
    EXECUTE {{log_part}} || TG_RELID::regclass || {{part_rows}}
    USING v_rank, v_transaction, v_at, v_day, v_user, v_function, v_trace, v_context, v_application;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows = 0 THEN
        RETURN NULL;
    END IF;
    {{wake}}
    RETURN NULL;
{{failed}}
END
$template$

-- Fires before any other row trigger of the statement, and records for the statement's own log rows that they come
-- first: its updates, then its deletes, then its inserts. Referential actions on one child run as one statement, and
-- the firing order of their triggers says nothing; but a deleted row is not updated afterwards.
WHEN 'mark' THEN $template$
DECLARE
    v_name text := 'forge.mark_{{tracked}}_' || pg_trigger_depth();
    v_mark text;
BEGIN
    IF coalesce(current_setting(v_name, true), '') !~ '^[0-9]' THEN
        v_mark := concat_ws(' ', nextval('forge.event_id'), nextval('forge.event_id'), nextval('forge.event_id'),
                            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
        PERFORM set_config(v_name, concat_ws(' ', v_mark, forge.seal(v_mark, pg_current_xact_id())), true);
    END IF;
    RETURN NULL;
END
$template$

-- An UPDATE that moves a row to another partition deletes it in one and inserts it in the other; the UPDATE trigger
-- gets both rows. In a MERGE (PostgreSQL 15 to 18) its DELETE and INSERT triggers get them, and those fire only if the
-- MERGE has such actions: else no trigger gets them. So the first row that left a partition, and the first that entered
-- one, while an UPDATE runs are remembered, and must be among the rows of some trigger of the statement.
-- forge.updating_<id> has one letter per running UPDATE, the innermost first: `i` if its statement inserts too (MERGE,
-- ON CONFLICT), so that its INSERT trigger handles the entering rows, else `u`.
WHEN 'begin' THEN $template$
DECLARE
    v_name    text := 'forge.inserting_{{tracked}}_' || pg_trigger_depth();
    v_inserts text := coalesce(current_setting(v_name, true), '');
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM set_config(v_name, v_inserts || '+', true);
    ELSE
        PERFORM set_config('forge.updating_{{tracked}}', concat(CASE v_inserts WHEN '' THEN 'u' ELSE 'i' END,
                                                         current_setting('forge.updating_{{tracked}}', true)), true);
    END IF;
    RETURN NULL;
END
$template$

WHEN 'move' THEN $template$
DECLARE
    v_name text := CASE TG_OP WHEN 'INSERT' THEN 'forge.entered_{{tracked}}_' ELSE 'forge.left_{{tracked}}_' END || pg_trigger_depth();
BEGIN
    IF coalesce(current_setting(v_name, true), '') = '' THEN
        IF TG_OP = 'INSERT' THEN
            PERFORM set_config(v_name, {{NEW_digest}}, true);
        ELSE
            PERFORM set_config(v_name, {{OLD_digest}}, true);
        END IF;
    END IF;
    RETURN NULL;
END
$template$

-- ------------------------------------------------------------------------------------------------- parts of all tables

WHEN 'declare' THEN $template$
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
    {{declare_moves}}
$template$

WHEN 'log' THEN 'INSERT INTO forge.forge_event_log (rank, transaction_id, at, day, version, op, row_id, before, after, hidden, '
                'user_id, function_name, trace_id, context, db_user, application_name)'
WHEN 'values' THEN 'v_rank, v_transaction, v_at, v_day, {{version}},'
WHEN 'later_values' THEN 'v_rank, v_transaction, v_at + interval ''1 microsecond'', v_day, {{version}},'
WHEN 'actor' THEN 'v_user, v_function, v_trace, v_context, session_user, v_application'
-- single columns: the fields of a whole row of a transition table are miscounted after a dropped column
WHEN 'pairs' THEN '(SELECT row_number() OVER () AS {{number}}, {{old}}, {{old}}.* FROM forge_old_rows {{old}}) a '
                  'FULL JOIN (SELECT row_number() OVER () AS {{number}}, {{new}}, {{new}}.* FROM forge_new_rows {{new}}) b USING ({{number}})'

-- the statement that `empty` runs on the truncated part
WHEN 'log_part' THEN '{{log}} SELECT $1, $2, $3, $4, {{version}}, ''D'', {{old_id}}, {{old_image}}, NULL, NULL, '
                     '$5, $6, $7, $8, session_user, $9 FROM ONLY '
WHEN 'part_rows' THEN ' {{old}}{{old_source}}'

WHEN 'wake' THEN $template$
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll'
       AND pg_try_advisory_xact_lock_shared({{wakeup_lock}}) THEN
        PERFORM pg_notify('forge_changes', forge.wakeup_payload({{table}}, TG_OP, v_row));
    END IF;
$template$

-- ------------------------------------------------------- parts of tables whose writers continue when logging has failed

WHEN 'try' THEN 'BEGIN'
WHEN 'failed' THEN $template$
EXCEPTION WHEN OTHERS THEN
    INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, user_id, function_name, trace_id, context, db_user, application_name)
    VALUES (v_transaction, v_at, v_day, {{version}}, 'X', v_user, v_function, v_trace,
            json_build_object('failure', SQLERRM, 'sqlstate', SQLSTATE), session_user, v_application);
    RAISE WARNING 'forge could not log a % on %: %', TG_OP, {{table}}, SQLERRM
        USING HINT = 'the table is logged as changed as a whole; see forge doctor';
    IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll' THEN
        PERFORM pg_notify('forge_changes', forge.wakeup_payload({{table}}, 'INVALIDATE', '*'));
    END IF;
    PERFORM set_config('forge.mark_{{tracked}}_' || pg_trigger_depth(), '', true);
    RETURN NULL;
END;
$template$

-- ------------------------------------------------------------------------------ parts of tables with ordered statements

-- The rank of updates (1), deletes (2) and inserts (3) of a statement, from the mark that `mark` set.
WHEN 'take_rank_1' THEN replace(forge.capture_template('take_rank'), '{{nth}}', '1')
WHEN 'take_rank_2' THEN replace(forge.capture_template('take_rank'), '{{nth}}', '2')
WHEN 'take_rank_3' THEN replace(forge.capture_template('take_rank'), '{{nth}}', '3')
WHEN 'take_rank' THEN $template$
    v_mark := ltrim(nullif(current_setting('forge.mark_{{tracked}}_' || pg_trigger_depth(), true), ''), '-');
    -- a writer could have set it, but cannot seal it
    IF forge.sealed(v_mark, v_transaction) THEN
        v_rank := split_part(v_mark, ' ', {{nth}});
        v_at := timestamptz 'epoch' + split_part(v_mark, ' ', 4)::bigint * interval '1 microsecond'
                + ({{nth}} - 1) * interval '1 microsecond';
        v_day := forge.log_day(v_at);
    END IF;
$template$

WHEN 'keep_rank' THEN $template$
    IF v_mark IS NOT NULL THEN
        PERFORM set_config('forge.mark_{{tracked}}_' || pg_trigger_depth(), '-' || v_mark, true);
    END IF;
$template$

-- --------------------------------------------------------------------------------------- parts of partitioned tables

WHEN 'declare_moves' THEN $template$
    v_name        text;
    v_left        text;
    v_entered     text;
$template$

WHEN 'begin_insert' THEN $template$
    v_name := 'forge.inserting_{{tracked}}_' || pg_trigger_depth();
    PERFORM set_config(v_name, substr(current_setting(v_name, true), 2), true);
    v_name := 'forge.entered_{{tracked}}_' || pg_trigger_depth();
    v_entered := nullif(current_setting(v_name, true), '');
    IF v_entered IS NOT NULL THEN
        IF EXISTS (SELECT FROM forge_new_rows {{new}} WHERE {{new_digest}} = v_entered) THEN
            PERFORM set_config(v_name, '', true);
        END IF;
    END IF;
$template$

WHEN 'begin_update' THEN $template$
    PERFORM set_config('forge.updating_{{tracked}}', substr(current_setting('forge.updating_{{tracked}}', true), 2), true);
    v_left := nullif(current_setting('forge.left_{{tracked}}_' || pg_trigger_depth(), true), '');
    v_entered := nullif(current_setting('forge.entered_{{tracked}}_' || pg_trigger_depth(), true), '');
    IF num_nonnulls(v_left, v_entered) > 0 THEN
        PERFORM set_config('forge.left_{{tracked}}_' || pg_trigger_depth(), '', true),
                set_config('forge.entered_{{tracked}}_' || pg_trigger_depth(), '', true);
        -- the INSERT trigger of the same statement fires later
        IF current_setting('forge.inserting_{{tracked}}_' || pg_trigger_depth(), true) <> '' THEN
            v_entered := NULL;
        END IF;
    END IF;
$template$

WHEN 'begin_delete' THEN $template$
    v_left := nullif(current_setting('forge.left_{{tracked}}_' || pg_trigger_depth(), true), '');
    IF v_left IS NOT NULL THEN
        IF EXISTS (SELECT FROM forge_old_rows {{old}} WHERE {{old_digest}} = v_left) THEN
            PERFORM set_config('forge.left_{{tracked}}_' || pg_trigger_depth(), '', true);
        END IF;
    END IF;
$template$

WHEN 'check_moves' THEN $template$
    IF num_nonnulls(v_left, v_entered) > 0 THEN
        IF v_left IS NOT NULL AND NOT EXISTS (SELECT FROM forge_old_rows {{old}} WHERE {{old_digest}} = v_left)
           OR v_entered IS NOT NULL AND NOT EXISTS (SELECT FROM forge_new_rows {{new}} WHERE {{new_digest}} = v_entered) THEN
            INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, user_id, function_name, trace_id, context, db_user, application_name)
            VALUES (v_transaction, v_at, v_day, {{version}}, 'X', v_user, v_function, v_trace,
                    json_build_object('reason', 'MERGE that moves rows between partitions'), session_user, v_application);
            IF current_setting('forge.wakeup', true) IS DISTINCT FROM 'poll' THEN
                PERFORM pg_notify('forge_changes', forge.wakeup_payload({{table}}, 'INVALIDATE', '*'));
            END IF;
        END IF;
    END IF;
$template$

END;
END
$body$;
