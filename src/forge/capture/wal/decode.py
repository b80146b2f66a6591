"""Decode pgoutput messages into Changes. `WalDecoder.rows` runs once per change, so it is written for speed.

In: `w` messages in the server's order, outside of streamed blocks (`forge.capture.wal.spool` passes those on when they
are committed). Out: changes, each with the columns of its table, and the position of a reader that has handled them.

Invariants:

- A change's id consists of the server, the timeline, the LSN of its record and its number within that record:
  the same each time it is read, however the server sent it.
- Changes that a cursor or a snapshot already covers are left out.
- An update that changed the key is a delete and an insert.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from forge.capture.wal import protocol
from forge.capture.wal.position import Epoch, Timelines
from forge.capture.wal.regions import read_before
from forge.capture.wal.relations import WalRelation
from forge.change import NO_CONTEXT, UNAVAILABLE, Change, ChangeSource, Context, Op
from forge.errors import DecodeError
from forge.values import Column, too_deep

KIND: Final = "wal"
PREFIX: Final = "forge"
"""The prefix of messages that carry a transaction's context."""

_INSERT, _UPDATE, _DELETE = 73, 85, 68
_DATA = 119
_NEW, _KEY, _OLD = 78, 75, 79
_u64 = struct.Struct(">Q").unpack

Keep = Callable[[Change], Change | None]


class OpenTransaction(NamedTuple):
    """The transaction being decoded. `after` is the LSN of its last change that was handled before."""

    xid: int
    commit: int
    at: datetime
    after: int = 0
    skipped: bool = False
    partly: bool = False
    """Only changes selected by `WalDecoder.read_before` are left out."""


class _Said(msgspec.Struct):
    user_id: str | None = None
    function_name: str | None = None
    trace_id: str | None = None
    more: dict[str, Any] | None = None
    session_user: str | None = None
    application_name: str | None = None


_said: Final = msgspec.json.Decoder(_Said).decode


