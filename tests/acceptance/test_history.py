"""No change is lost or doubled, whatever fails: random histories on real servers, and a reader that must be caught."""

import random

import msgspec
import pytest

from forge.testing.history.plan import Fault, ReaderPlan, generate
from forge.testing.history.run import SETTINGS, Report, run
from forge.testing.postgres import temporary_postgres

SEEDS = (7, 21, 42)
SECONDS = 4


def explained(report: Report) -> str:
    lines = [report.plan.summary(), str(report), *map(str, report.discrepancies[:10])]
    lines.append(f"again: python -m forge.testing.history --seed {report.plan.seed} --seconds {SECONDS}")
    return "\n".join(lines)


@pytest.mark.contract("X1", "T7", "T11")
@pytest.mark.parametrize("seed", [*SEEDS, "random"])
def test_a_history_with_faults_loses_and_doubles_nothing(seed: int | str) -> None:
    number = random.SystemRandom().randrange(10**9) if isinstance(seed, str) else seed
    plan = generate(number, seconds=SECONDS, writers=4)
    print(plan.summary())
    with temporary_postgres(settings=SETTINGS) as server:
        report = run(plan, server)
    assert not report.discrepancies, explained(report)
    assert report.outcomes["COMMITTED"] > 100


@pytest.mark.contract("X1")
def test_a_crash_takes_back_nothing_that_a_reader_was_given() -> None:
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
    plan = msgspec.structs.replace(plan, writers=hasty, faults=crashes)
    with temporary_postgres(settings=SETTINGS) as server:
        report = run(plan, server)
    assert not report.discrepancies, explained(report)
    assert len(report.faults) == 3


def test_a_reader_with_a_sequence_cursor_is_caught() -> None:
    """The checker can fail: greatest id seen so far is the classic mistake, and loses what commits late."""
    plan = generate(1, seconds=3, writers=6, readers=1, faults=(), rate=30)
    plan = msgspec.structs.replace(plan, readers=(ReaderPlan(kind="sequence"), ReaderPlan()))
    with temporary_postgres(settings=SETTINGS) as server:
        report = run(plan, server)
    wrong, right = "reader 0 (sequence, auto)", "reader 1 (follow, auto)"
    assert any(found.kind == "lost" and found.who == wrong for found in report.discrepancies)
    assert not [found for found in report.discrepancies if found.who == right], explained(report)
