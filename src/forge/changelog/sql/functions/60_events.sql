-- Columns whose old and new values differ, hidden ones last.
CREATE OR REPLACE FUNCTION forge.changed_columns(before json, after json, hidden text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $body$
    SELECT coalesce(array_agg(o.key ORDER BY o.n), '{}') || coalesce(hidden, '{}')
    FROM json_each(before) WITH ORDINALITY o (key, value, n)
    LEFT JOIN json_each(after) a (key, value) ON a.key = o.key
    WHERE o.value::text IS DISTINCT FROM a.value::text AND o.key <> ALL (coalesce(hidden, '{}')) AND o.key <> '$redacted'
$body$;

-- The log in the form that users query.
CREATE OR REPLACE VIEW public.forge_events AS
SELECT l.id,
       v.table_name,
       v.schema_name,
       CASE l.op WHEN 'I' THEN 'INSERT' WHEN 'U' THEN 'UPDATE' WHEN 'D' THEN 'DELETE' WHEN 'T' THEN 'TRUNCATE'
                 WHEN 'S' THEN 'SCHEMA' WHEN 'X' THEN 'INVALIDATE' WHEN 'R' THEN 'REDACT' END AS operation,
       l.row_id,
       CASE WHEN l.op = 'U' THEN l.after::jsonb || l.before::jsonb ELSE l.before::jsonb END AS old_data,
       l.after::jsonb AS new_data,
       CASE WHEN l.op = 'U' THEN forge.changed_columns(l.before, l.after, l.hidden) END AS changed_columns,
       l.transaction_id::text::bigint AS transaction_id,
       l.at AS "timestamp",
       l.user_id,
       l.function_name,
       l.trace_id,
       l.context::jsonb AS context,
       l.db_user AS "session_user",
       l.application_name
FROM forge.forge_event_log l
JOIN forge.table_version v ON v.id = l.version;
REVOKE ALL ON public.forge_events FROM PUBLIC;

-- Sets the actor and the reason of changes until the end of the transaction; NULL unsets a value.
CREATE OR REPLACE FUNCTION public.forge_context(user_id text DEFAULT NULL, function_name text DEFAULT NULL, trace_id text DEFAULT NULL, more jsonb DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF jsonb_typeof(more) <> 'object' OR octet_length(more::text) > 8192 THEN
        RAISE EXCEPTION USING ERRCODE = 'FG201', MESSAGE = 'more is not a JSON object of 8 kB at the most',
            HINT = 'keep the data in a table and pass its key';
    END IF;
    PERFORM set_config('forge.user_id', coalesce(user_id, ''), true), set_config('forge.function_name', coalesce(function_name, ''), true),
            set_config('forge.trace_id', coalesce(trace_id, ''), true), set_config('forge.context', coalesce(more::text, ''), true);
END
$body$;
