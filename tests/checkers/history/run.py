"""Carrying out a plan on a server: a Plan in, a Report out. All that it starts has ended when it returns."""

import asyncio
import random
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from forge.embedded import PostgresServer
from forge.testing.postgres import fresh_database
from forge.testing.proxy import FaultProxy
from tests.checkers.history import oracle
from tests.checkers.history.checks import check, check_suffix
from tests.checkers.history.faults import Faults
from tests.checkers.history.model import Attempt, Discrepancy, Outcome, ReaderRecord, Truth
from tests.checkers.history.plan import Plan
from tests.checkers.history.readers import ReaderHandle
from tests.checkers.history.replay import delivered
from tests.checkers.history.tables import KEYS
from tests.checkers.history.writer import WriterThread

SETTINGS: Final = {"deadlock_timeout": "100ms", "max_prepared_transactions": "40", "max_connections": "100"}
"""What the server of a history needs."""

_SUFFIXES = 4


class Report(msgspec.Struct, frozen=True):
    """What came of a plan."""

    plan: Plan
    discrepancies: list[Discrepancy]
    changes: int
    outcomes: dict[str, int]
    batches: int
    lives: int
    seconds: float
    caught_up: float
    """How long after the last commit every reader had seen everything."""
    faults: list[str]
    errors: dict[str, int]

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {name.lower()}" for name, count in sorted(self.outcomes.items()))
        return (
            f"{self.changes} changes ({outcomes}), {self.batches} batches by {self.lives} reader lives, "
            f"{self.seconds:.1f} s, caught up after {self.caught_up:.2f} s: "
            + (f"{len(self.discrepancies)} DISCREPANCIES" if self.discrepancies else "nothing lost, nothing doubled")
        )


def run(plan: Plan, server: PostgresServer, *, patience: float = 30) -> Report:
    """Carry out the plan in a new database; readers get `patience` seconds to catch up after the last commit."""
    began = time.monotonic()
    server.start()
    directory = Path(tempfile.mkdtemp(prefix="forge-history-"))
    try:
        with ExitStack() as stack:
            url = stack.enter_context(fresh_database(server))
            oracle.prepare(url, plan.settings)
            begin = asyncio.run(oracle.beginning(url))
            readers = []
            for number, each in enumerate(plan.readers):
                proxy = stack.enter_context(FaultProxy("127.0.0.1", server.port))
                handle = ReaderHandle(number, each, directory / str(number), proxy, url, begin)
                stack.callback(handle.kill)
                readers.append(handle)
            return _run(plan, server, url, readers, began, patience)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(
    plan: Plan, server: PostgresServer, url: str, readers: Sequence[ReaderHandle], began: float, patience: float
) -> Report:
    start = time.monotonic()

    def clock() -> float:
        return time.monotonic() - start

    deadline = 2 * plan.seconds + 4
    faults = Faults(plan, server, url, readers, clock)
    writers = [WriterThread(number, each, url, clock, deadline) for number, each in enumerate(plan.writers)]
    for writer in writers:
        writer.start()
    faults.carry_out(plan.seconds)
    for writer in writers:
        writer.join(max(1.0, deadline + 15 - clock()))
        if writer.is_alive() or writer.failure is not None:
            raise RuntimeError(f"{writer.name} did not end as it should") from writer.failure
        writer.settle()
    ended = clock()
    said = oracle.truth(url, faults.crashes)
    late = _catch_up(readers, said, patience)
    caught_up = clock() - ended
    for reader in readers:
        reader.notice()
        reader.kill()
    attempts = [attempt for writer in writers for attempt in writer.attempts]
    records = [reader.record() for reader in readers]
    found = [failure for reader in readers for failure in reader.failures()] + late
    found += check(said, attempts, records, KEYS)
    found += _check_suffixes(plan, url, said, readers, records)
    return Report(
        plan=plan,
        discrepancies=found,
        changes=len(said.log),
        outcomes=_outcomes(attempts),
        batches=sum(len(record.records) for record in records),
        lives=sum(reader.lives for reader in readers),
        seconds=time.monotonic() - began,
        caught_up=caught_up,
        faults=faults.done,
        errors=_errors(attempts),
    )


def _catch_up(readers: Sequence[ReaderHandle], said: Truth, patience: float) -> list[Discrepancy]:
    """Wait until every reader has written down all that is committed; say who has not."""
    deadline = time.monotonic() + patience
    waiting = {reader: -1 for reader in readers if reader.plan.kind == "follow"}
    while waiting and time.monotonic() < deadline:
        for reader, size in list(waiting.items()):
            reader.notice()
            if not reader.running:
                del waiting[reader]
            elif reader.seen() != size:
                waiting[reader] = reader.seen()
                tables = reader.plan.tables
                wanted = {row.id for row in said.log if tables is None or row.table in tables}
                if wanted <= reader.ids():
                    del waiting[reader]
        time.sleep(0.02)
    return [Discrepancy("late", each.name, f"not caught up {patience:g} s after the last commit") for each in waiting]


def _check_suffixes(
    plan: Plan, url: str, said: Truth, readers: Sequence[ReaderHandle], records: Sequence[ReaderRecord]
) -> list[Discrepancy]:
    """Any cursor that was ever saved leads to exactly what came after it, for ever."""
    chance = random.Random(plan.seed)
    found: list[Discrepancy] = []
    for handle, record in zip(readers, records, strict=True):
        kept, wrong = delivered(record)
        if handle.plan.kind != "follow" or wrong or not kept:
            continue
        for index in chance.sample(range(len(kept)), min(_SUFFIXES, len(kept))):
            changes = asyncio.run(oracle.read_from(url, kept[index].end, record.tables))
            found += check_suffix(said, record, kept, index, changes)
    return found


def _outcomes(attempts: Sequence[Attempt]) -> dict[str, int]:
    return {outcome.name: sum(attempt.outcome is outcome for attempt in attempts) for outcome in Outcome}


def _errors(attempts: Sequence[Attempt]) -> dict[str, int]:
    """What made transactions fail, by its first words: a plan whose writers mostly fail proves little."""
    found: dict[str, int] = {}
    for attempt in attempts:
        if attempt.error:
            name = re.sub(r"\d+", "#", attempt.error.splitlines()[0])[:80]
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
