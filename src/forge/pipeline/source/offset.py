"""Offsets of a stream: its position, and the content of the batch that ends there.

Spark stores offsets in its checkpoint and returns them after a restart, possibly on another machine. An offset
therefore contains all that is needed to read the same batch again: `pieces` lists the parts that tasks read, and
planning them needs no query.

A batch consists of pieces of the log between two snapshots, or of shares of tables as of a snapshot. Both are stable:
the changes committed between two snapshots never change, and a table as of a snapshot is its present content with the
logged changes since then undone.
"""

from typing import Any, Final

import msgspec

from forge.cursor import Cursor, Position

NOWHERE: Final = Position(-1, -1)
"""A position before every other."""


class LogPiece(msgspec.Struct, frozen=True, tag="log", omit_defaults=True):
    """Changes that `until` shows and `since` does not, after one position and up to another; `count` is their number.

    They all lie between two transactions and two days, by which a task finds them through index and partition.
    """

    since: str
    until: str
    after: Position
    last: Position
    lowest: int
    highest: int
    first_day: str
    last_day: str
    count: int
    generation: int


class TableShare(msgspec.Struct, frozen=True, tag="table", omit_defaults=True):
    """Share `share` of `shares` of a tracked table as of a snapshot; of keys from `low` on and below `high`, if given.

    Without `low` and `high` the table is divided by a hash of the key. The first share also announces the snapshot.
    """

    tracked: int
    snapshot: str
    at: str
    generation: int
    share: int
    shares: int
    rows: int
    """An estimate, for admission control."""
    key: str | None = None
    low: int | None = None
    high: int | None = None


Piece = LogPiece | TableShare


class Offset(msgspec.Struct, frozen=True):
    """Everything up to `cursor` has been read, except the `waiting` shares.

    `generation` is that of the next change; `tables` are the tracked tables whose rows were read or are waiting;
    `stale` are those that must be read again after the cursor has reached the end of its batch.
    """

    cursor: Cursor
    generation: int
    tables: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    waiting: tuple[TableShare, ...] = ()
    pieces: tuple[Piece, ...] = ()

    def dump(self) -> dict[str, Any]:
        """Encode the offset for Spark: JSON of texts and numbers only, so nested values are text."""
        return {
            "cursor": str(self.cursor),
            "generation": self.generation,
            "tables": _text(self.tables),
            "stale": _text(self.stale),
            "waiting": _text(self.waiting),
            "pieces": _text(self.pieces),
        }

    @classmethod
    def load(cls, kept: dict[str, Any]) -> "Offset":
        """Decode the text of `dump`.

        >>> from forge.cursor import LogIdentity, Snapshot
        >>> log = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "73", 1)
        >>> offset = Offset(Cursor(log, Snapshot(5, 5)), 1, (3,), (), (TableShare(3, "5:5:", "", 1, 0, 1, 10),))
        >>> Offset.load(offset.dump()) == offset
        True
        """
        return cls(
            Cursor.parse(kept["cursor"]),
            kept["generation"],
            msgspec.json.decode(kept["tables"], type=tuple[int, ...]),
            msgspec.json.decode(kept["stale"], type=tuple[int, ...]),
            msgspec.json.decode(kept["waiting"], type=tuple[TableShare, ...]),
            pieces_of(kept["pieces"]),
        )

    @property
    def events(self) -> int:
        """The number of changes of the batch that ends here; rows of snapshots are estimated."""
        return sum(piece.count if isinstance(piece, LogPiece) else piece.rows for piece in self.pieces)


def pieces_of(text: str) -> tuple[Piece, ...]:
    """Decode the pieces of a dumped offset."""
    return msgspec.json.decode(text, type=tuple[Piece, ...])


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
