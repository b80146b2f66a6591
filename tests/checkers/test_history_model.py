"""The history checker's own judgement, on histories that never were: it accepts the true and refuses the altered."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.change import Change, ChangeSource, Context, Op
from tests.checkers.history.candidates import candidates
from tests.checkers.history.checks import check, check_suffix
from tests.checkers.history.model import (
    Attempt,
    Discrepancy,
    Effect,
    LogRow,
    Outcome,
    ReaderRecord,
    Record,
    Truth,
    canonical,
    line,
    load,
    parse_line,
)
from tests.checkers.history.plan import (
    FAULTS,
    Ending,
    Fault,
    FaultKind,
    Isolation,
    Operation,
    OperationKind,
    Plan,
    generate,
)
from tests.checkers.history.replay import delivered
from tests.checkers.shrink import shrink

AT = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = {"t": ("k",), "bag": ()}
LETTER = {Op.INSERT: "I", Op.UPDATE: "U", Op.DELETE: "D", Op.TRUNCATE: "T", Op.SCHEMA: "S", Op.INVALIDATE: "X"}

Row = dict[str, Any]


class Simulation:
    """A database of two tables, one of them without a key, whose every step is also a Change."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.bag: list[Row] = []
        self.changes: list[Change] = []

    def log(self, table: str, op: Op, before: Row | None, after: Row | None) -> None:
        id = len(self.changes) + 1
        image = after or before
        key = {"k": image["k"]} if image is not None and table == "t" else None
        source = ChangeSource("postgres-log", "x", f"{id}.{id}", str(id))
        context = Context(trace_id=f"m{id}")
        self.changes.append(Change(f"x:{id}", op, "public", table, source, AT, key, before, after, context))

    def write(self, k: int, verb: str) -> None:
        mark = f"m{len(self.changes) + 1}"
        if verb == "truncate":
            self.rows.clear()
            self.log("t", Op.TRUNCATE, None, None)
        elif verb == "bag":
            self.bag.append({"k": k, "m": mark})
            self.log("bag", Op.INSERT, None, self.bag[-1])
        elif k not in self.rows:
            self.rows[k] = {"k": k, "m": mark}
            self.log("t", Op.INSERT, None, self.rows[k])
        elif verb == "delete":
            self.log("t", Op.DELETE, self.rows.pop(k), None)
        else:
            before, self.rows[k] = self.rows[k], {"k": k, "m": mark}
            self.log("t", Op.UPDATE, before, self.rows[k])

    def truth(self) -> Truth:
        log = [
            LogRow(
                number,
                number,
                LETTER[change.op],
                change.table,
                change.row_id,
                change.context.trace_id,
                change.before["m"] if change.before else None,
                change.after["m"] if change.after else None,
            )
            for number, change in enumerate(self.changes, 1)
        ]
        return Truth(log, {"t": list(self.rows.values()), "bag": self.bag})


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "write", "delete", "bag", "truncate"])),
    min_size=1,
    max_size=40,
)


def simulate(steps: Sequence[tuple[int, str]]) -> Simulation:
    simulation = Simulation()
    for k, verb in steps:
        simulation.write(k, verb)
    return simulation


def reader(changes: Sequence[Change], ends: Sequence[int] = (), kills: Sequence[bool] = ()) -> ReaderRecord:
    """One that read in batches that end where told; where it was killed, the batch comes again and longer."""
    records, run, start = [], 1, 0
    stops = sorted({end for end in ends if 0 < end < len(changes)} | {len(changes)})
    for number, stop in enumerate(stops):
        if number < len(kills) and kills[number]:
            records.append(Record(run, str(start), str(stop), tuple(changes[start:stop])))
            run += 1
            if number + 1 < len(stops):
                continue
        records.append(Record(run, str(start), str(stop), tuple(changes[start:stop])))
        start = stop
    return ReaderRecord("r", "0", tuple(records))


def kinds(found: Sequence[Discrepancy]) -> set[str]:
    return {discrepancy.kind for discrepancy in found}


