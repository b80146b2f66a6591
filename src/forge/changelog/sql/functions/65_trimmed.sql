-- Whether log rows may be missing that a snapshot did not show: rows of transactions from `since` on, or of those
-- running then. A transaction in flight at the time of a trim has lost nothing by it, however old it is.
CREATE OR REPLACE FUNCTION forge.trimmed_since(since xid8, running xid8[], first_id bigint) RETURNS boolean
LANGUAGE sql STABLE AS $body$
    SELECT EXISTS (
        SELECT FROM forge.trimmed t
        WHERE t.last_id OPERATOR(pg_catalog.>=) first_id
          AND (t.last_transaction OPERATOR(pg_catalog.>=) since
               OR EXISTS (SELECT FROM pg_catalog.unnest(running) x
                          WHERE x OPERATOR(pg_catalog.<=) t.last_transaction AND pg_catalog.pg_visible_in_snapshot(x, t.snapshot))))
$body$;