def context_of(content: bytes) -> Context | None:
    """Return the context that a message carries; None if it has none. A bad context must never stop a reader.

    >>> context_of(b'{"user_id": "7"}').user_id, context_of(b""), context_of(b"[]")
    ('7', None, None)
    """
    if not content:
        return None
    try:
        said = _said(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    more = said.more or {}
    if too_deep(more):
        more = {"$raw": content.decode()}
    found = Context(said.user_id, said.function_name, said.trace_id, more, said.session_user, said.application_name)
    return found if found != NO_CONTEXT else NO_CONTEXT


class WalDecoder:
    """Decodes one connection's messages. `changes` and `columns` grow until `take` empties them."""

    def __init__(self, name: str, system: str, timelines: Timelines, keep: Keep | None, xid: int) -> None:
        self._name = name
        self._system = system
        self._timelines = timelines
        self._keep = keep
        self._near = xid
        self.relations: dict[bytes, WalRelation | None] = {}
        """Relations by the bytes of their oid; None for a table that is not wanted."""
        self.fresh: set[bytes] = set()
        """Tables whose definition was sent but not yet compared with the known one."""
        self.known: dict[int, bytes] = {}
        """Digests of the definitions that the consumer knows, by oid; the last learned are last."""
        self.learned = 0
        """Number of times that the known definitions changed."""
        self.changes: list[Change] = []
        self.columns: list[tuple[Column, ...]] = []
        self.unfilled: list[int] = []
        """Indexes of changes that have a value that was stored out of line and did not change."""
        self.transaction: OpenTransaction | None = None
        self.epochs: tuple[Epoch, ...] = ()
        self.recent: deque[int] | None = None
        """Collects the numbers of recent transactions."""
        self.read_before: Keep | None = None
        self._context = NO_CONTEXT
        self._last = b""
        self._number = 0
        self._ids = ""
        self._positions = ""

    def take(self) -> tuple[list[Change], list[tuple[Column, ...]]]:
        """Return what was decoded since the last call."""
        found = self.changes, self.columns
        self.changes, self.columns, self.unfilled = [], [], []
        return found

    @property
    def last(self) -> int:
        """Return the LSN of the last change in this transaction that was decoded or left out."""
        return int(_u64(self._last)[0]) if self._last else 0

    def full_xid(self, xid: int) -> int:
        """Return a transaction's number with its epoch: the value nearest to the last one.

        >>> decoder = WalDecoder("", "", Timelines(1), None, (3 << 32) + 5)
        >>> decoder.full_xid(7) - (3 << 32), decoder.full_xid(0xFFFFFFFE) - (2 << 32) == 0xFFFFFFFE
        (7, True)
        """
        distance = (xid - self._near + 0x80000000) % 0x100000000 - 0x80000000
        self._near += distance
        return self._near

    def begin(self, xid: int, commit: int, at: int, *, after: int = 0, before: int = 0) -> None:
        """Start a transaction whose commit is known; all before the LSN `before` was handled."""
        number = self.full_xid(xid)
        if self.recent is not None:
            self.recent.append(number)
        skipped, partly = commit < before, False
        if self.epochs:
            if commit >= self.epochs[-1].until:
                self.epochs = ()
            else:
                seen = [epoch.seen.sees(number) for epoch in self.epochs]
                skipped, partly = skipped or all(seen), any(seen)
                self.read_before = read_before(self.epochs, seen, self._relation_of) if partly else None
        self.transaction = OpenTransaction(number, commit, protocol.time_of(at), after, skipped, partly)
        self._context = NO_CONTEXT
        self._last, self._number = b"", 0
        self._ids = f"{self._system}-{self._timelines.of(commit)}:"
        self._positions = f"{commit:016x}."

    def _relation_of(self, change: Change) -> WalRelation | None:
        named = (each for each in self.relations.values() if each is not None)
        return next((each for each in named if (each.schema, each.table) == (change.schema, change.table)), None)

    def commit(self) -> None:
        self.transaction = None

    def rows(self, messages: Sequence[bytes], start: int, limit: int) -> int:
        """Decode row messages from an index on; return the index of the first other message, or where the limit stops.

        The limit is not applied inside of one record, so a cursor is never there.
        """
        transaction = self.transaction
        if transaction is None:
            return start
        count = len(messages)
        place = start
        if transaction.skipped:
            while place < count and messages[place][0] == _DATA and messages[place][25] in (_INSERT, _UPDATE, _DELETE):
                place += 1
            return place
        relations, name = self.relations, self._name
        ids, positions, context = self._ids, self._positions, self._context
        at, xid, after = transaction.at, str(transaction.xid), transaction.after
        keep, hold = self._keep, self.read_before if transaction.partly else None
        changes, columns, unfilled = self.changes, self.columns, self.unfilled
        add, add_columns = changes.append, columns.append
        last, number = self._last, self._number
        fresh = self.fresh
        plain = keep is None and hold is None and not after
        try:
            while place < count:
                data = messages[place]
                if data[0] != _DATA:
                    break
                kind = data[25]
                if kind != _INSERT and kind != _UPDATE and kind != _DELETE:
                    break
                relation = relations[data[26:30]]
                if fresh and data[26:30] in fresh and not (after and _u64(data[1:9])[0] <= after):
                    self._settle(data[26:30], data[1:9], number + 1 if data[1:9] == last else 0)
                if kind == _INSERT and plain and relation is not None:
                    before = len(changes)
                    place, last, number = relation.inserts(
                        messages, place, limit - before, last, number, ids, positions, name, xid, at, context, add
                    )
                    columns += [relation.columns] * (len(changes) - before)
                    if len(changes) == before:
                        break
                    continue
                lsn = data[1:9]
                if lsn == last:
                    number += 1
                    word = f"{lsn.hex()}.{number:05d}"
                else:
                    if len(changes) >= limit:
                        break
                    last, number = lsn, 0
                    word = lsn.hex()
                place += 1
                if relation is None or (after and _u64(lsn)[0] <= after):
                    if kind == _UPDATE:
                        number += 1  # it may have been two changes
                    continue
                if kind == _INSERT:
                    row = relation.row(data, 33)
                    change = Change(
                        ids + word, Op.INSERT, relation.schema, relation.table,
                        ChangeSource(KIND, name, positions + word, xid), at, relation.key(row), None, row, context,
                    )  # fmt: skip
                elif kind == _UPDATE:
                    number += 1
                    what = data[30]
                    if what == _NEW:
                        row = relation.row(data, 33)
                        old = relation.unchanged(row)
                        split = False
                    else:
                        old, end = (relation.sized if what == _OLD else relation.old)(data, 33)
                        row = relation.row(data, end + 3)
                        if what == _OLD:
                            for column, value in row.items():
                                if value is UNAVAILABLE:
                                    row[column] = old[column]
                        split = not relation.same_key(old, row)
                    if split:
                        change = Change(
                            ids + word, Op.DELETE, relation.schema, relation.table,
                            ChangeSource(KIND, name, positions + word, xid), at, relation.key(old), old, None, context,
                        )  # fmt: skip
                        gone = change if hold is None else hold(change)
                        if gone is not None and (keep is None or (gone := keep(gone)) is not None):
                            add(gone)
                            add_columns(relation.columns)
                        word = f"{lsn.hex()}.{number:05d}"
                        change = Change(
                            ids + word, Op.INSERT, relation.schema, relation.table,
                            ChangeSource(KIND, name, positions + word, xid), at, relation.key(row), None, row, context,
                        )  # fmt: skip
                    else:
                        change = Change(
                            ids + word, Op.UPDATE, relation.schema, relation.table,
                            ChangeSource(KIND, name, positions + word, xid), at, relation.key(row), old, row, context,
                        )  # fmt: skip
                    if UNAVAILABLE in row.values():
                        unfilled.append(len(changes))
                else:
                    old, _ = (relation.sized if data[30] == _OLD else relation.old)(data, 33)
                    change = Change(
                        ids + word, Op.DELETE, relation.schema, relation.table,
                        ChangeSource(KIND, name, positions + word, xid), at, relation.key(old), old, None, context,
                    )  # fmt: skip
                if hold is not None:
                    held = hold(change)
                    if held is None:
                        continue
                    change = held
                if keep is not None:
                    kept = keep(change)
                    if kept is None:
                        continue
                    change = kept
                add(change)
                add_columns(relation.columns)
        except (KeyError, IndexError, ValueError, ArithmeticError, struct.error) as error:
            raise _malformed(error) from error
        finally:
            self._last, self._number = last, number
        return place

    def message(self, data: bytes) -> None:
        """Handle a logical message: one of Forge's sets the context of what follows in its transaction."""
        found = protocol.message(data)
        if found.transactional and found.prefix == PREFIX and self.transaction is not None:
            said = context_of(found.content)
            if said is not None:
                self._context = said

    def truncate(self, data: bytes) -> None:
        """Add a change for each truncated table."""
        for oid in protocol.truncate(data).relations:
            self._whole(data, oid, Op.TRUNCATE)

    def learn(self, oid: bytes, relation: WalRelation | None) -> None:
        """Set a table's definition from here on; None for one that is not wanted."""
        self.relations[oid] = relation
        if relation is not None:
            self.fresh.add(oid)

    def _settle(self, oid: bytes, lsn: bytes, number: int) -> None:
        """Add a schema change before the first change of a table if its definition differs from the known one.

        This happens as late as possible, because every connection sends the definition again, also for changes that are
        left out. Its position sorts right before that of the first change, the one of this number in its record.
        """
        self.fresh.discard(oid)
        relation = self.relations[oid]
        assert relation is not None
        before = self.known.pop(relation.oid, None)
        self.known[relation.oid] = relation.digest
        if before != relation.digest:
            self.learned += 1
            if before is not None:
                record = lsn.hex()
                place = f"{record}.{number - 1:05d}" if number else f"{_u64(lsn)[0] - 1:016x}."
                change = self._change(relation, Op.SCHEMA, f"{record}.s{relation.oid}", f"{place}s{relation.oid}")
                self._add(change, relation)

    def _whole(self, data: bytes, oid: bytes, op: Op) -> None:
        transaction = self.transaction
        assert transaction is not None
        lsn = data[1:9]
        if lsn == self._last:
            self._number += 1
        else:
            self._last, self._number = lsn, 0
        relation = self.relations.get(oid)
        if relation is None or transaction.skipped or (transaction.after and _u64(lsn)[0] <= transaction.after):
            return
        if oid in self.fresh:
            self._settle(oid, lsn, self._number)
        change = self._change(relation, op, f"{lsn.hex()}.{self._number:05d}" if self._number else lsn.hex())
        if transaction.partly and self.read_before is not None:
            held = self.read_before(change)
            if held is None:
                return
            change = held
        self._add(change, relation)

    def _change(self, relation: WalRelation, op: Op, word: str, place: str | None = None) -> Change:
        transaction = self.transaction
        assert transaction is not None
        source = ChangeSource(KIND, self._name, self._positions + (place or word), str(transaction.xid))
        ident = self._ids + word
        return Change(ident, op, relation.schema, relation.table, source, transaction.at, context=self._context)

    def _add(self, change: Change, relation: WalRelation) -> None:
        kept = change if self._keep is None else self._keep(change)
        if kept is not None:
            self.changes.append(kept)
            self.columns.append(relation.columns)


def _malformed(error: Exception) -> DecodeError:
    line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return DecodeError(
        f"a message of the WAL cannot be decoded: {line}",
        fix="report it with the table's definition; meanwhile take the table out of the publication",
    )
