"""Cache for the results of one-shot queries, invalidated through the same index that live queries use.

Input: calls of queries marked with `cache=`, and the log as the reactor follows it. Output: valid results
(`forge.cache.validity` defines valid). The read set of a run decides which changes invalidate its entry: by condition
and column where the read set has them, otherwise by table. With Redis, an entry carries its read set as data, so that
every node matches it on its own.

Invariants:
- The key of an entry is the key of a group: the query, its arguments, and what the query sees of the caller. A caller
  never gets an entry of another scope.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import msgspec

from forge.cache import Cache
from forge.cache import values as exact
from forge.cache.entry import CacheEntry
from forge.cache.recent_changes import ANY_TABLE
from forge.cache.validity import ComputedValue, Shown, ValidCache
from forge.change import Change
from forge.changelog.reader import Batch
from forge.conditions.bound import bind
from forge.conditions.canonical import PLAIN, ColumnType
from forge.conditions.tree import (
    TRUE,
    All,
    AnyOf,
    Compare,
    Condition,
    Constant,
    Distinct,
    IsNull,
    Not,
    OneOf,
    Operand,
    Parameter,
    Undecided,
)
from forge.conditions.tree import Any as Some
from forge.cursor import NOW, After, Cursor
from forge.react.catalog import OWN_SCHEMA
from forge.react.index import BoundRead, Index
from forge.react.reactor import Reactor
from forge.react.registry import Call

Reads = Sequence[BoundRead]
Place = Callable[[], AbstractAsyncContextManager[None]]


class Cached:
    """The cache of one node."""

    def __init__(self, reactor: Reactor, cache: Cache) -> None:
        self._reactor = reactor
        self._cache = cache
        self._keeper: ValidCache[Reads] | None = None

    @property
    def keeper(self) -> ValidCache[Reads]:
        assert self._keeper is not None, "it was started"
        return self._keeper

    async def start(self) -> None:
        """Start the cache; call this before the reactor follows the log."""
        self._keeper = await self._cache.attach(ReadMatcher(), self._reactor.url)
        self._reactor.on_batch.append(self._take)
        self._reactor.on_read.append(self._read)
        self._reactor.runner.on_forget.append(self._lose)
        self._reactor.runner.on_commit = self._cache.wrote

    async def stop(self) -> None:
        """Stop the cache; call this after the reactor has stopped following the log."""
        await self._cache.detach(self.keeper)

    async def ask(self, call: Call, after: After = NOW, place: Place = nullcontext) -> Shown:
        """Return the result of a call. If the query has to run, it runs inside `place()`."""
        name, arguments, scope = call.group
        parts = (part for text in (name.encode(), arguments, scope) for part in (str(len(text)).encode(), b":", text))
        key = "q" + hashlib.sha256(b"".join(parts)).hexdigest()[:40]

        async def run(after: After) -> ComputedValue[Reads]:
            async with place():
                result, outcome = await self._reactor.once(call, after)
            tables = tuple(sorted({_table(read) for read in outcome.reads}))
            lives = [self._cache.life(tables, None if call.query.cache is True else float(call.query.cache))]
            lives += [] if call.query.refresh_every is None else [call.query.refresh_every]
            ttl = None if None in lives else min(life for life in lives if life is not None)
            return ComputedValue(result.json(), result.hash, outcome.coverage, tables, outcome.reads, ttl)

        return await self.keeper.ask(key, name, run, after)

    def _take(self, batch: Batch) -> None:
        for keeper in self._cache.fed_by(self.keeper):
            keeper.take(batch.changes)

    def _read(self, cursor: Cursor, started: str) -> None:
        for keeper in self._cache.fed_by(self.keeper):
            keeper.read(cursor, started)

    def _lose(self) -> None:
        for keeper in self._cache.fed_by(self.keeper):
            keeper.lose()


def _table(read: BoundRead) -> str:
    """Return the table to match; reads of Forge's own tables match every change, because every write changes them."""
    return ANY_TABLE if read.schema == OWN_SCHEMA else f"{read.schema}.{read.table}"


