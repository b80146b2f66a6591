"""Adapter of a database for the suite: open it, write to it, break it.

An adapter is one fresh database for one check. Only `source` and `writer` must be written; whatever else is left out is
reported as not checked, never as passed. `Unsupported` is raised by what a database does not have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, NamedTuple

from forge.capture import Filter, Source
from forge.testing.conformance.operations import Operation
from forge.testing.conformance.proxy import CountingProxy


class Unsupported(Exception):
    """The database, or its adapter, has no such thing: what needs it is not checked."""


class Violation(AssertionError):
    """The source does not do what every source must, or not what it says of itself."""


class Sample(NamedTuple):
    """One value of one type: how a column of the type is declared, what is written, and what a Change must hold."""

    type: str
    written: Any
    expected: Any


class Writer(ABC):
    """One connection that writes. Outside a transaction every operation commits by itself."""

    @abstractmethod
    async def run(self, operation: Operation) -> None: ...

    async def begin(self) -> None:
        raise Unsupported("no transactions")

    async def commit(self) -> None:
        raise Unsupported("no transactions")

    async def rollback(self) -> None:
        raise Unsupported("no transactions")

    async def savepoint(self) -> None:
        """Remember this state of the transaction."""
        raise Unsupported("no savepoints")

    async def rollback_to_savepoint(self) -> None:
        """Go back to the last savepoint; the transaction goes on."""
        raise Unsupported("no savepoints")

    async def context(self, user_id: str) -> None:
        """Say in the open transaction who writes."""
        raise Unsupported("no context")


class Adapter(ABC):
    """One fresh database with the suite's tables in it, all of them captured."""

    name: ClassVar[str]
    key: ClassVar[str] = "id"
    """The key column of items and others."""
    samples: ClassVar[Sequence[Sample]] = ()
    """Values by type; column `c0` of the table types is the first one's, and so on."""
    writers: ClassVar[int] = 3
    """How many writers may have a transaction open at once."""
    keys_change: ClassVar[bool] = True
    """Whether the key of a row can be changed."""
    patience: ClassVar[float] = 20.0
    """Seconds within which what was committed must be seen."""
    silence: ClassVar[float] = 30.0
    """Seconds within which a connection that fell silent must be noticed."""
    memory: ClassVar[int] = 32 * 1024 * 1024
    """Bytes that a source may take to read a backlog of any size."""
    backlog: ClassVar[tuple[int, int]] = (16_000, 4_000)
    """Rows, and bytes of each, of a backlog that is larger than that."""
    secret: str | None = None
    """What must not be shown: the password in the URL."""
    proxy: CountingProxy | None = None
    """What lies between a source and its server when it is asked for."""
    consumer: tuple[str, str] | None = None
    """`module:function` that makes a source of this text in another process, and the text."""

    @abstractmethod
    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        """A new source of the database, not entered yet; through the proxy if asked for."""

    @abstractmethod
    def writer(self) -> AbstractAsyncContextManager[Writer]:
        """A connection that writes, such that the source should see it."""

    def stranger(self) -> AbstractAsyncContextManager[Writer]:
        """A connection of another process, or as good as one."""
        return self.writer()

    async def purge(self) -> None:
        """Make the database forget the history that it has; new changes are kept."""
        raise Unsupported("history cannot be purged")

    async def foreign_cursor(self) -> str:
        """A cursor of another server or database of this kind."""
        raise Unsupported("there is no other database")


Opening = Callable[[], AbstractAsyncContextManager[Adapter]]
"""Makes a fresh database for a check, and removes it afterwards."""
