-- The usual way to capture changes, to compare with: for each row one log entry with both images as jsonb,
-- one indexed log table, and one NOTIFY.
CREATE TABLE peer_events (
    id             bigserial PRIMARY KEY,
    table_name     varchar(255) NOT NULL,
    schema_name    varchar(255) DEFAULT 'public',
    operation      varchar(10) NOT NULL,
    row_id         bigint,
    old_data       jsonb,
    new_data       jsonb,
    transaction_id bigint DEFAULT txid_current(),
    at             timestamptz NOT NULL DEFAULT now(),
    user_id        text,
    function_name  varchar(255),
    trace_id       varchar(32)
);

CREATE FUNCTION peer_log() RETURNS trigger LANGUAGE plpgsql AS $body$
DECLARE
    touched bigint := CASE WHEN TG_OP = 'DELETE' THEN OLD.id ELSE NEW.id END;
BEGIN
    INSERT INTO peer_events (table_name, operation, row_id, old_data, new_data, user_id, function_name, trace_id)
    VALUES (TG_TABLE_NAME, TG_OP, touched,
            CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END,
            CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END,
            current_setting('forge.user_id', true), current_setting('forge.function_name', true), current_setting('forge.trace_id', true));
    PERFORM pg_notify('peer_changes',
        jsonb_build_object('table', TG_TABLE_NAME, 'operation', TG_OP, 'id', touched, 'timestamp', now())::text);
    RETURN NULL;
END
$body$;
