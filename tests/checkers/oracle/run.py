"""Carrying out a plan on a server: a Plan in, a Report out. All that it starts has ended when it returns.

After each round a row is written to a table that no query reads. When every node has read that from the log, and none
of its groups runs or is about to, what each subscriber holds must be what PostgreSQL answers.
"""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
import psycopg

from forge.change import Change
from forge.changelog.install import install
from forge.changelog.reader import Batch
from forge.embedded import PostgresServer
from forge.errors import ForgeError, QueryRefused, ServerError
from forge.postgres.connection import AsyncConnection, connect, connect_async
from forge.react.group import Group, ReactorMetrics, Settings
from forge.react.reactor import Reactor
from forge.react.registry import Registry
from forge.react.result import Result, encode
from forge.react.runner import Runner
from forge.serve.node import Node, Options
from forge.testing.postgres import fresh_database
from tests.checkers.oracle import ask as asking
from tests.checkers.oracle.faults import Faults
from tests.checkers.oracle.holder import Holder
from tests.checkers.oracle.plan import Plan, Round
from tests.checkers.oracle.schema import PREAMBLE, TICK
from tests.checkers.oracle.writers import WriterTask
from tests.checkers.session_settings import set_defaults

SETTINGS: Final = {"max_connections": "150"}
"""What the server of an oracle's run needs."""
REACTOR: Final = Settings(quiet=0.01, longest=0.05, check=0.5, resync=1e9)
_LAST_CHANGES: Final = 12
_LOOKS: Final = 3


class Discrepancy(msgspec.Struct, frozen=True):
    """Something that must not be. `kind` is one of few words, so that a shrunk plan fails in the same way."""

    kind: str
    ask: int
    round: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind} in round {self.round}: {self.what}"


class Report(msgspec.Struct, frozen=True):
    """What came of a plan."""

    plan: Plan
    discrepancies: list[Discrepancy]
    rounds: int
    transactions: int
    comparisons: int
    pushes: int
    deltas: int
    seconds: float
    refused: dict[str, int]
    """Queries that PostgreSQL refuses, or of which Forge cannot know what they read, by the reason."""
    asks: int
    errors: dict[str, int]
    faults: list[str]
    metrics: dict[str, int]

    def __str__(self) -> str:
        metrics = self.metrics
        looked = metrics["touched"] + metrics["pruned"]
        return (
            f"{self.transactions} transactions in {self.rounds} rounds, {self.comparisons} comparisons,"
            f" {self.pushes} pushes ({self.deltas} deltas), {sum(self.refused.values())} of {self.asks} refused,"
            f" {metrics['changes']} changes, {100 * metrics['pruned'] / max(1, looked):.0f}% pruned,"
            f" {metrics['wasted']} of {metrics['runs']} runs wasted, {self.seconds:.1f} s: "
            + (
                f"{len(self.discrepancies)} DISCREPANCIES"
                if self.discrepancies
                else "every subscriber holds the answer"
            )
        )


def run(plan: Plan, server: PostgresServer, *, seconds: float = 1e9, least: int = 0, patience: float = 20) -> Report:
    """Carry out the plan in a new database, as many rounds as begin within the time.

    Nodes get `patience` seconds to settle after each round.
    """
    server.start()
    with fresh_database(server) as url:
        try:
            return asyncio.run(_Run(plan, server, url, patience).carry_out(seconds, least))
        finally:
            server.start()  # so that the database can be dropped


def prepare(plan: Plan, url: str) -> Counter[str]:
    """Make the plan's tables and the rest; returns why views were refused."""
    refused: Counter[str] = Counter()
    with connect(url) as connection:
        set_defaults(connection, plan.settings)
    with connect(url) as connection:
        install(connection)
        virtual = "VIRTUAL" if connection.info.server_version >= 180000 else "STORED"
        for statement in PREAMBLE:
            connection.execute(statement.encode())
        for relation in plan.schema.relations:
            for statement in relation.ddl:
                try:
                    connection.execute(statement.replace("{virtual}", virtual).encode())
                except psycopg.Error as error:
                    if relation.shape != "view":
                        raise
                    refused[f"view: {_line(error)}"] += 1
        for extra in plan.schema.extras:
            for statement in extra.ddl:
                connection.execute(statement.encode())
        connection.execute("SET lock_timeout = '3s'")
        for statement in plan.filling:
            try:
                connection.execute(statement.encode())
            except psycopg.IntegrityError:
                continue
    return refused


