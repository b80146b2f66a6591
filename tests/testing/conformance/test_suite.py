"""The suite itself: a right source passes, and one that lies or errs is found by the check that is about it."""

from functools import partial

import pytest

from forge.capture import Capabilities
from forge.testing.conformance import Outcome, checks, claims, cursors, faults, name, outcome, report, snapshots, writes
from forge.testing.conformance.memory import MemorySource, opened
from forge.testing.conformance.runner import Check, main
from tests.testing.conformance import liars

FOUND: list[tuple[type[MemorySource], Check]] = [
    (liars.FalselyDurable, cursors.check_durable),
    (liars.FalselyReplayable, cursors.check_replay),
    (liars.ForgetsSilently, cursors.check_replay),
    (liars.FalselyBefore, writes.check_operations),
    (liars.WrongBefore, writes.check_operations),
    (liars.WrongBefore, writes.check_traffic),
    (liars.ModestBefore, writes.check_operations),
    (liars.NullForUnsent, writes.check_types),
    (liars.Rounding, writes.check_types),
    (liars.FalselyOrdered, writes.check_commit_order),
    (liars.OrderedByBeginning, writes.check_commit_order),
    (liars.FalselyTransactions, writes.check_transactions),
    (liars.OneTransaction, writes.check_transactions),
    (liars.ModestTransactions, writes.check_transactions),
    (liars.FalselyContext, claims.check_context),
    (liars.LeakingContext, claims.check_context),
    (liars.FalselyTruncates, writes.check_truncate),
    (liars.ModestTruncates, writes.check_truncate),
    (liars.FalselySchemaChanges, writes.check_schema_change),
    (liars.ModestSchemaChanges, writes.check_schema_change),
    (liars.ModestSnapshots, snapshots.check_snapshot),
    (liars.ModestProcesses, claims.check_other_processes),
    (liars.GapAfterSnapshot, snapshots.check_snapshot_then_stream),
    (liars.OverlapAfterSnapshot, snapshots.check_snapshot_then_stream),
    (liars.SnapshotStartsAgain, snapshots.check_snapshot_resume),
    (liars.SnapshotOfNow, snapshots.check_snapshot_resume),
    (liars.StreamsInsideSnapshot, snapshots.check_snapshot_resume),
    (liars.OneTooEarly, cursors.check_resume),
    (liars.OneTooLate, cursors.check_resume),
    (liars.NewIds, cursors.check_resume),
    (liars.SameIds, writes.check_traffic),
    (liars.Doubling, writes.check_traffic),
    (liars.MovesKeys, writes.check_key_change),
    (liars.NaiveTime, writes.check_operations),
    (liars.AnyCursor, cursors.check_wrong_cursors),
    (liars.CrudeError, cursors.check_wrong_cursors),
    (liars.ForeignWelcome, cursors.check_foreign_cursor),
    (liars.NeverExpires, cursors.check_expired_cursor),
    (liars.OddCursor, cursors.check_now),
    (liars.Hoarding, faults.check_slow_consumer),
    (liars.Unfiltered, claims.check_filters),
    (liars.FiltersAfterOnly, claims.check_filters),
    (liars.FalselyInFeed, claims.check_status),
    (liars.SilentStatus, claims.check_status),
    (liars.LeavesTasks, faults.check_clean_end),
    (liars.Ends, writes.check_operations),
]
UNTESTABLE = {"retention", "rollbacks"}


@pytest.mark.parametrize("check", checks(), ids=name)
async def test_a_right_source_passes(check: Check) -> None:
    found = await outcome(opened, check)
    assert found.result != "failed", found.why
    in_memory = {"filters in feed", "cut connections", "half open connections", "killed consumer"}
    assert (found.result == "not checked") == (found.check in in_memory)


@pytest.mark.contract("W9")
@pytest.mark.parametrize(("source", "check"), FOUND, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_source_that_errs_is_found(source: type[MemorySource], check: Check) -> None:
    found = await outcome(partial(opened, source), check)
    assert found.result == "failed", f"{source.__name__} got away with it"
    assert found.why


async def test_what_is_rolled_back_and_seen_is_found() -> None:
    found = await outcome(liars.leaky, writes.check_rollback)
    assert found.result == "failed"
    assert "committed was" in (found.why or "")


def test_every_claim_has_a_liar() -> None:
    claimed = {name for name in Capabilities.__struct_fields__ if name not in UNTESTABLE}
    found = {source.__name__.lower() for source, _ in FOUND}
    for claim in claimed:
        word = {"filters": "infeed", "other_processes": "processes"}.get(claim, claim.replace("_", ""))
        assert any(word in liar for liar in found), claim


def test_the_runner_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(opened, ["key change", "filters in feed"]) == 0
    assert main(partial(opened, liars.MovesKeys), ["key change"]) == 1
    out = capsys.readouterr().out
    assert "✓ key change" in out
    assert "· filters in feed" in out
    assert "a changed key must be a delete and an insert" in out
    text = report([Outcome("key change", "passed", 0.1), Outcome("status", "failed", 0.2, "it lies")])
    assert text.splitlines()[-1] == "1 passed, 1 failed, 0 not checked"
