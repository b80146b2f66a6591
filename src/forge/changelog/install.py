"""Install the log, or upgrade an older one to this program's version.

Installation is one transaction: all of it or nothing. Each migration runs once, in the order of the numbers; functions
are replaced every time, so installing twice changes nothing. A schema newer than this program is refused: the older
program may not understand what it would write.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, TypeVar

import msgspec
import psycopg

from forge.changelog import partitions
from forge.changelog.queries import query
from forge.errors import NotInstalled, SchemaTooNew, ServerError
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.leases import Schema

MINIMUM_SERVER: Final = 140000
SQL: Final[Traversable] = files("forge.changelog") / "sql"
_MADE: Final = re.compile(
    r"^CREATE (?:OR REPLACE |UNLOGGED )?(TABLE|SEQUENCE|VIEW|FUNCTION) ((?:forge|public)\.\w+)", re.MULTILINE
)

T = TypeVar("T")


class Migration(msgspec.Struct, frozen=True):
    """One numbered step of the schema."""

    version: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """Return every migration, in order."""
    found = []
    for file in (SQL / "migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def functions() -> list[str]:
    """Return the SQL that runs at every install, in order."""
    return [file.read_text("utf-8") for file in sorted((SQL / "functions").iterdir(), key=lambda file: file.name)]


def parts(text: str, *kinds: str) -> list[str]:
    """Return the names of the objects of these kinds that a script creates.

    >>> parts("CREATE TABLE forge.a (\\n);\\nCREATE OR REPLACE VIEW forge.b AS …;\\n-- CREATE TABLE forge.c", "TABLE")
    ['forge.a']
    """
    return [match[2] for match in _MADE.finditer(text) if match[1] in kinds]


def lost_tables(connection: Connection, version: int) -> list[str]:
    """Return that version's tables and sequences that are missing; no install restores them."""
    names = [name for step in migrations() if step.version <= version for name in parts(step.sql, "TABLE", "SEQUENCE")]
    rows = connection.execute("SELECT n FROM unnest(%s::text[]) n WHERE to_regclass(n) IS NULL", (names,)).fetchall()
    return [name for (name,) in rows]


def missing_parts(connection: Connection) -> list[str]:
    """Return the names of Forge's missing views and functions; an install creates them."""
    scripts = [*(step.sql for step in migrations()), *functions()]
    rows = connection.execute(
        "SELECT n FROM unnest(%s::text[]) n WHERE to_regclass(n) IS NULL UNION"
        " SELECT n FROM unnest(%s::text[]) n WHERE NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace s"
        " ON s.oid = p.pronamespace WHERE s.nspname || '.' || p.proname = n) ORDER BY 1",
        (
            [name for script in scripts for name in parts(script, "VIEW")],
            [name for script in scripts for name in parts(script, "FUNCTION")],
        ),
    ).fetchall()
    return [name for (name,) in rows]


def installed_version(connection: Connection) -> int:
    """Return the number of the newest migration in the database; 0 when Forge is not installed."""
    if connection.execute("SELECT to_regclass('forge.schema_version')").fetchone() == (None,):
        return 0
    row = connection.execute("SELECT coalesce(max(version), 0) FROM forge.schema_version").fetchone()
    assert row is not None
    return int(row[0])


def install(connection: Connection, steps: Sequence[Migration] | None = None) -> list[Migration]:
    """Install or upgrade; return the migrations that were applied. Afterwards every part is in place."""
    steps = migrations() if steps is None else steps
    with typed_errors():
        return one_at_a_time(lambda: _install(connection, steps))


def one_at_a_time(installing: Callable[[], T]) -> T:
    """Run an install; retry if another session created the same schema meanwhile: the retry finds it."""
    try:
        return installing()
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema) as error:
        if error.diag.schema_name not in (None, "pg_catalog"):
            raise
        return installing()


def _install(connection: Connection, steps: Sequence[Migration]) -> list[Migration]:
    with connection.transaction():
        check_server(connection)
        connection.execute("SET LOCAL check_function_bodies = off")
        connection.execute("SET LOCAL search_path = public")
        connection.execute("SELECT set_config('forge.refreshing', 'yes', true)")
        version = installed_version(connection)
        if version > 0:  # another upgrade may be running; readers continue, and other roles cannot lock this table
            connection.execute("LOCK TABLE forge.schema_version IN EXCLUSIVE MODE")
            version = installed_version(connection)
        check_version(version, steps[-1].version)
        check_leftovers(connection, version)
        check_whole(connection, version)
        applied = [step for step in steps if step.version > version]
        for step in applied:
            connection.execute(step.sql.encode())
            connection.execute(
                "INSERT INTO forge.schema_version (version, name) VALUES (%s, %s)", (step.version, step.name)
            )
        for text in functions():
            connection.execute(text.encode())
        if version == 0:
            connection.execute(query("close_view").encode())
        connection.execute("SELECT forge.current_identity()")
        partitions.make_first(connection, datetime.now(UTC).date())
        connection.execute("SELECT set_config('forge.refreshing', '', true)")
        connection.execute("SELECT forge.rewrite_all()")
    return applied


def check_server(connection: Connection) -> None:
    """Refuse a server that cannot store the log."""
    if connection.info.server_version < MINIMUM_SERVER:
        raise ServerError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old",
            fix="use PostgreSQL 14 or newer",
        )
    if connection.execute("SELECT current_setting('server_encoding')").fetchone() == ("SQL_ASCII",):
        raise ServerError("a database with the encoding SQL_ASCII has no text", fix="use a database with UTF8")
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise ServerError("this server is a standby; the log lives on a primary only", fix="connect to the primary")


def check_version(installed: int, known: int) -> None:
    """Refuse a schema created by a newer Forge."""
    if installed > known:
        raise SchemaTooNew(
            f"the database's Forge schema is version {installed}, this program knows up to {known}",
            fix="upgrade forge-changes on this machine",
        )


def check_leftovers(connection: Connection, version: int) -> None:
    """Refuse a schema `forge` that is not Forge's, or that lost its version table."""
    there = version == 0 and connection.execute("SELECT to_regnamespace('forge')").fetchone() != (None,)
    if there and installed_version(connection) == 0:  # not just installed by another session
        raise NotInstalled(
            "a schema named forge is there, but not as Forge made it",
            fix="if it is left over from a broken install: DROP SCHEMA forge CASCADE, then forge init",
        )


def check_whole(connection: Connection, version: int) -> None:
    """Refuse a schema that lost something that only a backup can restore."""
    if lost := lost_tables(connection, version):
        raise NotInstalled(
            f"the Forge schema has lost {', '.join(lost)}",
            fix="restore it from a backup, or DROP SCHEMA forge CASCADE, then forge init",
        )


def require_installed(connection: Connection) -> None:
    """Raise unless the database has exactly the schema version that this program knows, with all its tables."""
    version, known = installed_version(connection), migrations()[-1].version
    check_version(version, known)
    if version == 0:
        check_leftovers(connection, version)
        raise NotInstalled("Forge is not installed in this database", fix="forge init")
    if version < known:
        raise NotInstalled(
            f"the database's Forge schema is version {version}, this program needs {known}", fix="forge init"
        )
    check_whole(connection, version)


def lease_functions(schema: Schema) -> str:
    """Return the SQL that replaces the lease functions, for the table `lease` of a schema."""
    return (SQL / "functions" / "92_leases.sql").read_text("utf-8").replace("forge.", f"{schema}.")
