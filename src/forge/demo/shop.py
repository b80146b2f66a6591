"""Tables of the shop: created once, tracked if they are not, and left alone if the schema belongs to someone else.

A tracked table stays unchanged: columns that its user has excluded or masked stay out of the log.
"""

from collections.abc import Callable
from importlib.resources import files
from typing import Final

from forge.changelog.install import install
from forge.errors import ServerError
from forge.postgres import locks
from forge.postgres.connection import Connection, connect, typed_errors

SCHEMA: Final = "shop"
TABLES: Final = ("customers", "inventory", "orders", "order_items", "payments")
STEPS: Final = 3 + len(TABLES)

_COMMENT: Final = "The shop of forge demo"
_OWNER: Final = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = 'shop'"
_TRACK: Final = (
    "SELECT public.forge_enable_reactivity(%(table)s, mask => %(mask)s)"
    " WHERE NOT EXISTS (SELECT FROM forge.tracked_relation WHERE table_oid = %(table)s::regclass)"
)
_MASKED: Final = {"payments": ["card"]}


def prepare(url: str, say: Callable[[str], None]) -> str:
    """Install Forge, create the shop if it is missing, track its untracked tables. Return the server's version."""
    say("connecting")
    with connect(url) as connection, typed_errors():
        say("installing Forge")
        install(connection)
        say("opening the shop")
        _open(connection)
        for table in TABLES:
            say(f"tracking {table}")
            connection.execute(_TRACK, {"table": f"{SCHEMA}.{table}", "mask": _MASKED.get(table, [])})
        return (connection.info.parameter_status("server_version") or "").split()[0]


def _open(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (locks.DEMO,))
        found = connection.execute(_OWNER).fetchone()
        if found is None:
            connection.execute((files("forge.demo") / "shop.sql").read_text("utf-8").encode())
        elif found[0] != _COMMENT:
            raise ServerError(
                "this database has a schema shop of its own; the demo will not touch it",
                fix="run the demo on the embedded server, or on a scratch database",
            )