class _Subscribed(msgspec.Struct, eq=False):
    number: int
    ask: int
    node: int
    holder: Holder
    group: Group


_Wrong = tuple[_Subscribed, str, str]
"""Who holds what it should not, of which kind that is, and what."""


class _SlowRunner(Runner):
    """Waits between a shared snapshot and the runs on it."""

    def __init__(self, url: str, delay: asking.Delay) -> None:
        super().__init__(url)
        self._delay = delay

    @asynccontextmanager
    async def shared_snapshot(self) -> AsyncIterator[str]:
        async with super().shared_snapshot() as snapshot:
            await self._delay()
            yield snapshot


class _Node:
    """A serving node, the last tick that its reactor has read, and the last changes."""

    def __init__(self, url: str, registry: Registry, delay: asking.Delay) -> None:
        self.reactor = Reactor(_SlowRunner(url, delay), url, REACTOR)
        self.serving = Node(registry, self.reactor, Options())
        self.reactor.on_batch.append(self._take)
        self.tick = 0
        self.changes: deque[Change] = deque(maxlen=_LAST_CHANGES)

    def _take(self, batch: Batch) -> None:
        for change in batch.changes:
            if change.table == TICK:
                self.tick = max(self.tick, (change.after or {}).get("n", 0))
            else:
                self.changes.append(change)

    def quiet(self) -> bool:
        """Whether nothing runs, and nothing that was read is about to make something run."""
        reactor = self.reactor
        return not len(reactor._debounce) and all(
            not group.running and (group.settled() or _gave_up(group)) for group in reactor.groups.values()
        )


def _gave_up(group: Group) -> bool:
    """Whether the group waits for a change before it tries again, or for nobody."""
    return not group.subscribers or (group.error is not None and not isinstance(group.error, ServerError))


