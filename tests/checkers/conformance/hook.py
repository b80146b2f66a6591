"""The update hook of a SQLite connection, for the suite: what that connection writes is seen, and nothing else."""

import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import ClassVar

import apsw

from forge.capture import Filter, Source
from forge.capture.sqlite import Hook
from forge.testing.conformance.adapter import Adapter, Opening, Sample, Writer
from tests.checkers.conformance.sqlite import SAMPLES, FileWriter, make


class HookAdapter(Adapter):
    """The only connection that the source sees is the one that writes."""

    name: ClassVar[str] = "hook"
    samples: ClassVar[Sequence[Sample]] = SAMPLES
    writers: ClassVar[int] = 1

    def __init__(self, path: Path) -> None:
        self._path = path
        make(path, "wal")
        self._connection = apsw.Connection(str(path))
        self._connection.execute("PRAGMA synchronous = OFF")

    def source(self, filter: Filter | None = None, *, proxied: bool = False) -> Source:
        return Hook(f"sqlite:///{self._path}", filter, connection=self._connection)

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Writer]:
        yield FileWriter(self._connection)

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[Writer]:
        connection = apsw.Connection(str(self._path))
        try:
            yield FileWriter(connection)
        finally:
            connection.close()

    async def foreign_cursor(self) -> str:
        async with self.source() as other:
            return await other.now()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def serving() -> Iterator[Opening]:
    """What makes files."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Adapter]:
        with (
            tempfile.TemporaryDirectory(prefix="forge-sqlite-") as folder,
            closing(HookAdapter(Path(folder) / "suite.db")) as adapter,
        ):
            yield adapter

    yield opened