class ReadMatcher:
    """Find the entries that a change touches, by their read sets."""

    def __init__(self) -> None:
        self._index: Index[str] = Index()
        self._own: set[str] = set()

    def put(self, key: str, reads: Reads) -> None:
        self._index.put(key, reads)
        self._own.discard(key)
        if any(read.schema == OWN_SCHEMA for read in reads):
            self._own.add(key)

    def remove(self, key: str) -> None:
        self._index.remove(key)
        self._own.discard(key)

    def touched(self, change: Change) -> Iterable[str]:
        found = self._index.touched(change)
        return found | self._own if self._own else found

    def touches(self, reads: Reads, changes: Iterable[Change]) -> bool:
        own: Index[None] = Index()
        own.put(None, reads)
        every = any(read.schema == OWN_SCHEMA for read in reads)
        return any(every or own.touched(change) for change in changes)

    def encode(self, reads: Reads) -> bytes:
        return msgspec.msgpack.encode([_encoded(read) for read in reads])

    def decode(self, entry: CacheEntry) -> Reads:
        """Decode the read set of an entry; without an encoded read set, use whole tables."""
        if entry.reads:
            return [_decoded(parts) for parts in msgspec.msgpack.decode(entry.reads)]
        return [
            _whole(OWN_SCHEMA, ANY_TABLE) if table == ANY_TABLE else _whole(*table.split(".", 1))
            for table in entry.tables
        ]


def _whole(schema: str, table: str) -> BoundRead:
    return BoundRead(schema, table, None, bind(TRUE, {}, {}))


# Read sets as data. A value without an exact form is left out; its condition is then undecided.


def _encoded(read: BoundRead) -> list[Any]:
    condition, types, parameters = read.bound.parts()
    columns = None if read.columns is None else sorted(read.columns)
    named = {name: exact.encode(parameters[name]) for name in _names(condition) if _is_exact(parameters.get(name))}
    used = {name: msgspec.to_builtins(types[name]) for name in read.bound.columns if name in types}
    return [read.schema, read.table, columns, _condition(condition), used, named]


def _decoded(parts: list[Any]) -> BoundRead:
    schema, table, columns, condition, used, named = parts
    types = {name: msgspec.convert(given, ColumnType) for name, given in used.items()}
    parameters = {name: exact.decode(raw) for name, raw in named.items()}
    bound = bind(_read_condition(condition), types, parameters)
    return BoundRead(schema, table, None if columns is None else frozenset(columns), bound)


def _is_exact(value: object) -> bool:
    members = value if type(value) is list else [value]
    return all(member is None or type(member) in PLAIN for member in members)


def _names(condition: Condition) -> set[str]:
    match condition:
        case Compare(operand=operand) | Distinct(operand=operand) | AnyOf(operand=operand):
            return {operand.name} if isinstance(operand, Parameter) else set()
        case OneOf(operands=operands):
            return {operand.name for operand in operands if isinstance(operand, Parameter)}
        case Not(condition=inner):
            return _names(inner)
        case All(conditions=parts) | Some(conditions=parts):
            return set().union(*map(_names, parts))
        case _:
            return set()


def _operand(operand: Operand) -> list[Any] | None:
    if isinstance(operand, Parameter):
        return ["p", operand.name, operand.cut]
    return ["c", exact.encode(operand.value)] if _is_exact(operand.value) else None


def _read_operand(parts: list[Any]) -> Operand:
    return Parameter(parts[1], parts[2]) if parts[0] == "p" else Constant(exact.decode(parts[1]))


def _condition(condition: Condition) -> list[Any]:
    match condition:
        case Compare(column, operator, operand) if (coded := _operand(operand)) is not None:
            return ["=", column, operator, coded]
        case OneOf(column, operands) if None not in (codes := [_operand(operand) for operand in operands]):
            return ["in", column, codes]
        case AnyOf(column, operand):
            return ["any", column, _operand(operand)]
        case Distinct(column, operand) if (coded := _operand(operand)) is not None:
            return ["distinct", column, coded]
        case IsNull(column):
            return ["null", column]
        case Not(inner):
            return ["not", _condition(inner)]
        case All(parts):
            return ["and", *map(_condition, parts)]
        case Some(parts):
            return ["or", *map(_condition, parts)]
        case _:
            return ["?"]


def _read_condition(parts: list[Any]) -> Condition:
    match parts:
        case ["=", column, operator, operand]:
            return Compare(column, operator, _read_operand(operand))
        case ["in", column, operands]:
            return OneOf(column, tuple(map(_read_operand, operands)))
        case ["any", column, [_, name, cut]]:
            return AnyOf(column, Parameter(name, cut))
        case ["distinct", column, operand]:
            return Distinct(column, _read_operand(operand))
        case ["null", column]:
            return IsNull(column)
        case ["not", inner]:
            return Not(_read_condition(inner))
        case ["and", *rest]:
            return All(tuple(map(_read_condition, rest)))
        case ["or", *rest]:
            return Some(tuple(map(_read_condition, rest)))
        case _:
            return Undecided()
