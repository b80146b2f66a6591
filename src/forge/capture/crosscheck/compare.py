"""Compare two feeds' changes of one row in one transaction. Nothing here needs a server.

A value that one side did not send agrees with any. A delete and an insert of one key agree with an update: a row that
moves to another partition is the former in the WAL and the latter in the log.

>>> sent = SeenChange(Op.UPDATE, {"id": 1, "a": UNAVAILABLE}, {"id": 1, "a": 2})
>>> logged = SeenChange(Op.UPDATE, {"id": 1, "a": 1}, {"id": 1, "a": 3})
>>> [(kind, _, (found,))] = compare([logged], [sent])
>>> kind.value, found.column, found.log, found.wal
('differs', 'a', 3, 2)
>>> [kind.value for kind, _, _ in compare([], [sent])]
['missing_in_log']
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

import msgspec

from forge.change import UNAVAILABLE, Op, Row, same


class DifferenceKind(StrEnum):
    """The kinds of disagreement between two feeds."""

    MISSING_IN_LOG = "missing_in_log"
    """A write that no trigger saw, or whose entry is gone."""
    MISSING_IN_WAL = "missing_in_wal"
    DIFFERS = "differs"
    """Both have the change, with different values."""
    ORDER = "order"
    """Both have the same successive changes of a row, in a different order."""


class SeenChange(NamedTuple):
    """A change as one feed reports it; `position` is its position in that feed."""

    op: Op
    before: Row | None
    after: Row | None
    position: str = ""


class DifferentValue(msgspec.Struct, frozen=True):
    """A column on which the feeds disagree, in one of the two images."""

    column: str
    image: Literal["before", "after"]
    log: Any
    wal: Any


class FeedDifference(msgspec.Struct, frozen=True):
    """One disagreement. `position` is that of the feed that has the change, the WAL's if both have it."""

    kind: DifferenceKind
    table: str
    key: str
    op: Op
    transaction: str
    position: str
    values: tuple[DifferentValue, ...] = ()


Found = tuple[DifferenceKind, SeenChange, tuple[DifferentValue, ...]]
_IMAGES: Final[tuple[Literal["before", "after"], ...]] = ("before", "after")


def values(log: SeenChange, wal: SeenChange) -> tuple[DifferentValue, ...]:
    """Return the columns on which two changes disagree. A column that one side does not have is not compared."""
    found = []
    for image in _IMAGES:
        left: Row = getattr(log, image) or {}
        right: Row = getattr(wal, image) or {}
        for name, sent in right.items():
            logged = left.get(name, UNAVAILABLE)
            if logged is not UNAVAILABLE and sent is not UNAVAILABLE and not same(logged, sent):
                found.append(DifferentValue(name, image, logged, sent))
    return tuple(found)


def agree(log: SeenChange, wal: SeenChange) -> bool:
    return log.op is wal.op and not values(log, wal)


def compare(log: Sequence[SeenChange], wal: Sequence[SeenChange]) -> list[Found]:
    """Return every difference between two feeds' changes of one row in one transaction, each in its order."""
    if _alike(log, wal):
        return []
    joined, merged = _fused(log), _fused(wal)
    if _alike(joined, merged):
        return []
    if len(joined) == len(merged):
        log, wal = joined, merged
    log, wal = _middle(log, wal)
    left, right = list(wal), list[SeenChange]()
    for change in log:
        place = next((n for n, other in enumerate(left) if agree(change, other)), None)
        if place is None:
            right.append(change)
        else:
            del left[place]
    found: list[Found] = []
    if not left and not right:
        return [(DifferenceKind.ORDER, wal[0], ())]
    for change in right:
        place = next((n for n, other in enumerate(left) if other.op is change.op), None)
        if place is None:
            found.append((DifferenceKind.MISSING_IN_WAL, change, ()))
        else:
            other = left.pop(place)
            found.append((DifferenceKind.DIFFERS, other, values(change, other)))
    return found + [(DifferenceKind.MISSING_IN_LOG, other, ()) for other in left]


def _alike(log: Sequence[SeenChange], wal: Sequence[SeenChange]) -> bool:
    return len(log) == len(wal) and all(map(agree, log, wal))


def _middle(log: Sequence[SeenChange], wal: Sequence[SeenChange]) -> tuple[Sequence[SeenChange], Sequence[SeenChange]]:
    """Return both without the changes that agree at the start and at the end."""
    most, start, end = min(len(log), len(wal)), 0, 0
    while start < most and agree(log[start], wal[start]):
        start += 1
    while end < most - start and agree(log[-1 - end], wal[-1 - end]):
        end += 1
    return log[start : len(log) - end], wal[start : len(wal) - end]


def _fused(changes: Sequence[SeenChange]) -> Sequence[SeenChange]:
    """Replace a delete and the insert that follows it by an update.

    >>> changes = [SeenChange(Op.DELETE, {"a": 1}, None), SeenChange(Op.INSERT, None, {"a": 2})]
    >>> [seen.op.value for seen in _fused(changes)]
    ['update']
    """
    found: list[SeenChange] = []
    for change in changes:
        if change.op is Op.INSERT and found and found[-1].op is Op.DELETE:
            found[-1] = SeenChange(Op.UPDATE, found[-1].before, change.after, change.position)
        else:
            found.append(change)
    return found
