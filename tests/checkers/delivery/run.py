"""Carrying out one run: a Plan in, a Report out. All that it starts has ended when it returns."""

import asyncio
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import msgspec
import psycopg

from forge.changelog.install import install
from forge.changelog.reader import Reader
from forge.deliver.consumers.control import Control
from forge.deliver.consumers.lease import TTL
from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing.postgres import fresh_database
from forge.testing.proxy import FaultProxy
from tests.checkers.delivery.checks import Receipt, check
from tests.checkers.delivery.node import EXACT, HEALED, KINDS, LATE, POINTS, RECEIPTS, Point, Task, work
from tests.checkers.session_settings import of_database, set_defaults

KEYS: Final = 17
_LONG: Final = TTL + 1.0
"""Seconds for which a node hangs, or hears nothing: its lease is over by then."""
_LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)


class Plan(msgspec.Struct, frozen=True):
    """What is done."""

    seed: int
    seconds: float = 6.0
    nodes: int = 2
    writers: int = 2
    rate: float = 60.0
    """Transactions per second and writer."""
    crashes: int = 1
    """Of the server."""
    cuts: int = 0
    """How often the network between a node and the server is cut, or is silent for a while: every other time."""
    hangs: int = 0
    """How often a node hangs (SIGSTOP) for longer than its lease."""
    deaths: int = 4
    """Of nodes at the least: a run goes on until there were so many, ten times as long if need be."""
    points: tuple[Point, ...] = POINTS
    kinds: tuple[str, ...] = KINDS
    """Of consumers."""
    broken: bool = False


class Report(msgspec.Struct, frozen=True):
    """What came of it."""

    plan: Plan
    wrong: list[str]
    changes: int
    received: int
    deaths: dict[str, int]
    faults: dict[str, int]
    seconds: float

    def __str__(self) -> str:
        deaths = ", ".join(f"{count} {point}" for point, count in sorted(self.deaths.items()))
        faults = "".join(f", {count} {fault}" for fault, count in sorted(self.faults.items()))
        verdict = f"{len(self.wrong)} WRONG" if self.wrong else "nothing lost, every row in order"
        return (
            f"seed {self.plan.seed}: {self.changes} changes, {self.received} received,"
            f" deaths: {deaths or 'none'}{faults}, {self.seconds:.1f} s: {verdict}"
        )


