"""The update hook of a SQLite connection, for the suite: what that connection writes is seen, and nothing else."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import apsw

from forge.capture import Filter, Source
from forge.capture.sqlite.hook import Hook
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Unsupported, Writer
from forge.testing.conformance.operations import Operation
from forge.testing.conformance.sql import statement
from forge.testing.conformance.sqlite import SAMPLES, make


class HookedWriter(Writer):
    """The connection that is watched."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, operation: Operation) -> None:
        self._connection.execute(*statement(operation, mark="?", truncate="DELETE FROM {}"))

    async def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        self._connection.execute("COMMIT")

    async def rollback(self) -> None:
        self._connection.execute("ROLLBACK")

    async def savepoint(self) -> None:
        self._connection.execute("SAVEPOINT here")

    async def rollback_to_savepoint(self) -> None:
        self._connection.execute("ROLLBACK TO here")


class HookAdapter(Adapter):
    """A file, and the connection that is watched."""

    name: ClassVar[str] = "hook"
    samples: ClassVar[Sequence[Sample]] = SAMPLES
    writers: ClassVar[int] = 1

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self.path = path
        self.connection = connection

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        return Hook(f"sqlite:///{self.path}", filter, connection=self.connection)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        yield HookedWriter(self.connection)

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[Writer]:
        with closing(apsw.Connection(str(self.path))) as other:
            yield HookedWriter(other)

    async def foreign_cursor(self) -> str:
        async with self.source() as other:
            return await other.now()

    async def purge(self) -> None:
        raise Unsupported("what a hook keeps is its reader's own")


@contextmanager
def serving() -> Iterator[Opening]:
    """What makes files."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Adapter]:
        with tempfile.TemporaryDirectory(prefix="forge-sqlite-") as folder:
            path = Path(folder) / "shop.db"
            make(path)
            with closing(apsw.Connection(str(path))) as connection:
                yield HookAdapter(path, connection)

    yield opened
