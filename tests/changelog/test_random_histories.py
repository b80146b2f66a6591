"""No change is lost or doubled, whatever fails: random histories on real servers, and a reader that must be caught."""

import asyncio
import random
from collections.abc import Iterator

import msgspec
import pytest

from forge.embedded import PostgresServer
from forge.postgres.connection import connect
from forge.testing.postgres import available_versions, fresh_database, temporary_postgres
from tests.checkers.history.checks import check_reader
from tests.checkers.history.model import ReaderRecord, Record
from tests.checkers.history.oracle import beginning, prepare, read_from, truth
from tests.checkers.history.plan import Fault, ReaderPlan, generate
from tests.checkers.history.run import SETTINGS, Report, run
from tests.checkers.history.tables import KEYS

SEEDS = (7, pytest.param(21, marks=pytest.mark.long))
SECONDS = 4
OLDEST, NEWEST = min(available_versions()), max(available_versions())


@pytest.fixture(scope="module", params=[NEWEST])
def history_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that the tests of this file crash in turn."""
    with temporary_postgres(bin=available_versions()[request.param], settings=SETTINGS) as server:
        yield server


def explained(report: Report) -> str:
    lines = [report.plan.summary(), str(report), *map(str, report.discrepancies[:10])]
    lines.append(f"again: python -m tests.checkers history --seed {report.plan.seed} --seconds {SECONDS}")
    return "\n".join(lines)


@pytest.mark.contract("X1", "T7", "T11")
@pytest.mark.parametrize("seed", [*SEEDS, "random"])
def test_a_history_with_faults_loses_and_doubles_nothing(history_server: PostgresServer, seed: int | str) -> None:
    number = random.SystemRandom().randrange(10**9) if isinstance(seed, str) else seed
    plan = generate(number, seconds=SECONDS, writers=4)
    print(plan.summary())
    report = run(plan, history_server)
    assert not report.discrepancies, explained(report)
    assert report.outcomes["COMMITTED"] > 50
    assert len(report.faults) == len(plan.faults) > 0


@pytest.mark.contract("X1")
@pytest.mark.parametrize("history_server", [OLDEST], indirect=True)
def test_a_history_on_the_oldest_server(history_server: PostgresServer) -> None:
    plan = generate(3, seconds=SECONDS, writers=4)
    report = run(plan, history_server)
    assert not report.discrepancies, explained(report)
    assert len(report.faults) == len(plan.faults) > 0


@pytest.mark.contract("X1")
def test_a_row_that_one_statement_updates_and_deletes_by_foreign_keys(history_server: PostgresServer) -> None:
    plan = generate(1, seconds=SECONDS, readers=1, faults=(), tables=("parent", "heir"))
    report = run(plan, history_server)
    assert not report.discrepancies, explained(report)


@pytest.mark.contract("X1")
def test_a_partition_truncated_by_a_transaction_that_keeps_its_snapshot(history_server: PostgresServer) -> None:
    with fresh_database(history_server) as url:
        prepare(url, {})
        with connect(url) as other, connect(url) as older:
            other.execute("INSERT INTO parted VALUES (1, '')")
            older.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            older.execute("SELECT FROM plain")
            other.execute("DELETE FROM parted; INSERT INTO parted VALUES (2, '')")
            older.execute("TRUNCATE parted_0")
            older.execute("COMMIT")
        begin = asyncio.run(beginning(url))
        changes = asyncio.run(read_from(url, begin, None))
        record = ReaderRecord("reader", begin, (Record(1, begin, "end", tuple(changes)),))
        assert check_reader(truth(url), record, KEYS, wiped=["parted"]) == []


@pytest.mark.contract("X1")
def test_a_crash_takes_back_nothing_that_a_reader_was_given(history_server: PostgresServer) -> None:
    """Only crashes, several of them, and no commit that waits for the disk."""
    plan = generate(5, seconds=SECONDS, writers=4, faults=())
    hasty = tuple(
        msgspec.structs.replace(
            writer,
            transactions=tuple(msgspec.structs.replace(each, synchronous=False) for each in writer.transactions),
        )
        for writer in plan.writers
    )
    crashes = (Fault(0.8, "crash"), Fault(1.9, "immediate"), Fault(3.0, "crash"))
    plan = msgspec.structs.replace(plan, writers=hasty, readers=(ReaderPlan(), ReaderPlan()), faults=crashes)
    report = run(plan, history_server)
    assert not report.discrepancies, explained(report)
    assert len(report.faults) == 3


def test_a_reader_with_a_sequence_cursor_is_caught(history_server: PostgresServer) -> None:
    """The checker can fail: greatest id seen so far is the classic mistake, and loses what commits late."""
    plan = generate(1, seconds=3, writers=6, readers=1, faults=(), rate=30)
    plan = msgspec.structs.replace(plan, readers=(ReaderPlan(kind="sequence"), ReaderPlan()))
    report = run(plan, history_server)
    wrong, right = "reader 0 (sequence, auto)", "reader 1 (follow, auto)"
    assert any(found.kind == "lost" and found.who == wrong for found in report.discrepancies)
    assert not [found for found in report.discrepancies if found.who == right], explained(report)
