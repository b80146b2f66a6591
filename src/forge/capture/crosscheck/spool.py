"""Group the changes of two feeds by transaction and row. In: changes in any order. Out: the changes of each feed per
group.

They are kept in a temporary SQLite file that is deleted when it is closed, or with the process. SQLite sorts it outside
of memory, so memory holds only what one transaction did to one row.
"""

import hashlib
import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final, NamedTuple

from forge.capture.crosscheck.compare import SeenChange
from forge.change import Change, Op, Row, text
from forge.errors import SourceError

LOG, WAL = 0, 1
WHOLE: Final = b""
"""The key of a change of a table as a whole; it sorts before all rows."""
_CACHE_KILOBYTES: Final = 16 * 1024
_SQL: Final = """
    PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE; PRAGMA cache_size = -{};
    CREATE TABLE seen (xid INTEGER, place INTEGER, key BLOB, side INTEGER, body BLOB);
"""


class RowChanges(NamedTuple):
    """The changes of both feeds to one row in one transaction; `place` is its table's."""

    transaction: int
    place: int
    key: bytes
    row_id: str
    log: Sequence[SeenChange]
    wal: Sequence[SeenChange]


class CrosscheckSpool:
    """One file; `columns` has for each table the columns that distinguish rows without a key."""

    def __init__(self, columns: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._failure: sqlite3.Error | None = None
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.executescript(_SQL.format(_CACHE_KILOBYTES))
        self._file.execute("BEGIN")

    def close(self) -> None:
        self._file.close()

    def add(self, side: int, changes: Iterable[tuple[int, int, Change]]) -> None:
        """Store changes, each with its transaction and its table's place."""
        rows = ((xid, place, self._key(place, change), side, _packed(change)) for xid, place, change in changes)
        with self._typed():
            self._file.executemany("INSERT INTO seen VALUES (?, ?, ?, ?, ?)", rows)

    def groups(self) -> Iterator[RowChanges]:
        """Yield all groups, in the order of transactions."""
        with self._typed():
            rows = self._file.execute("SELECT * FROM seen ORDER BY xid, place, key, side, rowid")
        for (xid, place, key), found in groupby(rows, key=lambda row: row[:3]):
            sides: tuple[list[SeenChange], list[SeenChange]] = ([], [])
            row_id = "*"
            for _, _, _, side, body in found:
                row_id, op, *rest = pickle.loads(body)
                sides[side].append(SeenChange(Op(op), *rest))
            yield RowChanges(xid, place, key, row_id, *sides)

    @contextmanager
    def _typed(self) -> Iterator[None]:
        """Report the first failure in every later call too: without a journal, a file that was full is unusable."""
        try:
            if self._failure is not None:
                raise self._failure
            yield
        except sqlite3.Error as error:
            self._failure = error
            raise SourceError(
                f"what both feeds said cannot be kept on disk: {error}",
                fix="make room where temporary files are (SQLITE_TMPDIR), or compare fewer tables, or a shorter time",
            ) from error

    def _key(self, place: int, change: Change) -> bytes:
        if change.before is None and change.after is None:
            return WHOLE
        if change.key is not None:
            return ("k" + "\x1f".join(map(text, change.key.values()))).encode("utf-8", "surrogatepass")
        names = self._columns[place]
        told = [_told(image, names) for image in (change.before, change.after)]
        return b"h" + hashlib.blake2b(repr(told).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _told(image: Row | None, names: Sequence[str]) -> list[object]:
    return [] if image is None else [image[name] for name in names if name in image]


def _packed(change: Change) -> bytes:
    seen = change.row_id, change.op.value, change.before, change.after, change.source.position
    return pickle.dumps(seen, pickle.HIGHEST_PROTOCOL)
