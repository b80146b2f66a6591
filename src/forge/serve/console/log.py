"""`forge.overview`: this server, and the state of its log."""

from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from forge.changelog.partitions import sizes
from forge.config import hide
from forge.postgres import leases
from forge.postgres.connection import Connection
from forge.react.database import QueryContext
from forge.serve.console.console_context import Desk, utc
from forge.serve.permissions import permissions

EVERY: Final = 2.0
OLDEST_WRITE: Final = """
    SELECT max(extract(epoch FROM clock_timestamp() - a.xact_start))::float8 FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.backend_xid IS NOT NULL
      AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'forge.forge_event_log'::regclass)
"""
"""Age of the oldest open write to a tracked table: it bounds the lag of a reader that waits for it."""
_LOG: Final = f"""
    SELECT (SELECT count(*) FROM forge.tracked_table WHERE disabled_at IS NULL),
           (SELECT at FROM forge.forge_event_log ORDER BY transaction_id DESC LIMIT 1),
           (SELECT max(at) FROM forge.instant), ({OLDEST_WRITE}),
           (SELECT count(*) FROM forge.dead_letter) + (SELECT count(*) FROM forge.outbox_dead),
           (SELECT setting FROM pg_settings WHERE name = 'data_directory')
"""


def register(desk: Desk) -> None:
    node = desk.node

    async def overview(ctx: QueryContext) -> dict[str, Any]:
        """This server, and the state of its log."""
        groups = [group for group in node.reactor.groups.values() if not group.call.query.own]
        secured, operate = node.options.auth is not None, node.options.operate
        log = await desk.ask(_log)
        return {
            "title": desk.title,
            "version": version("forge-changes"),
            "database": log.pop("embedded") or hide(node.reactor.url),
            "node": desk.name,
            "started_at": desk.started_at,
            "following": node.reactor.following,
            "sessions": len(node.sessions),
            "groups": len(groups),
            "subscribers": sum(len(group.subscribers) for group in groups),
            "user": ctx.auth.user,
            "operate": not secured or (operate is not None and operate in permissions(ctx.auth.claims)),
            **log,
        }

    desk.query(overview, "forge.overview", every=EVERY, scope="user")


def _log(connection: Connection) -> dict[str, Any]:
    row = connection.execute(_LOG.encode()).fetchone()
    assert row is not None
    tracked, newest, instant, oldest, letters, directory = row
    held = leases.holders(connection)
    return {
        "at": datetime.now(UTC).replace(microsecond=0),
        "server_version": (connection.info.parameter_status("server_version") or "").split(" ")[0],
        "tables_tracked": tracked,
        "log_bytes": sum(sizes(connection).values()),
        "newest_change": utc(newest),
        "lag_seconds": oldest,
        "maintenance_at": utc(instant),
        "maintained_by": next((str(each) for each in held if each.name == leases.MAINTENANCE), None),
        "dead_letters": letters,
        "embedded": None if directory is None else _embedded(Path(directory)),
    }


def _embedded(cluster: Path) -> str | None:
    """Return the place of the embedded server of this cluster, as `forge init` prints it; None for other servers.

    >>> from tempfile import mkdtemp
    >>> place = Path(mkdtemp())
    >>> _embedded(place / "cluster"), (place / "users").write_text(""), _embedded(place / "main")
    (None, 0, None)
    >>> _embedded(place / "cluster") == f"embedded in {place}"
    True
    """
    place, here = cluster.parent, Path.cwd()
    try:
        if cluster.name != "cluster" or not (place / "users").exists():
            return None
    except PermissionError:
        return None
    return f"embedded in {place.relative_to(here) if place.is_relative_to(here) else place}"
