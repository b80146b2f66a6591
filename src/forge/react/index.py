"""Index of reads: find the groups that a change touches, without checking every read.

Input: groups with their reads, and changes. Output: the groups that a change touches. A change touches a read of its
table when its before or after image may meet the read's condition and, for an update, when a column that was read
changed. A change without usable images touches every read of the table.

A read is stored under one of its covers (see `forge.conditions.bound`): under each value of an equality, in an interval
tree, or in the remainder that is always checked. Among several covers, the index takes the one whose values hold the
fewest reads; it takes ranges only if there is no equality. A value without a canonical form checks every read of that
column.

Invariants:
- `touched` returns exactly what a check of every read would return; the index only skips checks with a known answer.
- The columns of a condition always count as read. If no column that was read changed, the condition has the same value
  before and after, so the update is irrelevant, whether or not the condition was decided.
"""

from collections.abc import Hashable, Iterable, Iterator
from random import Random
from typing import Any, Final, Generic, TypeVar, final

import msgspec

from forge.change import UNAVAILABLE, Change, Op, Row
from forge.conditions.bound import Bound, Cover, Points
from forge.conditions.canonical import UNKNOWN, CanonicalForm
from forge.conditions.logic import TRUE

Key = TypeVar("Key", bound=Hashable)


class BoundRead(msgspec.Struct, frozen=True, eq=False):
    """A read of one table with its parameters bound. `columns` is None when every column may have been read."""

    schema: str
    table: str
    columns: frozenset[str] | None
    bound: Bound


class Index(Generic[Key]):
    """The reads of all groups."""

    def __init__(self) -> None:
        self._entries: dict[Key, list[_Entry[Key]]] = {}
        self._tables: dict[tuple[str, str], _Table[Key]] = {}

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def put(self, key: Key, reads: Iterable[BoundRead]) -> None:
        """Set the reads of a group; they replace its earlier reads."""
        self.remove(key)
        entries = self._entries[key] = [_Entry(key, read) for read in reads]
        for entry in entries:
            self._tables.setdefault(entry.table, _Table()).add(entry)

    def remove(self, key: Key) -> None:
        """Remove the group, if it is known."""
        for entry in self._entries.pop(key, ()):
            table = self._tables[entry.table]
            table.discard(entry)
            if not table.every:
                del self._tables[entry.table]

    def touched(self, change: Change) -> set[Key]:
        """Return the groups that must run again."""
        table = self._tables.get((change.schema, change.table))
        if table is None:
            return set()
        before, after = change.before, change.after
        match change.op:
            case Op.INSERT | Op.READ if after is not None:
                return table.touched((after,), None)
            case Op.DELETE if before is not None:
                return table.touched((before,), None)
            case Op.UPDATE if before is not None and after is not None:
                return table.touched((before, after), _may_have_changed(change, before, after))
            case Op.REDACT:  # history was changed, not the current rows
                return set()
            case _:
                return {entry.key for entry in table.every}


def _may_have_changed(change: Change, before: Row, after: Row) -> set[str]:
    """Return the columns that changed or may have changed: not sent, or computed at read time."""
    names = set(change.changed)
    names.update(name for name, value in after.items() if value is UNAVAILABLE)
    if len(before) != len(after) or before.keys() != after.keys():
        names.update(before.keys() ^ after.keys())
    return names


@final
class _Entry(Generic[Key]):
    """A read of a group. `cover` is its place in the index; None means the remainder."""

    __slots__ = ("columns", "cover", "covers", "key", "outcome", "table")

    def __init__(self, key: Key, read: BoundRead) -> None:
        self.key = key
        self.table = (read.schema, read.table)
        self.columns = None if read.columns is None else read.columns | read.bound.columns
        self.outcome = read.bound.outcome
        self.covers = read.bound.covers
        self.cover: Cover | None = None


@final
class _Table(Generic[Key]):
    """The reads of one table."""

    def __init__(self) -> None:
        self.every: Final[set[_Entry[Key]]] = set()
        self._rest: set[_Entry[Key]] = set()
        self._columns: dict[tuple[str, CanonicalForm], _Column[Key]] = {}

    def touched(self, rows: Iterable[Row], changed: set[str] | None) -> set[Key]:
        """Return the groups to which an image may matter; `changed` is None when the row was inserted or deleted."""
        found: set[Key] = set()
        if changed is not None and not changed:
            return found
        for row in rows:
            for entries in self._candidates(row):
                for entry in entries:
                    if (
                        entry.key not in found
                        and (changed is None or entry.columns is None or not changed.isdisjoint(entry.columns))
                        and entry.outcome(row) & TRUE
                    ):
                        found.add(entry.key)
        return found

    def _candidates(self, row: Row) -> Iterator[Iterable["_Entry[Key]"]]:
        yield self._rest
        for (name, form), column in self._columns.items():
            value = form.read(row.get(name, UNAVAILABLE))
            if value is UNKNOWN:
                yield column.every
            elif value is not None:
                yield column.points.get(value, ())
                yield from column.ranges.at(value)

    def add(self, entry: "_Entry[Key]") -> None:
        self.every.add(entry)
        entry.cover = min(entry.covers, key=self._crowd, default=None)
        if entry.cover is None:
            self._rest.add(entry)
            return
        for probe in entry.cover:
            column = self._columns.setdefault((probe.column, probe.form), _Column())
            column.every.add(entry)
            if isinstance(probe, Points):
                for value in probe.values:
                    column.points.setdefault(value, set()).add(entry)
            else:
                column.ranges.add(probe.low, probe.high, entry)

    def discard(self, entry: "_Entry[Key]") -> None:
        self.every.discard(entry)
        if entry.cover is None:
            self._rest.discard(entry)
            return
        for probe in entry.cover:
            column = self._columns[probe.column, probe.form]
            if isinstance(probe, Points):
                for value in probe.values:
                    if entries := column.points.get(value):
                        entries.discard(entry)
                        if not entries:
                            del column.points[value]
            else:
                column.ranges.discard(probe.low, probe.high, entry)
        for place in {(probe.column, probe.form) for probe in entry.cover}:
            column = self._columns[place]
            column.every.discard(entry)
            if not column.every:
                del self._columns[place]

    def _crowd(self, cover: Cover) -> tuple[bool, int]:
        """Return whether a cover has ranges, and the number of reads stored under its values."""
        crowd, ranges = 0, False
        for probe in cover:
            if isinstance(probe, Points):
                crowd += len(probe.values)
                if column := self._columns.get((probe.column, probe.form)):
                    crowd += sum(len(column.points.get(value, ())) for value in probe.values)
            else:
                ranges = True
        return ranges, crowd


