"""A history as data: what writers know, what readers recorded, what the database says.

Nothing here speaks to a server, so that the checks can be fed histories that never were.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from forge.change import Change, Row, Unavailable
from forge.wire import decode, encode, encode_row
from tests.checkers.history.tables import added_default


class Outcome(Enum):
    """What a writer knows of a transaction when all is over."""

    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()
    """The connection was lost at COMMIT: all of it or nothing."""


class Effect(msgspec.Struct, frozen=True):
    """What one operation did, as the server counted it: `rows` is None where it does not say.

    A `wipe` takes away rows that its own transaction cannot see, so nobody can say which: TRUNCATE of a partition
    in a transaction that keeps its snapshot. It alone may be logged as an INVALIDATE of the table.
    """

    mark: str
    table: str
    kind: Literal["write", "delete", "truncate", "wipe", "other"]
    rows: int | None


class Attempt(msgspec.Struct):
    """One transaction as a writer lived through it; `undone` are marks that savepoints took back.

    `ended` is when it was told to end: a crash after that may have taken it back.
    """

    name: str
    synchronous: bool = True
    outcome: Outcome = Outcome.ABORTED
    effects: list[Effect] = []
    undone: list[str] = []
    ended: float = 0.0
    error: str = ""


class Record(msgspec.Struct, frozen=True):
    """One batch that a reader wrote down: it stood at `start` before and at `end` after it. `run` counts its lives."""

    run: int
    start: str
    end: str
    changes: tuple[Change, ...]


class ReaderRecord(msgspec.Struct, frozen=True):
    """Everything that one reader wrote down; `begin` is the cursor that it was given."""

    name: str
    begin: str
    records: tuple[Record, ...]
    tables: tuple[str, ...] | None = None


class LogRow(msgspec.Struct, frozen=True):
    """One row of the log as SQL shows it: `place` orders it, `old` and `new` are the marks in its images."""

    id: int
    place: int
    op: str
    table: str
    row_id: str | None
    trace: str | None
    old: str | None
    new: str | None


class Truth(msgspec.Struct, frozen=True):
    """What the database says when all is over: the log, and the rows of every table."""

    log: Sequence[LogRow]
    tables: Mapping[str, Sequence[Row]]
    crashes: Sequence[float] = ()
    """When the server lost what it had not flushed."""


class Discrepancy(msgspec.Struct, frozen=True):
    """Something that must not be. `kind` is one of few words, so that a shrunk plan fails in the same way."""

    kind: str
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.who}): {self.what}"


SHOWN: Final = 300


def show(row: object) -> str:
    text = str(row)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def log_id(change: Change) -> int:
    """The id of the log row that a change is made of."""
    return int(change.id.rpartition(":")[2])


def canonical(row: Row) -> bytes:
    """A row so that equal rows have equal bytes; numbers keep their scale, columns added later their default."""
    coded: dict[str, Any] = encode_row({n: v for n, v in row.items() if not isinstance(v, Unavailable)}) or {}
    kept = {name: value for name, value in coded.items() if value is None or value != added_default(name)}
    return msgspec.json.encode(kept, order="sorted")


def line(record: Record) -> bytes:
    """A record as one line of a reader's file."""
    head = msgspec.json.encode([record.run, record.start, record.end])
    return b'{"at":' + head + b',"changes":[' + b",".join(map(encode, record.changes)) + b"]}\n"


class _Line(msgspec.Struct):
    at: tuple[int, str, str]
    changes: list[msgspec.Raw]


_lines: Final = msgspec.json.Decoder(_Line)


def parse_line(text: bytes) -> Record:
    """The inverse of `line`."""
    raw = _lines.decode(text)
    return Record(*raw.at, tuple(decode(bytes(change)) for change in raw.changes))


def load(path: Path) -> list[Record]:
    """A reader's file. A line that a kill left unfinished was never written."""
    found = []
    for text in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            if text:
                found.append(parse_line(text))
        except msgspec.DecodeError:
            continue
    return found