class _Run:
    def __init__(self, plan: Plan, server: PostgresServer, url: str, patience: float) -> None:
        self._plan = plan
        self._url = url
        self._patience = patience
        self._faults = Faults(server, url, random.Random(plan.seed))
        self._registry: Registry = asking.registry(plan, self._faults.delay)
        self._nodes: list[_Node] = []
        most = max(len(each.writers) for each in plan.rounds)
        settings = [*plan.writers, *({} for _ in range(most))]
        self._writers = [WriterTask(url, settings[number]) for number in range(most)]
        self._subscribed: list[_Subscribed] = []
        self._direct: AsyncConnection | None = None
        self._ticks = 0
        self._found: list[Discrepancy] = []
        self._spoilt: set[int] = set()
        self._refused: Counter[str] = Counter()
        self._refused_asks: set[int] = set()
        self._comparisons = self._pushes = self._deltas = 0

    async def carry_out(self, seconds: float, least: int) -> Report:
        began = time.monotonic()
        views = await asyncio.to_thread(prepare, self._plan, self._url)
        done = 0
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            for _ in range(self._plan.nodes):
                node = _Node(self._url, self._registry, self._faults.delay)
                await node.serving.start()
                stack.push_async_callback(node.serving.stop)
                self._nodes.append(node)
            for number, each in enumerate(self._plan.rounds):
                if time.monotonic() - began > seconds and done >= least:
                    break
                await self._round(number, each)
                done += 1
            for subscribed in self._subscribed:
                self._count(subscribed)
        metrics = Counter[str]()
        for node in self._nodes:
            metrics.update(msgspec.structs.asdict(node.reactor.metrics))
        if metrics["missed"] and not self._found:
            self._found.append(Discrepancy("missed", -1, done, f"the reactors themselves found {metrics['missed']}"))
        errors: Counter[str] = sum((writer.errors for writer in self._writers), Counter())
        return Report(
            plan=self._plan,
            discrepancies=self._found,
            rounds=done,
            transactions=sum(writer.committed for writer in self._writers),
            comparisons=self._comparisons,
            pushes=self._pushes,
            deltas=self._deltas,
            seconds=time.monotonic() - began,
            refused=dict((self._refused + views).most_common()),
            asks=len(self._plan.asks),
            errors=dict(errors.most_common()),
            faults=self._faults.done,
            metrics={name: metrics[name] for name in ReactorMetrics.__struct_fields__},
        )

    async def _close(self) -> None:
        for writer in self._writers:
            await writer.close()
        if self._direct is not None:
            await self._direct.close()

    async def _round(self, number: int, each: Round) -> None:
        for place, planned in enumerate(self._plan.subscriptions):
            if planned.begins == number and planned.ask not in self._spoilt | self._refused_asks:
                self._subscribe(place)
        for subscribed in list(self._subscribed):
            if self._plan.subscriptions[subscribed.number].ends == number:
                self._unsubscribe(subscribed)
        await asyncio.gather(
            *(writer.write(mine) for writer, mine in zip(self._writers, each.writers, strict=False)),
            *(self._faults.carry_out(fault) for fault in each.faults),
        )
        await self._compare(number)

    def _subscribe(self, place: int) -> None:
        planned = self._plan.subscriptions[place]
        holder = Holder(planned.session, lambda: self._faults.crashes, delta=planned.delta)
        reactor = self._nodes[planned.node].reactor
        group = reactor.subscribe(asking.call(self._registry, self._plan.asks[planned.ask]), holder)
        self._subscribed.append(_Subscribed(place, planned.ask, planned.node, holder, group))

    def _unsubscribe(self, subscribed: _Subscribed) -> None:
        self._count(subscribed)
        self._subscribed.remove(subscribed)
        self._nodes[subscribed.node].reactor.unsubscribe(subscribed.group, subscribed.holder)

    def _count(self, subscribed: _Subscribed) -> None:
        self._pushes += subscribed.holder.pushes
        self._deltas += subscribed.holder.deltas

    # Comparing

    async def _compare(self, number: int) -> None:
        """Hold every subscriber against the database. What differs is looked at again: a session that was cut off may
        have committed a moment ago."""
        missed = self._missed()
        waiting = list(self._subscribed)
        first: list[_Wrong] = []
        wrong: list[_Wrong] = []
        for look in range(_LOOKS):
            await asyncio.sleep(look * 0.2)  # a new view or policy is told by NOTIFY, beside the log
            if not await self._settle():
                self._note(self._late(number), number)
                return
            wrong = await self._differing(waiting)
            first = first or wrong
            waiting = [subscribed for subscribed, _, _ in wrong]
            if not waiting:
                break
        fixed = self._missed() > missed  # by a reactor's own check
        self._note(wrong or (first if fixed else []), number)

    def _missed(self) -> int:
        return sum(node.reactor.metrics.missed for node in self._nodes)

    def _late(self, number: int) -> list[_Wrong]:
        wrong: list[_Wrong] = [(each, "late", f"not settled after {self._patience:g} s") for each in self._unsettled()]
        if not wrong:
            self._found.append(Discrepancy("late", -1, number, "a node does not read the log"))
        return wrong

    def _note(self, wrong: list[_Wrong], number: int) -> None:
        """Report what is wrong, once for each query; nobody subscribes to it any more."""
        for subscribed, kind, what in wrong:
            if subscribed.ask not in self._spoilt:
                self._spoilt.add(subscribed.ask)
                self._found.append(Discrepancy(kind, subscribed.ask, number, self._told(subscribed, what, number)))
        for subscribed in list(self._subscribed):
            if subscribed.ask in self._spoilt:
                self._unsubscribe(subscribed)

    def _unsettled(self) -> list[_Subscribed]:
        return [
            subscribed
            for subscribed in self._subscribed
            if subscribed.group.running or not (subscribed.group.settled() or _gave_up(subscribed.group))
        ]

    async def _settle(self) -> bool:
        """Wait until every node has read all that is committed by now, and has run what it touched."""
        deadline = time.monotonic() + self._patience
        again = 0.0
        wanted = self._ticks + 1
        while time.monotonic() < deadline:
            if any(node.tick < wanted for node in self._nodes):
                if time.monotonic() > again:
                    again = time.monotonic() + 0.5
                    await self._tick()
            elif all(node.quiet() for node in self._nodes):
                return True
            await asyncio.sleep(0.004)
        return False

    async def _tick(self) -> None:
        self._ticks += 1
        try:
            connection = await self._connected()
            await connection.execute(f"INSERT INTO {TICK} VALUES (%s)".encode(), (self._ticks,))
        except (psycopg.Error, ForgeError):
            self._direct = None

    async def _connected(self) -> AsyncConnection:
        if self._direct is None or self._direct.closed:
            self._direct = await connect_async(self._url, application_name="oracle")
            self._direct.prepare_threshold = None
        return self._direct

    async def _differing(self, among: list[_Subscribed]) -> list[_Wrong]:
        answers: dict[int, Result | psycopg.Error] = {}
        found = []
        for subscribed in among:
            if subscribed.ask not in answers:
                answers[subscribed.ask] = await self._answer(subscribed.ask)
            expected = answers[subscribed.ask]
            self._comparisons += 1
            difference = self._difference(subscribed, expected)
            if difference is not None:
                found.append((subscribed, *difference))
        return found

    async def _answer(self, number: int) -> Result | psycopg.Error:
        ask = self._plan.asks[number]
        try:
            value = await asking.directly(await self._connected(), self._plan, ask)
        except psycopg.Error as error:
            return error
        return encode(value, key=self._plan.queries[ask.query].key)

    def _difference(self, subscribed: _Subscribed, expected: Result | psycopg.Error) -> tuple[str, str] | None:
        """Of which kind a difference is, and what; None when there is none."""
        holder, group = subscribed.holder, subscribed.group
        if holder.wrong:
            return "pushed wrongly", holder.wrong[0]
        if holder.error is not None and (holder.result is None or isinstance(holder.error, QueryRefused)):
            return self._judge_refusal(subscribed, holder.error, expected)
        if isinstance(expected, psycopg.Error):
            return None
        if group.error is not None:
            return "failed", f"PostgreSQL answers, but: {group.error}"
        if holder.result is None:
            return "missed", f"nothing was pushed, and PostgreSQL answers {_shown(expected)}"
        if _same(holder.result, expected, ordered=self._plan.queries[self._plan.asks[subscribed.ask].query].ordered):
            return None
        return "missed", f"held is {_shown(holder.result)}\n  and PostgreSQL answers {_shown(expected)}"

    def _judge_refusal(
        self, subscribed: _Subscribed, error: ForgeError, expected: Result | psycopg.Error
    ) -> tuple[str, str] | None:
        if not isinstance(expected, psycopg.Error) and not isinstance(error, QueryRefused):
            return "failed", f"PostgreSQL answers, but: {error}"
        if subscribed.ask not in self._refused_asks:
            self._refused_asks.add(subscribed.ask)
            known = isinstance(expected, psycopg.Error)
            self._refused[f"PostgreSQL: {_line(expected)}" if known else f"Forge: {error}"] += 1
        self._unsubscribe(subscribed)
        return None

    def _told(self, subscribed: _Subscribed, what: str, number: int) -> str:
        """All that one needs to find the cause."""
        ask = self._plan.asks[subscribed.ask]
        query = self._plan.queries[ask.query]
        node = self._nodes[subscribed.node]
        lines = [what, f"query {ask.query}, ask {subscribed.ask}, as {asking.auth(ask)}, key {query.key}"]
        for statement in query.statements:
            lines.append(f"SQL: {statement}")
            lines += shown_reads(node.reactor.runner, statement)
        lines.append(f"parameters: {asking.values(ask)}")
        lines += [f"written: {text}" for text in _written(self._plan.rounds[number])]
        lines += [f"change: {shown_change(change)}" for change in node.changes]
        return "\n  ".join(lines)


def _written(each: Round) -> list[str]:
    return [
        f"{'' if transaction.commit else '(rolled back) '}{statement.sql}"
        for writer in each.writers
        for transaction in writer
        for statement in transaction.statements
    ]


def _same(held: Result, expected: Result, *, ordered: bool) -> bool:
    if held.single != expected.single:
        return False
    return held.rows == expected.rows if ordered else sorted(held.rows) == sorted(expected.rows)


def shown_reads(runner: Runner, statement: str) -> list[str]:
    """What a statement was found to read, whoever asked and by whatever types of parameters."""
    known = [analysis for asked, analysis in runner._analyses.items() if statement in asked]
    return list(dict.fromkeys(f"read: {read}" for analysis in known for read in analysis.reads))


def shown_change(change: Change) -> str:
    return (
        f"{change.op} {change.schema}.{change.table} {_short(change.before)} -> {_short(change.after)} {change.hidden}"
    )


def _shown(result: Result) -> str:
    return _short(b"[" + b", ".join(sorted(result.rows)) + b"]")


def _short(value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 600 else text[:597] + "..."


def _line(error: Any) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
