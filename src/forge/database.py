"""The database that a configuration means: the one it names, or the embedded server while in use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from forge.config import Config
from forge.errors import ServerError
from forge.postgres import embedded


class Database(msgspec.Struct, frozen=True):
    """A database that can be connected to."""

    url: str
    embedded: bool


@contextmanager
def database(config: Config, *, create: bool = False) -> Iterator[Database]:
    """The database to use. An embedded server is started if need be, and stops with its last user.

    Only with `create` is one made where there is none.
    """
    if config.database_url is not None:
        yield Database(config.database_url, embedded=False)
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


def _made(data: Path) -> bool:
    """Whether an embedded server was made there; initdb's result gets its name only when it is whole."""
    try:
        return (data / "cluster").is_dir()
    except PermissionError:  # somebody else's: to use it is refused, with the reason
        return True
