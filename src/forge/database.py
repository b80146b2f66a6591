"""The database that a configuration means: the one it names, or the embedded server while in use."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from forge.config import Config
from forge.postgres import embedded


class Database(msgspec.Struct, frozen=True):
    """A database that can be connected to."""

    url: str
    embedded: bool


@contextmanager
def database(config: Config) -> Iterator[Database]:
    """The database to use. An embedded server is started if need be, and stops with its last user."""
    if config.database_url is not None:
        yield Database(config.database_url, embedded=False)
        return
    with embedded(config.data / "postgres") as server:
        yield Database(server.url(), embedded=True)
