-- after_snapshot: Whether a snapshot does not see the transaction of a log row `l`.
(l.transaction_id >= %(xmax)s::text::xid8 OR l.transaction_id = ANY (%(running)s::text[]::xid8[]));

-- of_tables: Whether a log row `l` belongs to one of the given tables, or to any if none are given.
(%(tables)s::text[] IS NULL OR l.version = ANY (ARRAY(
    SELECT v.id FROM forge.table_version v
    WHERE v.table_name = ANY (%(tables)s) OR v.schema_name || '.' || v.table_name = ANY (%(tables)s))));

-- position: The order of log rows `l`.
coalesce(l.rank, l.id), l.id;

-- of_this_log: Whether a log row `l` was written since the last failover or restore.
l.id >= (SELECT i.first_id FROM forge.log_identity i ORDER BY i.id DESC LIMIT 1);
