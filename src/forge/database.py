"""The database of a configuration: the one it names, or the embedded server while in use.

The fix of a connection error names where the URL in force is set: a flag, a variable, a file.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from forge.capture.urls import split_option
from forge.config import Config, database_kind, url_source
from forge.embedded import embedded
from forge.errors import ConfigError, ForgeError, ServerError
from forge.postgres.connection import typed_errors

_REFUSED: Final = ("28000", "28P01", "3D000")


class Database(msgspec.Struct, frozen=True):
    """A database that can be connected to."""

    url: str
    embedded: bool


@contextmanager
def database(config: Config, *, create: bool = False) -> Iterator[Database]:
    """Yield the database to use; convert the server's errors into Forge's within the block.

    An embedded server is started if needed, and stops with its last user. One is created only with `create`.
    """
    with _database(config, create=create) as found:
        try:
            with typed_errors():
                yield found
        except (ServerError, ConfigError) as error:
            if (fix := connection_fix(error, config)) is None:
                raise
            raise type(error)(str(error), fix=fix) from error


def connection_fix(error: ForgeError, config: Config) -> str | None:
    """Return the fix for a failed connection; None for another kind of error."""
    malformed = isinstance(error, ConfigError) and isinstance(error.__context__, psycopg.ProgrammingError)
    cause = error.__cause__
    lost = isinstance(cause, psycopg.OperationalError) and (not cause.sqlstate or cause.sqlstate in _REFUSED)
    if not malformed and not lost:
        return None
    source = url_source(config)
    if source is None:
        return f"try again; if that does not help, see {config.data / 'postgres' / 'server.log'}"
    if malformed:
        return f"write {source} as postgresql://user@host:5432/database"
    if "does not exist" in str(cause) or "authentication" in str(cause):
        return f"check the user, password and database in {source}"
    return f"start the server, or correct {source}"


@contextmanager
def _database(config: Config, *, create: bool) -> Iterator[Database]:
    if config.database_url is not None:
        yield Database(_postgresql(config.database_url, config), embedded=False)
        return
    data = config.data / "postgres"
    if not create and not _made(data):
        where = config.data if config.data.is_absolute() else f"./{config.data}"
        raise ServerError(
            f"there is no embedded database in {where}",
            fix="forge init here, cd to where it is, or set FORGE_DATABASE_URL",
        )
    with embedded(data) as server:
        yield Database(server.url(), embedded=True)


def _postgresql(url: str, config: Config) -> str:
    """Return the URL without its feed, which says how changes are read; raise ConfigError for another database."""
    kind = database_kind(url)
    if kind not in (None, "PostgreSQL"):
        raise ConfigError(
            f"{url_source(config)} is for {kind}, and this works on PostgreSQL only",
            fix="name the database by --database-url postgresql://user@host:5432/database",
        )
    if not url.startswith(("postgresql://", "postgres://")):
        return url
    try:
        return split_option(url, "feed")[0]
    except ValueError:  # connecting reports what is wrong with it
        return url


def _made(data: Path) -> bool:
    """Tell whether an embedded server was created there; initdb's result gets its name only when it is complete."""
    try:
        return (data / "cluster").is_dir()
    except PermissionError:  # it belongs to another user: using it is refused, with the reason
        return True