def run(plan: Plan, server: PostgresServer, *, patience: float = 60.0) -> Report:
    """Carry out the plan in a new database; a first node has `patience` seconds to begin, and at the end consumers may
    go on while they get anywhere in as many."""
    began = time.monotonic()
    server.start()
    directory = Path(tempfile.mkdtemp(prefix="forge-delivery-"))
    try:
        with fresh_database(server) as url:
            with connect(url) as connection:
                set_defaults(connection, of_database(plan.seed))
                install(connection)
                connection.execute("CREATE TABLE item (id int PRIMARY KEY, v int NOT NULL)")
                connection.execute("SELECT forge_enable_reactivity('item')")
                connection.execute(
                    "CREATE TABLE received (n bigint GENERATED ALWAYS AS IDENTITY, consumer text, shard int, fence int,"
                    " change text, key text)"
                )
            nodes = [_Node(plan, number, url, server.port, directory) for number in range(plan.nodes)]
            try:
                faults = _disturb(plan, server, url, nodes, patience)
                slow = _catch_up(url, directory, nodes, patience)
            finally:
                for node in nodes:
                    node.close()
            truth = asyncio.run(_truth(url))
            receipts, late = _receipts(url, directory), set(_lines(directory / LATE))
            wrong = list(slow)
            for name in plan.kinds:
                own = [each for each in receipts if each.consumer == name]
                wrong += check(truth, own, consumer=name, exactly_once=name in EXACT, late=late)
            deaths: dict[str, int] = {}
            for node in nodes:
                for point, count in node.deaths.items():
                    deaths[point] = deaths.get(point, 0) + count
            changes = sum(map(len, truth.values()))
            return Report(plan, wrong, changes, len(receipts), deaths, faults, time.monotonic() - began)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Node:
    """One node, life after life, and its way to the server."""

    def __init__(self, plan: Plan, number: int, url: str, port: int, directory: Path) -> None:
        self._plan = plan
        self._number = number
        self.proxy = FaultProxy("127.0.0.1", port)
        self.proxy.start()
        self._url = self.proxy.url(url)
        self._directory = directory
        self._chance = random.Random(f"{plan.seed}/{number}")
        self._life = 0
        self._process: BaseProcess | None = None
        self._point: Point | None = None
        self.deaths: dict[str, int] = {}

    def look(self, *, mortal: bool) -> None:
        """Begin another life where one has ended."""
        if self._process is not None and self._process.is_alive():
            return
        if self._process is not None and self._point is not None:
            self.deaths[self._point] = self.deaths.get(self._point, 0) + 1
        self._life += 1
        self._point = self._chance.choice(self._plan.points) if mortal else None
        task = Task(
            self._url,
            str(self._directory),
            f"{self._number}.{self._life}",
            self._point,
            self._chance.randint(1, 20),
            self._plan.kinds,
            self._plan.broken,
        )
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.checkers.delivery.node"])
        self._process = context.Process(target=work, args=(task,), daemon=True)
        self._process.start()

    @property
    def died(self) -> int:
        return sum(self.deaths.values())

    def again(self, *, mortal: bool) -> None:
        """The life that is under way ends, and another begins."""
        self._point = None
        self.end()
        self._process = None
        self.look(mortal=mortal)

    def hang(self, *, ended: bool = False) -> None:
        """Stop it as it is, or let it go on."""
        if self._process is not None and self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGCONT if ended else signal.SIGSTOP)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        self.end()
        self.proxy.stop()


def _disturb(plan: Plan, server: PostgresServer, url: str, nodes: list[_Node], patience: float) -> dict[str, int]:
    """Write, and let nodes, server and network fail, for as long as the plan says; it begins when the first node
    works. What failed, apart from nodes that died."""
    nodes[0].look(mortal=False)
    _await_first(url, patience)
    nodes[0].again(mortal=True)
    ended = threading.Event()
    writers = [threading.Thread(target=_write, args=(plan, n, url, ended), daemon=True) for n in range(plan.writers)]
    start = time.monotonic()
    faults = _Faults(plan, server, nodes)
    for writer in writers:
        writer.start()
    try:
        while True:
            passed = time.monotonic() - start
            if passed >= plan.seconds and (
                sum(node.died for node in nodes) >= plan.deaths or passed > 10 * plan.seconds
            ):
                break
            for node in nodes:
                node.look(mortal=True)
            faults.carry_out(passed)
            time.sleep(0.02)
    finally:
        faults.lift()
        ended.set()
        for writer in writers:
            writer.join(30)
    return faults.done


class _Faults:
    """What happens to server, network and nodes, each at its time; what lasts is lifted at its time, or in the end."""

    def __init__(self, plan: Plan, server: PostgresServer, nodes: list[_Node]) -> None:
        chance = random.Random(plan.seed)
        self.done: dict[str, int] = {}
        self._server = server
        self._due: list[tuple[float, str, _Node]] = []
        network = ["cut" if number % 2 == 0 else "stall" for number in range(plan.cuts)]
        for kind in ["crash"] * plan.crashes + network + ["hang"] * plan.hangs:
            self._due.append((chance.uniform(0.3, 0.9) * plan.seconds, kind, chance.choice(nodes)))
        self._due.sort(key=lambda each: each[0])

    def carry_out(self, now: float) -> None:
        """All that is due."""
        while self._due and self._due[0][0] <= now:
            _, kind, node = self._due.pop(0)
            self._begin(kind, node, now)

    def lift(self) -> None:
        """Nothing lasts."""
        for _, kind, node in self._due:
            if kind in ("resume", "wake"):
                self._begin(kind, node, 0.0)
        self._due.clear()

    def _begin(self, kind: str, node: _Node, now: float) -> None:
        if kind == "resume":
            node.proxy.resume()
            return
        if kind == "wake":
            node.hang(ended=True)
            return
        self.done[kind] = self.done.get(kind, 0) + 1
        if kind == "crash":
            self._server.crash()
            self._server.start()
        elif kind == "cut":
            node.proxy.cut()
        elif kind == "stall":
            node.proxy.stall()
            self._later(now + _LONG, "resume", node)
        else:
            node.hang()
            self._later(now + _LONG, "wake", node)

    def _later(self, at: float, kind: str, node: _Node) -> None:
        self._due.append((at, kind, node))
        self._due.sort(key=lambda each: each[0])


