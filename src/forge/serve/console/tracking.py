"""`forge.tables`: every table, tracked or not; `forge.enable` and `forge.disable`.

The rate of changes is what this node saw in the last minute. The time of the last change is read once from the newest
part of the log, and then observed. The size of a table that is locked exclusively is unknown until the lock ends,
because the query would have to wait for the lock.
"""

import logging
from datetime import datetime
from typing import Any, Final

import psycopg

from forge.errors import TrackingError
from forge.postgres.connection import Connection
from forge.react.database import QueryContext
from forge.serve.console.console_context import Desk, utc
from forge.serve.console.log import OLDEST_WRITE
from forge.tracking.settings import EXCLUDED, LAST, MASKED

EVERY: Final = 2.0
MOST: Final = 5000
NEWEST: Final = 200_000
LOCK_TIMEOUT: Final = "2s"
SIZE_TIMEOUT: Final = "250ms"
_log = logging.getLogger(__name__)

_SIZE: Final = """
    CASE WHEN c.oid IN (SELECT relation FROM taken) THEN NULL
         WHEN c.relkind = 'p' THEN (SELECT sum(pg_total_relation_size(p.relid)) FROM pg_partition_tree(c.oid) p)
         ELSE pg_total_relation_size(c.oid) END::bigint
"""
_TABLES: Final = f"""
    WITH RECURSIVE taken (relation) AS (
        SELECT coalesce(t.oid, i.indrelid, l.relation)
        FROM pg_locks l LEFT JOIN pg_index i ON i.indexrelid = l.relation
        LEFT JOIN pg_class t ON t.reltoastrelid = coalesce(i.indrelid, l.relation)
        WHERE l.mode = 'AccessExclusiveLock' AND l.pid <> pg_backend_pid()
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        UNION SELECT i.inhparent FROM taken JOIN pg_inherits i ON i.inhrelid = taken.relation
    )
    SELECT n.nspname, c.relname, r.id IS NOT NULL, coalesce({EXCLUDED}, '{{}}'), coalesce({MASKED}, '{{}}'), %s,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
           ARRAY(SELECT a.attname::text
                 FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY u (number, place)
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = u.number
                 WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY u.place),
           format('%%I.%%I', n.nspname, c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    {LAST}
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'forge') AND n.nspname NOT LIKE 'pg\\_%%'
    ORDER BY (r.id IS NULL), 1, 2 LIMIT {MOST}"""
_LAST: Final = f"""
    WITH newest AS MATERIALIZED (
        SELECT version, at FROM forge.forge_event_log ORDER BY transaction_id DESC LIMIT {NEWEST}
    )
    SELECT v.schema_name, v.table_name, max(n.at) FROM newest n JOIN forge.table_version v ON v.id = n.version
    GROUP BY 1, 2
"""
_SETTINGS: Final = f"""
    SELECT c.oid::regclass::text AS name, {EXCLUDED} AS excluded, {MASKED} AS masked, k.replica, k.on_failure
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace {LAST} WHERE c.oid = forge.find_table(%(table)s)
"""
_ENABLE: Final = "SELECT public.forge_enable_reactivity(%s, exclude => %s, mask => %s, replica => %s, on_failure => %s)"


def register(desk: Desk) -> None:
    logged: dict[tuple[str, str], datetime] = {}
    asked = False

    def look(connection: Connection) -> tuple[list[Any], float | None]:
        nonlocal asked
        if not asked:
            logged.update({(schema, table): at for schema, table, at in connection.execute(_LAST.encode()).fetchall()})
            asked = True
        ((oldest,),) = connection.execute(OLDEST_WRITE.encode()).fetchall()
        return _listed(connection), oldest

    async def tables(ctx: QueryContext) -> list[dict[str, Any]]:
        """Every table: its tracking, its rate of changes, and its size."""
        rows, oldest = await desk.ask(look)
        rates, seen = desk.activity.per_minute(), desk.activity.last
        return [
            {
                "schema": schema,
                "table": table,
                "name": name,
                "tracked": tracked,
                "key": key,
                "columns": columns,
                "excluded": excluded,
                "masked": masked,
                "changes_per_minute": rates[schema, table],
                "last_change": utc(seen.get((schema, table)) or logged.get((schema, table))),
                "size_bytes": size,
                "lag_seconds": oldest if tracked else None,
            }
            for schema, table, tracked, excluded, masked, size, columns, key, name in rows
        ]

    async def enable(
        ctx: QueryContext, table: str, exclude: list[str] | None = None, mask: list[str] | None = None
    ) -> dict[str, Any]:
        """Track a table; options that are not given keep their value, even from before the table was disabled."""
        await ctx.db.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        now = await ctx.db.fetch_one(_SETTINGS, table=table)
        assert now is not None
        excluded = (now["excluded"] or []) if exclude is None else exclude
        masked = (now["masked"] or []) if mask is None else mask
        values = (now["name"], excluded, masked, bool(now["replica"]), now["on_failure"] or "fail")
        await _change(ctx, table, _ENABLE, values)
        _log.info("%s is tracked, by the console, by %s", now["name"], ctx.auth.user)
        return {"table": now["name"]}

    async def disable(ctx: QueryContext, table: str) -> dict[str, Any]:
        """Stop tracking a table; its changes stay in the log."""
        await ctx.db.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        was = await _change(ctx, table, "SELECT public.forge_disable_reactivity(%s)", (table,))
        _log.info("%s is no longer tracked, by the console, by %s", table, ctx.auth.user)
        return {"disabled": bool(was)}

    desk.query(tables, "forge.tables", key=("schema", "table"), every=EVERY)
    desk.mutation(enable, "forge.enable")
    desk.mutation(disable, "forge.disable")


def _listed(connection: Connection) -> list[Any]:
    """Return the rows of _TABLES; without sizes if a table gets locked at that moment."""
    connection.execute(f"SET lock_timeout = '{SIZE_TIMEOUT}'".encode())
    try:
        return connection.execute((_TABLES % _SIZE).encode()).fetchall()
    except psycopg.errors.LockNotAvailable:
        return connection.execute((_TABLES % "NULL::bigint").encode()).fetchall()


async def _change(ctx: QueryContext, table: str, statement: str, values: tuple[Any, ...]) -> Any:
    """Run a change with a short lock timeout, because writers queue behind a wait for a lock."""
    try:
        return await ctx.db.fetch_value(statement, values)
    except psycopg.errors.LockNotAvailable as error:
        raise TrackingError(
            f"{table} is in use by a transaction that does not end",
            fix="try again later, or find it with forge doctor",
        ) from error