def judge(simulation: Simulation, changes: Sequence[Change]) -> set[str]:
    return kinds(check(simulation.truth(), [], [reader(changes)], KEYS))


@given(STEPS, st.lists(st.integers(0, 40)), st.lists(st.booleans(), max_size=40))
def test_a_true_history_is_accepted(steps: list[tuple[int, str]], ends: list[int], kills: list[bool]) -> None:
    simulation = simulate(steps)
    assert check(simulation.truth(), [], [reader(simulation.changes, ends, kills)], KEYS) == []


@given(STEPS, st.data())
def test_a_lost_change_is_found(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    simulation = simulate(steps)
    gone = data.draw(st.integers(0, len(simulation.changes) - 1))
    assert "lost" in judge(simulation, simulation.changes[:gone] + simulation.changes[gone + 1 :])


@given(STEPS, st.data())
def test_a_doubled_change_is_found(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    simulation = simulate(steps)
    again = data.draw(st.integers(0, len(simulation.changes) - 1))
    later = data.draw(st.integers(again + 1, len(simulation.changes)))
    changes = [*simulation.changes[:later], simulation.changes[again], *simulation.changes[later:]]
    assert "doubled" in judge(simulation, changes)


@given(STEPS, st.data())
def test_two_swapped_changes_of_a_row_are_found(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    simulation = simulate([(1, "write"), (1, "write"), *steps])
    own = [n for n, change in enumerate(simulation.changes) if change.key == {"k": 1}]
    left, right = sorted(data.draw(st.lists(st.sampled_from(own), min_size=2, max_size=2, unique=True)))
    changes = list(simulation.changes)
    changes[left], changes[right] = changes[right], changes[left]
    found = judge(simulation, changes)
    assert "order" in found
    # Two lives of a row with a truncate between them are chains of their own, whichever comes first.
    emptied = any(change.op is Op.TRUNCATE for change in changes[left:right])
    assert emptied or "chain" in found


@given(STEPS)
def test_a_change_that_never_was_is_found(steps: list[tuple[int, str]]) -> None:
    simulation = simulate(steps)
    phantom = msgspec.structs.replace(simulation.changes[0], id="x:999")
    assert "phantom" in judge(simulation, [*simulation.changes, phantom])


@given(STEPS, st.data())
def test_a_row_that_was_changed_behind_the_log_is_found(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    simulation = simulate([*steps, (9, "write")])
    simulation.rows[9] = {"k": 9, "m": "other"}
    assert judge(simulation, simulation.changes) == {"rebuild"}


def test_a_phantom_in_a_batch_that_was_read_again_is_found() -> None:
    simulation = simulate([(1, "write"), (2, "write")])
    phantom = msgspec.structs.replace(simulation.changes[0], id="x:999")
    records = (
        Record(1, "0", "5", (simulation.changes[0], phantom)),
        Record(2, "0", "2", tuple(simulation.changes)),
    )
    found = check(simulation.truth(), [], [ReaderRecord("r", "0", records)], KEYS)
    assert kinds(found) == {"phantom"}


def test_a_cursor_that_jumps_is_found() -> None:
    simulation = simulate([(1, "write"), (2, "write")])
    first, second = simulation.changes
    records = (Record(1, "0", "1", (first,)), Record(1, "7", "8", (second,)))
    assert kinds(check(simulation.truth(), [], [ReaderRecord("r", "0", records)], KEYS)) == {"cursor"}


def test_only_a_new_life_may_read_a_batch_again() -> None:
    simulation = simulate([(1, "write")])
    twice = (Record(1, "0", "1", tuple(simulation.changes)),) * 2
    _, wrong = delivered(ReaderRecord("r", "0", twice))
    assert kinds(wrong) == {"cursor"}


def test_a_reader_of_some_tables_is_held_to_those() -> None:
    simulation = simulate([(1, "write"), (1, "bag")])
    some = ReaderRecord("r", "0", (Record(1, "0", "1", (simulation.changes[1],)),), tables=("bag",))
    assert check(simulation.truth(), [], [some], KEYS) == []


def test_a_column_that_nobody_announced_is_found() -> None:
    simulation = simulate([(1, "write")])
    simulation.rows[1] = {"k": 1, "m": "m2", "added_3": 3}
    simulation.log("t", Op.UPDATE, {"k": 1, "m": "m1", "added_3": 3}, simulation.rows[1])
    assert judge(simulation, simulation.changes) == {"chain"}
    announced = simulate([(1, "write")])
    announced.log("t", Op.SCHEMA, None, None)
    announced.rows[1] = {"k": 1, "m": "m3", "added_3": 3}
    announced.log("t", Op.UPDATE, {"k": 1, "m": "m1", "added_3": 3}, announced.rows[1])
    truth = announced.truth()
    assert kinds(check(truth, [], [reader(announced.changes)], KEYS)) == set()


def test_only_a_wiped_table_may_be_invalidated() -> None:
    simulation = simulate([(1, "write")])
    simulation.log("t", Op.INVALIDATE, None, None)
    simulation.rows.clear()
    truth, records = simulation.truth(), [reader(simulation.changes)]
    assert kinds(check(truth, [], records, KEYS)) == {"chain", "rebuild"}
    wipe = Attempt("w0.0", outcome=Outcome.COMMITTED, effects=[Effect("m9", "t", "wipe", None)])
    assert check(truth, [wipe], records, KEYS) == []
    simulation.write(1, "truncate")
    simulation.write(1, "write")
    simulation.rows[1] = {"k": 1, "m": "other"}
    assert kinds(check(simulation.truth(), [wipe], [reader(simulation.changes)], KEYS)) == {"rebuild"}


def test_what_follows_a_cursor_is_what_was_not_seen_before_it() -> None:
    simulation = simulate([(1, "write"), (2, "write"), (3, "write")])
    record = reader(simulation.changes, ends=[1])
    kept, _ = delivered(record)
    truth, changes = simulation.truth(), simulation.changes
    assert check_suffix(truth, record, kept, 0, changes[1:]) == []
    assert check_suffix(truth, record, kept, 0, changes[2:]) != []
    assert check_suffix(truth, record, kept, 0, changes) != []


def attempt(outcome: Outcome, *, synchronous: bool = True, ended: float = 1.0) -> Attempt:
    effects = [Effect("m1", "t", "write", 1), Effect("m2", "t", "write", 1)]
    return Attempt("w0.0", synchronous, outcome, effects, [], ended)


@pytest.mark.parametrize(
    ("logged", "outcome", "synchronous", "crashes", "expected"),
    [
        (2, Outcome.COMMITTED, True, [], set()),
        (1, Outcome.COMMITTED, True, [], {"unlogged"}),
        (0, Outcome.COMMITTED, True, [5.0], {"unlogged"}),
        (0, Outcome.COMMITTED, False, [], {"unlogged"}),
        (0, Outcome.COMMITTED, False, [0.5], {"unlogged"}),
        (0, Outcome.COMMITTED, False, [5.0], set()),
        (1, Outcome.COMMITTED, False, [5.0], {"torn"}),
        (0, Outcome.ABORTED, True, [], set()),
        (1, Outcome.ABORTED, True, [], {"aborted"}),
        (0, Outcome.UNKNOWN, True, [], set()),
        (1, Outcome.UNKNOWN, True, [], {"torn"}),
        (2, Outcome.UNKNOWN, True, [], set()),
    ],
)
def test_what_a_writer_knows_is_held_against_the_log(
    logged: int, outcome: Outcome, synchronous: bool, crashes: list[float], expected: set[str]
) -> None:
    simulation = simulate([(n, "write") for n in range(logged)])
    truth = msgspec.structs.replace(simulation.truth(), crashes=crashes)
    found = check(truth, [attempt(outcome, synchronous=synchronous)], [], KEYS)
    assert kinds(found) == expected


def test_what_a_savepoint_took_back_must_not_be_logged() -> None:
    simulation = simulate([(1, "write")])
    undone = Attempt("w0.0", outcome=Outcome.COMMITTED, undone=["m1"])
    assert kinds(check(simulation.truth(), [undone], [], KEYS)) == {"undone"}


def test_equal_rows_have_equal_bytes() -> None:
    assert canonical({"a": 1, "b": None}) == canonical({"b": None, "a": 1})
    assert canonical({"a": 1, "b": None}) != canonical({"a": 1})
    assert canonical({"a": 1, "added_2": 2}) == canonical({"a": 1})
    assert canonical({"a": 1, "added_2": 3}) != canonical({"a": 1})
    assert canonical({"a": True}) != canonical({"a": 1})


@given(STEPS)
def test_a_record_survives_its_file(steps: list[tuple[int, str]]) -> None:
    record = Record(3, "a", "b", tuple(simulate(steps).changes))
    assert parse_line(line(record).rstrip()) == record


def test_a_line_that_a_kill_left_unfinished_was_never_written(tmp_path: Path) -> None:
    record = Record(1, "a", "b", tuple(simulate([(1, "write")]).changes))
    (tmp_path / "records").write_bytes(line(record) + line(record)[:-20] + b"\n" + line(record))
    assert load(tmp_path / "records") == [record, record]
    assert load(tmp_path / "absent") == []


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9))
def test_a_seed_gives_one_plan_and_a_plan_survives_its_file(seed: int) -> None:
    plan = generate(seed, seconds=1)
    assert plan == generate(seed, seconds=1)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert str(seed) in plan.summary()


def with_inner(operations: Sequence[Operation]) -> Iterator[Operation]:
    for operation in operations:
        yield operation
        yield from with_inner(operation.inner)


def test_the_plans_of_fifty_seeds_have_everything_in_them() -> None:
    plans = [generate(seed, seconds=3, writers=2) for seed in range(50)]
    transactions = [each for plan in plans for writer in plan.writers for each in writer.transactions]
    operations = [each for transaction in transactions for each in with_inner(transaction.operations)]
    assert all(plan.faults for plan in plans)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(get_args(FaultKind)) == set(FAULTS)
    assert {operation.kind for operation in operations} == set(get_args(OperationKind))
    assert {transaction.ending for transaction in transactions} == set(get_args(Ending))
    assert {transaction.isolation for transaction in transactions} == set(get_args(Isolation))
    assert {transaction.silent for transaction in transactions} == {True, False}
    assert {transaction.synchronous for transaction in transactions} == {True, False}


def test_only_the_faults_that_are_asked_for_are_planned() -> None:
    plans = [generate(seed, seconds=3, writers=1, faults=("cut", "crash")) for seed in range(50)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {"cut", "crash"}
    assert generate(1, seconds=3, writers=1, faults=()).faults == ()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9))
def test_every_candidate_is_smaller(seed: int) -> None:
    plan = generate(seed, seconds=0.3, writers=2)
    assert all(candidate.size < plan.size for candidate in candidates(plan))


def test_shrinking_keeps_what_matters() -> None:
    plan = generate(3, seconds=2)
    needed = Fault(0.5, "cut", 1)
    plan = msgspec.structs.replace(plan, faults=(*plan.faults, needed))

    def fails(candidate: Plan) -> bool:
        cuts = [fault for fault in candidate.faults if fault.kind == "cut" and fault.at == 0.5]
        writes = [o for w in candidate.writers for t in w.transactions for o in t.operations if o.kind == "delete"]
        return bool(cuts and writes)

    small = shrink(plan, candidates, fails, seconds=20)
    assert len(small.faults) == 1
    assert len(small.writers) == 1
    assert [o.kind for t in small.writers[0].transactions for o in t.operations] == ["delete"]
    assert len(small.readers) == 2 or small.faults[0].reader == 0


def test_shrinking_what_never_fails_again_gives_the_plan_back() -> None:
    plan = generate(3, seconds=0.2, writers=1)
    assert shrink(plan, candidates, lambda _: False, seconds=5) == plan