def _await_first(url: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    with connect(url) as connection:
        while connection.execute("SELECT count(*) FROM forge.consumer WHERE owner IS NOT NULL").fetchone() == (0,):
            if time.monotonic() > deadline:
                raise RuntimeError("no node works")
            time.sleep(0.02)


def _write(plan: Plan, number: int, url: str, ended: threading.Event) -> None:
    """Random changes, each transaction of one to four rows; a lost connection is opened again."""
    chance = random.Random(f"{plan.seed}/writer/{number}")
    while not ended.is_set():
        with contextlib.suppress(*_LOST), psycopg.connect(url) as connection:
            for _ in _paced(plan.rate, ended):
                with connection.transaction():
                    for key in sorted(chance.sample(range(KEYS), chance.randint(1, 4))):
                        _change(connection, chance, key)
        time.sleep(0.05)


def _change(connection: psycopg.Connection, chance: random.Random, key: int) -> None:
    if chance.random() < 0.15:
        connection.execute("DELETE FROM item WHERE id = %s", (key,))
    else:
        connection.execute("INSERT INTO item VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET v = item.v + 1", (key,))


def _paced(rate: float, ended: threading.Event) -> Iterator[None]:
    while not ended.wait(1 / rate):
        yield


def _catch_up(url: str, directory: Path, nodes: list[_Node], patience: float) -> list[str]:
    """Let nodes live, and what was poisoned be sent again, until nobody is behind."""
    for node in nodes:
        node.again(mortal=False)
    (directory / HEALED).touch()
    deadline, before = time.monotonic() + patience, ""
    control = Control(url)
    while True:
        statuses = asyncio.run(control.statuses())
        standing = str([(each.lag_events, each.dead_letters) for each in statuses])
        if standing != before:  # a busy machine is slow, and that is not what is looked for
            deadline, before = time.monotonic() + patience, standing
        behind = [f"{each.name}/{each.shard}" for each in statuses if each.lag_events]
        if statuses and not behind:
            if not any(each.dead_letters for each in statuses):
                return []
            left = asyncio.run(control.replay_dead("poisoned", wait=5.0)).left
            behind = [f"poisoned ({left} letters)"]
        if time.monotonic() >= deadline:
            return [f"no progress for {patience:g} s: {', '.join(behind) or 'nobody registered'}"]
        for node in nodes:
            node.look(mortal=False)
        time.sleep(0.1)


async def _truth(url: str) -> dict[str, list[str]]:
    """The ids of the changes of each row, in their order, as the log says."""
    found: dict[str, list[str]] = {}
    async with Reader.open(url) as reader:
        async for batch in reader.read(reader.start(), tables=["item"]):
            for change in batch.changes:
                if change.key is not None:
                    found.setdefault(change.row_id, []).append(change.id)
    return found


def _receipts(url: str, directory: Path) -> list[Receipt]:
    found = _lines(directory / RECEIPTS)
    with connect(url) as connection:
        rows = connection.execute("SELECT consumer, shard, fence, change, key FROM received ORDER BY n").fetchall()
    return found + [Receipt(*row) for row in rows]


def _lines(file: Path) -> list[Receipt]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Receipt) for line in lines]
