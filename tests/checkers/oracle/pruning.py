"""The direct check of pruning: one statement at a time, and no reactor, so that many more are tried.

In come a plan's schema, queries and statements. All queries are run and their reads put into an index, as a reactor
does; then each statement is carried out, its changes are read from the log and held against the index, and all queries
are asked again. A query whose result is another though no change touched it was pruned wrongly.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import psycopg

from forge.change import Change, Op
from forge.changelog.reader import Reader
from forge.cursor import Cursor
from forge.embedded import PostgresServer
from forge.errors import ForgeError
from forge.postgres.connection import AsyncConnection, connect_async
from forge.react.index import Index
from forge.react.registry import Call
from forge.react.result import encode
from forge.react.runner import Runner
from forge.testing.postgres import fresh_database
from tests.checkers.oracle import ask as asking
from tests.checkers.oracle.plan import Plan
from tests.checkers.oracle.run import Discrepancy, prepare, shown_change, shown_reads


class Pruning(msgspec.Struct, frozen=True):
    """What came of it. `changed` counts results that changed, `wasted` runs that would have been in vain."""

    plan: Plan
    discrepancies: list[Discrepancy]
    statements: int
    queries: int
    changed: int
    wasted: int
    pruned: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.statements} statements over {self.queries} queries: {self.changed} results changed,"
            f" {self.pruned} pruned, {self.wasted} would run in vain, {self.seconds:.1f} s: "
            + (f"{len(self.discrepancies)} PRUNED WRONGLY" if self.discrepancies else "none pruned wrongly")
        )


def check(plan: Plan, server: PostgresServer, *, seconds: float = 1e9, least: int = 0) -> Pruning:
    """Carry out the plan's statements one by one in a new database, as many as begin within the time.

    At least `least` are carried out, however long that takes.
    """
    with fresh_database(server) as url:
        prepare(plan, url)
        return asyncio.run(_Check(plan, url).carry_out(seconds, least))


class _Held(msgspec.Struct):
    ask: int
    call: Call
    rows: list[bytes] = []


class _Check:
    def __init__(self, plan: Plan, url: str) -> None:
        self._plan = plan
        self._url = url
        self._runner = Runner(url)
        self._index: Index[int] = Index()
        self._held: list[_Held] = []
        self._found: list[Discrepancy] = []
        self._statements = self._changed = self._wasted = self._pruned = 0

    async def carry_out(self, seconds: float, least: int) -> Pruning:
        async with AsyncExitStack() as stack:
            await self._runner.open()
            stack.push_async_callback(self._runner.close)
            writer = await stack.enter_async_context(await connect_async(self._url, application_name="oracle"))
            asker = await stack.enter_async_context(await connect_async(self._url, application_name="oracle"))
            reader = await stack.enter_async_context(Reader.open(self._url))
            await self._begin()
            began = time.monotonic()
            cursor = await reader.now()
            for sql in _statements(self._plan):
                if time.monotonic() - began > seconds and self._statements >= least:
                    break
                if await _written(writer, sql):
                    cursor, changes = await _read(reader, cursor)
                    await self._step(asker, sql, changes)
        return Pruning(
            plan=self._plan,
            discrepancies=self._found,
            statements=self._statements,
            queries=len(self._held),
            changed=self._changed,
            wasted=self._wasted,
            pruned=self._pruned,
            seconds=time.monotonic() - began,
        )

    async def _begin(self) -> None:
        """Run every query once, so that it is known what it reads; those that fail are left out."""
        registry = asking.registry(self._plan, _at_once)
        for number, ask in enumerate(self._plan.asks):
            if len(self._plan.queries[ask.query].statements) == 1:
                held = _Held(number, asking.call(registry, ask))
                if await self._analysed(held):
                    self._held.append(held)

    async def _analysed(self, held: _Held) -> bool:
        try:
            outcome = await self._runner.query(held.call)
        except ForgeError:
            return False
        held.rows = _rows(held.call, outcome.value)
        self._index.put(held.ask, outcome.reads)
        return True

    async def _step(self, asker: AsyncConnection, sql: str, changes: list[Change]) -> None:
        self._statements += 1
        if sql.startswith(("ALTER", "CREATE")) or any(change.op is Op.SCHEMA for change in changes):
            self._runner.forget()
            self._held = [held for held in self._held if await self._analysed(held)]
            return
        touched: set[int] = set().union(*(self._index.touched(change) for change in changes))
        for held in list(self._held):
            before = held.rows
            try:
                held.rows = _rows(held.call, await asking.directly(asker, self._plan, self._plan.asks[held.ask]))
            except psycopg.Error:  # some rows make it fail
                self._held.remove(held)
                continue
            changed = before != held.rows
            self._changed += changed
            self._pruned += held.ask not in touched
            self._wasted += held.ask in touched and not changed
            if changed and held.ask not in touched:
                what = self._told(held, before, sql, changes)
                self._found.append(Discrepancy("pruned", held.ask, self._statements, what))

    def _told(self, held: _Held, before: Any, sql: str, changes: list[Change]) -> str:
        query = self._plan.queries[self._plan.asks[held.ask].query]
        lines = [f"{before} became {held.rows}", f"written: {sql}"]
        for statement in query.statements:
            lines.append(f"SQL: {statement}")
            lines += shown_reads(self._runner, statement)
        lines.append(f"parameters: {dict(held.call.arguments)}, as {held.call.auth}")
        lines += [f"change: {shown_change(change)}" for change in changes[:12]]
        return "\n  ".join(lines)


def _statements(plan: Plan) -> Iterator[str]:
    for each in plan.rounds:
        for writer in each.writers:
            for transaction in writer:
                for statement in transaction.statements:
                    if not statement.sql.startswith(("SET", "LOCK")):
                        yield statement.sql


async def _written(writer: AsyncConnection, sql: str) -> bool:
    try:
        await writer.execute(sql.encode())
    except psycopg.Error:
        return False
    return True


async def _read(reader: Reader, cursor: Cursor) -> tuple[Cursor, list[Change]]:
    changes: list[Change] = []
    async for batch in reader.read(cursor):
        changes += batch.changes
        cursor = batch.cursor
    return cursor, changes


def _rows(call: Call, value: Any) -> list[bytes]:
    return sorted(encode(value, key=call.query.key).rows)


async def _at_once() -> None:
    """No delay."""
