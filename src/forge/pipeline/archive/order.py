"""Compute the `seq` of an archived change from the position that its source gives.

- A change of Forge's log has the `seq` that the stream gives it: its generation, then its position and id.
- Any other change is of generation 0, before the first snapshot of a stream: 16 digits for its position in the source
  (PostgreSQL: the LSN; MySQL: number of the binlog file and position; SQL Server: the LSN without its slot), then 16
  for its order at that position. The first of these is 8 or more for a change and 7 or less for a row of a snapshot, so
  at the same position the change wins.

>>> seq_of_event(EnvelopeSource(connector="postgresql", lsn=255), 3, read=False)
'000000000000000000ff8000000000000003'
>>> seq_of_event(EnvelopeSource(connector="mysql", file="mysql-bin.000003", pos=154, row=1), 3, read=False)
'0000000003000000009a8000000000000001'
>>> seq_of_event(EnvelopeSource(connector="mysql", file="mysql-bin.000003", pos=154), 3, read=True)
'0000000003000000009a0000000000000003'
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from forge.change import ChangeSource
from forge.changelog.decode import SOURCE_KIND
from forge.cursor import Cursor, Snapshot
from forge.pipeline.changes import seq
from forge.wire import malformed

Generation = Snapshot | Cursor
"""A snapshot that a stream took, or its cursor, which also identifies the log."""

_MOST: Final = 2**63 - 1
_LOG = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,19}))?")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_BINLOG = re.compile(r"(?:.*\.)?([0-9]{1,10})[:/]([0-9]{1,13})(?:[:/]([0-9]{1,9}))?")
_SLOT = re.compile(r"([0-9a-f]{8}):([0-9a-f]{8}):([0-9a-f]{4})")


class EnvelopeSource(msgspec.Struct, frozen=True):
    """The `source` of a Debezium envelope, limited to the members used here."""

    connector: str | None = None
    name: str = ""
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    ts_ns: int | None = None
    txId: int | None = None
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None
    change_lsn: str | None = None
    commit_lsn: str | None = None
    event_serial_no: int | None = None


class Generations:
    """Count the snapshots that do not show a transaction, as `forge.pipeline.changes` defines generations.

    A snapshot of another log, an older incarnation of this one, shows no transaction of this log; changes of a log
    without any snapshot come before all snapshots.

    >>> taken = Generations([Snapshot.parse("5:5:"), Snapshot.parse("7:9:7")])
    >>> [taken.count("x", transaction) for transaction in (4, 5, 7, 8, 9)]
    [0, 1, 2, 1, 2]
    """

    def __init__(self, taken: Sequence[Generation]) -> None:
        self._taken = tuple(taken)
        self._last: tuple[str, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._taken)

    def count(self, log: str, transaction: int) -> int:
        if self._last is not None and self._last[:2] == (log, transaction):
            return self._last[2]
        logs = [taken.log.uuid if isinstance(taken, Cursor) else log for taken in self._taken]
        first = logs.index(log) if log in logs else 0
        number = first + sum(
            not (taken.snapshot if isinstance(taken, Cursor) else taken).sees(transaction)
            for taken, of in zip(self._taken, logs, strict=True)
            if of == log
        )
        self._last = (log, transaction, number)
        return number


def seq_of_change(source: ChangeSource, generations: Generations) -> str:
    """Return the `seq` of a change in Forge's own form; raise DecodeError when its position has no order."""
    if match := _LOG.fullmatch(source.position):
        place, id = int(match[1]), int(match[2] or match[1])
        if max(place, id) > _MOST:
            raise malformed("its position is no number of 64 bits")
        generation = 0
        if source.kind == SOURCE_KIND and generations:
            transaction = transaction_of(source)
            if transaction is None:
                raise malformed("it does not say its transaction")
            generation = generations.count(source.name, transaction)
        return seq(generation, place, id)
    if match := _LSN.fullmatch(source.position):
        return _seq(int(match[1], 16) << 32 | int(match[2], 16))
    if match := _BINLOG.fullmatch(source.position):
        return _seq(_binlog(int(match[1]), int(match[2])), int(match[3] or 0))
    raise malformed(f"its position {source.position[:40]!r} says no order")


def seq_of_event(origin: EnvelopeSource, tie: int, *, read: bool) -> str:
    """Return the `seq` of a Debezium event; `tie`, of 63 bits, distinguishes events at the same position."""
    connector = origin.connector or ("mysql" if origin.file else "postgresql")
    if connector == "postgresql":
        if origin.lsn is None:
            raise malformed("its source has no lsn")
        return _seq(origin.lsn, tie, read=read)
    if connector in ("mysql", "mariadb"):
        match = re.fullmatch(r".*?([0-9]{1,10})", origin.file or "")
        if match is None or origin.pos is None:
            raise malformed("its source has no file and pos")
        return _seq(_binlog(int(match[1]), origin.pos), tie if read else origin.row or 0, read=read)
    if connector == "sqlserver":
        match = _SLOT.fullmatch((origin.change_lsn or origin.commit_lsn or "").lower())
        if match is None:
            raise malformed("its source has no change_lsn")
        slot = int(match[3], 16) << 32 | (origin.event_serial_no or 0) & 0xFFFFFFFF
        return _seq(int(match[1] + match[2], 16), tie if read else slot, read=read)
    raise malformed(f"the order of events of {connector[:40]!r} is not known here")


def transaction_of(source: ChangeSource) -> int | None:
    """Return the transaction's number, if it has one."""
    text: Any = source.transaction
    return int(text) if text and re.fullmatch("[0-9]{1,19}", text) and int(text) <= _MOST else None


def _binlog(file: int, position: int) -> int:
    if file >= 2**24 or not 0 <= position < 2**40:
        raise malformed("a position in a binlog that no server has")
    return file << 40 | position


def _seq(place: int, within: int = 0, *, read: bool = False) -> str:
    if not (0 <= place < 2**64 and 0 <= within < 2**63):
        raise malformed("its position is no number of 64 bits")
    return f"0000{place:016x}{within | (0 if read else 1 << 63):016x}"
