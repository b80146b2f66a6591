"""Install the tables of change versions.

The installation is one transaction: all or nothing. Functions are replaced every time, so installing twice changes
nothing; triggers that an older program did not create are created after that. A schema newer than this program is
refused.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from forge.changelog.install import check_server, lease_functions, one_at_a_time
from forge.errors import VersionsMissing
from forge.postgres.connection import Connection, typed_errors
from forge.versions.switch import sql, switch

SQL: Final[Traversable] = files("forge.versions") / "sql"
SCHEMA_VERSION: Final = 2
_WITH_LEASES: Final = 2


def script() -> str:
    """Return everything that an install runs in an empty database."""
    folder = SQL / "postgresql"
    parts = [(folder / name).read_text("utf-8") for name in ("schema.sql", "lease.sql", "functions.sql")]
    return "\n".join([*parts, lease_functions("forge_versions"), sql("fit") + ";\n"])


def install(connection: Connection) -> bool:
    """Create what is missing; return whether anything was."""
    with typed_errors():
        version = one_at_a_time(lambda: _install(connection))
    if not _fit(connection):
        switch(connection, lambda: _check_what_is_written(connection), drops=False)
    return version == 0


def _install(connection: Connection) -> int:
    """Create what is missing and replace the functions; return the schema version found."""
    with connection.transaction():
        check_server(connection)
        version = installed_version(connection)
        if version > 0:
            connection.execute("LOCK TABLE forge_versions.setting IN SHARE ROW EXCLUSIVE MODE")
            version = installed_version(connection)
        _check(connection, version)
        connection.execute("SET LOCAL check_function_bodies = off")
        if version == 0:
            connection.execute((SQL / "postgresql" / "schema.sql").read_bytes())
        connection.execute((SQL / "postgresql" / "functions.sql").read_bytes())
        if version < _WITH_LEASES:
            connection.execute((SQL / "postgresql" / "lease.sql").read_bytes())
        connection.execute(lease_functions("forge_versions").encode())
        if version == 0:
            connection.execute(sql("fit"))
        connection.execute("UPDATE forge_versions.setting SET schema_version = %s", (SCHEMA_VERSION,))
    return version


def installed(connection: Connection) -> bool:
    """Whether the database has exactly the tables of this program's version."""
    return installed_version(connection) == SCHEMA_VERSION


def require_installed(connection: Connection) -> None:
    """Raise unless `installed`."""
    version = installed_version(connection)
    _check(connection, version)
    if 0 < version < SCHEMA_VERSION:
        raise VersionsMissing(
            f"the schema forge_versions is version {version}, this program needs {SCHEMA_VERSION}",
            fix="forge versions init",
        )
    if version == 0:
        raise VersionsMissing("change versions are not installed in this database", fix="forge versions init")


def installed_version(connection: Connection) -> int:
    """Return the version of the schema; 0 when there is none."""
    if connection.execute("SELECT to_regclass('forge_versions.setting')").fetchone() == (None,):
        return 0
    row = connection.execute("SELECT schema_version FROM forge_versions.setting").fetchone()
    return 0 if row is None else int(row[0])


def _fit(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT FROM pg_trigger WHERE tgname = 'document_fit' AND tgrelid = 'forge_versions.document'::regclass"
    ).fetchone()
    return row is not None


def _check_what_is_written(connection: Connection) -> None:
    if not _fit(connection):
        connection.execute(sql("fit"))


def _check(connection: Connection, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise VersionsMissing(
            f"the schema forge_versions is version {version}, this program knows up to {SCHEMA_VERSION}",
            fix="upgrade forge-changes on this machine",
        )
    there = version == 0 and connection.execute("SELECT to_regnamespace('forge_versions')").fetchone() != (None,)
    if there and installed_version(connection) == 0:  # unless another session has just installed it
        raise VersionsMissing(
            "a schema named forge_versions is there, but not as Forge made it",
            fix="if a broken install left it: DROP SCHEMA forge_versions CASCADE, then forge versions init",
        )