@final
class _Column(Generic[Key]):
    """The reads stored under values of one column."""

    def __init__(self) -> None:
        self.every: Final[set[_Entry[Key]]] = set()
        self.points: Final[dict[Any, set[_Entry[Key]]]] = {}
        self.ranges: Final[_Intervals[_Entry[Key]]] = _Intervals()


Item = TypeVar("Item", bound=Hashable)
_random = Random(0).random


@final
class _Node(Generic[Item]):
    """A closed interval and its items; `most` is the greatest end in this node and its subtree."""

    __slots__ = ("high", "items", "left", "low", "most", "right", "weight")

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high, self.most = low, high, high
        self.weight = _random()
        self.left: _Node[Item] | None = None
        self.right: _Node[Item] | None = None
        self.items: set[Item] = set()

    def precedes(self, low: Any, high: Any) -> bool:
        return bool(self.low < low or (self.low == low and self.high < high))

    def refresh(self) -> None:
        most = self.high
        if self.left is not None and self.left.most > most:
            most = self.left.most
        if self.right is not None and self.right.most > most:
            most = self.right.most
        self.most = most


@final
class _Intervals(Generic[Item]):
    """A treap of intervals, ordered by their ends: add and discard cost O(log n), a lookup O(log n) per hit."""

    def __init__(self) -> None:
        self._root: _Node[Item] | None = None
        self._nodes: dict[tuple[Any, Any], _Node[Item]] = {}

    def add(self, low: Any, high: Any, item: Item) -> None:
        node = self._nodes.get((low, high))
        if node is None:
            node = self._nodes[low, high] = _Node(low, high)
            self._root = _inserted(self._root, node)
        node.items.add(item)

    def discard(self, low: Any, high: Any, item: Item) -> None:
        node = self._nodes.get((low, high))
        if node is not None:
            node.items.discard(item)
            if not node.items:
                del self._nodes[low, high]
                self._root = _without(self._root, node)

    def at(self, value: Any) -> Iterator[set[Item]]:
        """Yield the items of the intervals that contain the value."""
        if self._root is None:
            return
        pending = [self._root]
        while pending:
            node = pending.pop()
            if node.most < value:
                continue
            if node.left is not None:
                pending.append(node.left)
            if node.low <= value:
                if node.high >= value:
                    yield node.items
                if node.right is not None:
                    pending.append(node.right)


def _inserted(root: _Node[Item] | None, node: _Node[Item]) -> _Node[Item]:
    if root is None:
        return node
    if node.weight > root.weight:
        node.left, node.right = _split(root, node.low, node.high)
        node.refresh()
        return node
    if root.precedes(node.low, node.high):
        root.right = _inserted(root.right, node)
    else:
        root.left = _inserted(root.left, node)
    root.refresh()
    return root


def _split(root: _Node[Item] | None, low: Any, high: Any) -> tuple[_Node[Item] | None, _Node[Item] | None]:
    """Split into the intervals that precede the given one, and the others."""
    if root is None:
        return None, None
    if root.precedes(low, high):
        root.right, after = _split(root.right, low, high)
        root.refresh()
        return root, after
    before, root.left = _split(root.left, low, high)
    root.refresh()
    return before, root


def _without(root: _Node[Item] | None, node: _Node[Item]) -> _Node[Item] | None:
    if root is node:
        return _joined(node.left, node.right)
    assert root is not None, "the interval is in the tree"
    if root.precedes(node.low, node.high):
        root.right = _without(root.right, node)
    else:
        root.left = _without(root.left, node)
    root.refresh()
    return root


def _joined(left: _Node[Item] | None, right: _Node[Item] | None) -> _Node[Item] | None:
    if left is None or right is None:
        return left or right
    if left.weight > right.weight:
        left.right = _joined(left.right, right)
        left.refresh()
        return left
    right.left = _joined(left, right.left)
    right.refresh()
    return right
