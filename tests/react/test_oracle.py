"""Live queries never miss: random schemas, queries, writes and faults against PostgreSQL itself.

And a reactor that must be caught.
"""

import logging
import random
from collections.abc import Iterator

import msgspec
import pytest

from forge.change import Change, Op
from forge.embedded import PostgresServer
from forge.react.index import Index
from forge.testing.postgres import temporary_postgres
from tests.checkers.oracle.candidates import candidates
from tests.checkers.oracle.generate import generate
from tests.checkers.oracle.plan import Plan
from tests.checkers.oracle.pruning import check
from tests.checkers.oracle.run import SETTINGS, Report, run
from tests.checkers.shrink import shrink

SEEDS = (3, pytest.param(7, marks=pytest.mark.long))
SECONDS = 6
ROUNDS = 6
"""That many are carried out on a busy machine too."""


@pytest.fixture(scope="module")
def oracle_server() -> Iterator[PostgresServer]:
    """A server that the tests of this file restart in turn."""
    with temporary_postgres(settings=SETTINGS) as server:
        yield server


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Faults make the reactor and its pools complain, as they should."""
    for name in ("forge", "psycopg.pool"):
        caplog.set_level(logging.CRITICAL, name)


def explained(report: Report) -> str:
    lines = [report.plan.summary(), str(report), *map(str, report.discrepancies[:3])]
    lines.append(f"again: python -m tests.checkers oracle --seed {report.plan.seed} --seconds {SECONDS}")
    return "\n".join(lines)


@pytest.mark.contract("X2", "X3", "R1", "R2")
@pytest.mark.parametrize("seed", [*SEEDS, "random"])
def test_every_subscriber_holds_what_postgres_answers(oracle_server: PostgresServer, seed: int | str) -> None:
    number = random.SystemRandom().randrange(10**9) if isinstance(seed, str) else seed
    plan = generate(number)
    print(plan.summary())
    report = run(plan, oracle_server, seconds=SECONDS, least=ROUNDS)
    assert not report.discrepancies, explained(report)
    assert report.metrics["missed"] == 0
    assert report.comparisons > 50
    assert report.metrics["pruned"] > 0


@pytest.mark.contract("X2", "R14", "R15")
def test_two_nodes_and_deltas_alone(oracle_server: PostgresServer) -> None:
    plan = generate(11, faults=("slow",))
    everywhere = tuple(
        msgspec.structs.replace(each, node=node, delta=True) for each in plan.subscriptions for node in range(2)
    )
    plan = msgspec.structs.replace(plan, nodes=2, subscriptions=everywhere)
    report = run(plan, oracle_server, seconds=SECONDS, least=20)  # the first of them comes after more than ten
    assert not report.discrepancies, explained(report)
    assert report.deltas > 0


@pytest.mark.contract("X3")
def test_no_change_that_matters_is_pruned(oracle_server: PostgresServer) -> None:
    found = check(generate(2, rounds=80, queries=24, joins=0.4), oracle_server, seconds=SECONDS, least=40)
    assert not found.discrepancies, str(found.discrepancies[0])
    assert found.changed > 0
    assert found.pruned > 0


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """To match what a row is now, and not what it was, is the classic mistake."""
    real = Index.touched

    def touched(self: Index[object], change: Change) -> set[object]:
        if change.op is Op.UPDATE:
            change = msgspec.structs.replace(change, op=Op.INSERT, before=None)
        return real(self, change)

    monkeypatch.setattr(Index, "touched", touched)


def test_an_index_that_ignores_what_rows_were_is_caught(
    oracle_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful(monkeypatch)
    for seed in range(1, 6):
        report = run(generate(seed, faults=(), ddl=False), oracle_server, seconds=SECONDS, least=ROUNDS)
        if report.discrepancies:
            break
    assert "missed" in {found.kind for found in report.discrepancies}
    assert "and PostgreSQL answers" in report.discrepancies[0].what


def test_pruning_by_what_rows_are_now_alone_is_caught(
    oracle_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful(monkeypatch)
    for seed in range(3, 8):  # the first of them finds it
        plan = generate(seed, rounds=80, queries=24, joins=0.4, ddl=False)
        found = check(plan, oracle_server, seconds=SECONDS)
        if found.discrepancies:
            break
    assert {each.kind for each in found.discrepancies} == {"pruned"}


def test_the_same_seed_gives_the_same_plan_which_survives_being_saved() -> None:
    plan = generate(5)
    assert plan == generate(5)
    assert plan != generate(6)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


def test_a_failing_plan_is_made_smaller() -> None:
    plan = generate(5)
    needed = next(s.sql for each in plan.rounds for writer in each.writers for t in writer for s in t.statements)

    def fails(candidate: Plan) -> bool:
        return needed in str(candidate.rounds)

    smallest = shrink(plan, candidates, fails, seconds=20)
    assert fails(smallest)
    assert len(smallest.rounds) == 1
    assert smallest.filling == ()
    assert not any(map(fails, candidates(smallest)))
