"""The index says of every change what asking each read would say."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forge.change import UNAVAILABLE, Change, ChangeSource, Op, Row
from forge.conditions.bound import Bound, bind
from forge.conditions.canonical import ColumnType
from forge.conditions.tree import (
    TRUE,
    All,
    AnyOf,
    Compare,
    Condition,
    Constant,
    IsNull,
    Not,
    OneOf,
    Operator,
    Parameter,
)
from forge.conditions.tree import Any as Some
from forge.react.index import BoundRead, Index

TYPES = {
    "id": ColumnType("bigint"),
    "amount": ColumnType("numeric"),
    "name": ColumnType("text"),
    "on": ColumnType("date"),
    "secret": ColumnType("text", hidden=True),
}


def bound(condition: Condition = TRUE, **parameters: Any) -> Bound:
    return bind(condition, TYPES, parameters)


def read(condition: Condition = TRUE, columns: Iterable[str] | None = None, table: str = "t") -> BoundRead:
    return BoundRead("public", table, None if columns is None else frozenset(columns), bound(condition))


def change(op: Op, before: Row | None = None, after: Row | None = None, hidden: Iterable[str] = ()) -> Change:
    source, at = ChangeSource("log", "x", "1"), datetime(2026, 1, 1, tzinfo=UTC)
    return Change("1", op, "public", "t", source, at, before=before, after=after, hidden=tuple(hidden))


def inserted(**row: Any) -> Change:
    return change(Op.INSERT, after=row)


def index(**reads: BoundRead) -> Index[str]:
    made: Index[str] = Index()
    for key, one in reads.items():
        made.put(key, [one])
    return made


def equal(column: str, value: object) -> Compare:
    return Compare(column, "=", Constant(value))


def between(column: str, low: object, high: object) -> Condition:
    return All((Compare(column, ">=", Constant(low)), Compare(column, "<=", Constant(high))))


def test_an_insert_and_a_delete_touch_whom_the_row_concerns() -> None:
    found = index(one=read(equal("id", 1)), two=read(equal("id", 2)), all=read())
    assert found.touched(inserted(id=1)) == {"one", "all"}
    assert found.touched(change(Op.DELETE, before={"id": 2})) == {"two", "all"}
    assert found.touched(change(Op.READ, after={"id": 2})) == {"two", "all"}


def test_an_update_that_moves_a_row_touches_both_sides() -> None:
    found = index(one=read(equal("id", 1)), two=read(equal("id", 2)), three=read(equal("id", 3)))
    assert found.touched(change(Op.UPDATE, {"id": 1}, {"id": 2})) == {"one", "two"}


def test_an_update_of_a_row_that_stays_touches_whoever_read_what_changed() -> None:
    found = index(
        names=read(equal("id", 1), ["id", "name"]),
        amounts=read(equal("id", 1), ["id", "amount"]),
        all=read(equal("id", 1)),
        secrets=read(equal("id", 1), ["id", "secret"]),
    )
    row = {"id": 1, "name": "a", "amount": Decimal(1)}
    assert found.touched(change(Op.UPDATE, row, {**row, "name": "b"})) == {"names", "all"}
    assert found.touched(change(Op.UPDATE, row, row, hidden=["secret"])) == {"secrets", "all"}
    assert found.touched(change(Op.UPDATE, row, row)) == set()


def test_a_column_that_only_the_condition_speaks_of_counts_as_read() -> None:
    found = index(one=read(equal("id", 1), ["name"]))
    assert found.touched(change(Op.UPDATE, {"id": 2, "name": "a"}, {"id": 1, "name": "a"})) == {"one"}


def test_an_undecided_condition_does_not_make_an_update_of_other_columns_count() -> None:
    found = index(one=read(Compare("name", "<", Constant("m")), ["name"]))
    row = {"id": 1, "name": "a"}
    assert found.touched(change(Op.UPDATE, row, {**row, "id": 2})) == set()
    assert found.touched(change(Op.UPDATE, row, {**row, "name": "z"})) == {"one"}


def test_a_column_that_was_not_sent_may_have_changed() -> None:
    """A generated column that is computed on reading is in no image and among no hidden columns."""
    found = index(computed=read(columns=["total"]), names=read(columns=["name"]))
    row = {"id": 1, "name": "a", "total": UNAVAILABLE}
    assert found.touched(change(Op.UPDATE, row, {**row, "id": 2})) == {"computed"}
    assert found.touched(change(Op.UPDATE, {"id": 1, "name": "a"}, {"id": 2})) == {"names"}


@pytest.mark.parametrize("op", [Op.TRUNCATE, Op.SCHEMA, Op.INVALIDATE, Op.INSERT, Op.UPDATE, Op.DELETE])
def test_what_has_no_images_touches_every_read_of_its_table(op: Op) -> None:
    found = index(
        one=read(equal("id", 1)), none=read(equal("id", None)), range=read(between("id", 1, 2)), other=read(table="u")
    )
    assert found.touched(change(op)) == {"one", "none", "range"}


def test_a_redaction_changes_no_result() -> None:
    assert index(one=read(equal("id", 1))).touched(change(Op.REDACT)) == set()


def test_an_update_without_its_before_image_touches_every_read() -> None:
    assert index(one=read(equal("id", 1))).touched(change(Op.UPDATE, None, {"id": 2})) == {"one"}


def test_equal_numbers_meet_whatever_they_are_written_as() -> None:
    found = index(
        whole=read(equal("amount", 1)),
        decimal=read(equal("amount", Decimal("1.00"))),
        text=read(equal("amount", "1.0")),
        nan=read(equal("amount", Decimal("NaN"))),
    )
    assert found.touched(inserted(amount=Decimal("1.0"))) == {"whole", "decimal", "text"}
    assert found.touched(inserted(amount=Decimal("NaN"))) == {"nan"}


def test_null_never_matches() -> None:
    found = index(null=read(equal("id", None)), one=read(equal("id", 1)))
    assert found.touched(inserted(id=None)) == set()
    assert found.touched(inserted(id=1)) == {"one"}


def test_ranges() -> None:
    found = index(
        low=read(Compare("on", "<", Constant("2026-02-01"))),
        middle=read(between("on", "2026-01-15", "2026-02-15")),
        high=read(Compare("on", ">=", Constant("2026-02-01"))),
    )
    assert found.touched(inserted(on="2026-01-01")) == {"low"}
    assert found.touched(inserted(on="2026-01-20")) == {"low", "middle"}
    assert found.touched(inserted(on="2026-02-01")) == {"middle", "high"}
    assert found.touched(inserted(on="infinity")) == {"high"}
    assert found.touched(inserted(on="0044-03-15 BC")) == {"low", "middle", "high"}


@pytest.mark.parametrize("row", [{"id": UNAVAILABLE}, {}, {"id": "odd"}])
def test_a_value_that_is_not_known_asks_every_read_of_the_column(row: Row) -> None:
    found = index(one=read(equal("id", 1)), range=read(between("id", 5, 6)), name=read(equal("name", "a")))
    assert found.touched(change(Op.INSERT, after={**row, "name": "b"})) == {"one", "range"}


def test_either_of_two_equalities() -> None:
    found = index(**{str(number): read(Some((equal("id", number), equal("name", str(number))))) for number in range(5)})
    assert found.touched(inserted(id=1, name="3")) == {"1", "3"}
    assert found.touched(inserted(id=2, name="2")) == {"2"}


def test_putting_replaces_and_removing_forgets() -> None:
    found = index(a=read(equal("id", 1)), b=read(between("id", 1, 3)))
    found.put("a", [read(equal("id", 2)), read(equal("name", "x"), table="u")])
    assert found.touched(inserted(id=1)) == {"b"}
    assert found.touched(inserted(id=2)) == {"a", "b"}
    assert len(found) == 2
    found.remove("b")
    found.remove("unknown")
    assert found.touched(inserted(id=2)) == {"a"}
    assert "b" not in found
    found.put("a", [])
    assert len(found) == 1
    assert found.touched(change(Op.TRUNCATE)) == set()


def test_only_few_reads_are_asked_where_a_crowded_equality_goes_with_a_rare_one() -> None:
    """Reads that share a status are told apart by their customer, whichever comes first."""
    asked = 0

    class Spy(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            nonlocal asked
            asked += 1
            return super().get(name, default)

    found: Index[int] = Index()
    for number in range(1000):
        found.put(number, [read(All((equal("name", "open"), equal("id", number))))])
    assert found.touched(change(Op.INSERT, after=Spy(id=77, name="open"))) == {77}
    assert asked < 10


ids = st.integers(0, 4)
names = st.sampled_from(["a", "b", "c"])
amounts = st.sampled_from([Decimal(text) for text in ("0", "1", "1.0", "2.5", "NaN", "Infinity", "-Infinity")])
days = st.sampled_from(["2026-01-01", "2026-01-02", "2026-02-01", "infinity", "-infinity", "10000-01-01"])
VALUES: dict[str, st.SearchStrategy[Any]] = {"id": ids, "amount": amounts, "name": names, "on": days, "secret": names}


symbols: st.SearchStrategy[Operator] = st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">="])


@st.composite
def leaves(draw: st.DrawFn) -> Condition:
    column = draw(st.sampled_from(list(TYPES)))
    operand = st.one_of(VALUES[column], st.none())
    match draw(st.sampled_from(["compare", "in", "null"])):
        case "compare":
            return Compare(column, draw(symbols), Constant(draw(operand)))
        case "in":
            return OneOf(column, tuple(map(Constant, draw(st.lists(operand, min_size=1, max_size=3)))))
        case _:
            return IsNull(column)


conditions: st.SearchStrategy[Condition] = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Some, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
columns_read = st.one_of(st.none(), st.frozensets(st.sampled_from(list(TYPES))))
images = st.fixed_dictionaries(
    {}, optional={name: st.one_of(one, st.none(), st.just(UNAVAILABLE)) for name, one in VALUES.items()}
)
reads = st.builds(
    BoundRead,
    st.just("public"),
    st.sampled_from(["t", "t", "t", "u"]),
    columns_read,
    conditions.map(bound),
)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    op = draw(st.sampled_from([Op.INSERT, Op.DELETE, Op.UPDATE, Op.UPDATE, Op.UPDATE, Op.TRUNCATE]))
    before = draw(images) if op in (Op.UPDATE, Op.DELETE) else None
    after = draw(images) if op in (Op.UPDATE, Op.INSERT) else None
    if before is not None and after is not None and draw(st.booleans()):
        after = {**before, **dict(list(after.items())[:1])}
    hidden = draw(st.sampled_from([(), ("secret",)])) if op is Op.UPDATE else ()
    return change(op, before, after, hidden)


def concerns(one: BoundRead, change: Change) -> bool:
    """Asks one read, as the definition has it."""
    if one.table != change.table:
        return False
    before, after = change.before, change.after
    if change.op is Op.INSERT:
        assert after is not None
        return one.bound.may(after)
    if change.op is Op.DELETE:
        assert before is not None
        return one.bound.may(before)
    if change.op is not Op.UPDATE:
        return True
    assert before is not None
    assert after is not None
    was, is_now = one.bound.may(before), one.bound.may(after)
    if not (was and is_now):
        return was or is_now
    unsure = {name for name in before.keys() | after.keys() if after.get(name, UNAVAILABLE) is UNAVAILABLE}
    changed = {*change.changed, *unsure, *(before.keys() ^ after.keys())}
    return bool(changed if one.columns is None else changed & (one.columns | one.bound.columns))


class Groups(RuleBasedStateMachine):
    """Groups come, change and go; after each step the index answers as asking every read would."""

    @initialize()
    def start(self) -> None:
        self.index: Index[int] = Index()
        self.groups: dict[int, list[BoundRead]] = {}

    @rule(key=st.integers(0, 30), some=st.lists(reads, max_size=3))
    def put(self, key: int, some: list[BoundRead]) -> None:
        self.index.put(key, some)
        self.groups[key] = some

    @rule(batch=st.lists(st.tuples(st.integers(0, 30), reads), min_size=5, max_size=20))
    def put_many(self, batch: list[tuple[int, BoundRead]]) -> None:
        for key, one in batch:
            self.put(key, [one])

    @rule(key=st.integers(0, 30))
    def remove(self, key: int) -> None:
        self.index.remove(key)
        self.groups.pop(key, None)

    @rule(change=changes())
    def ask(self, change: Change) -> None:
        expected = {key for key, some in self.groups.items() if any(concerns(one, change) for one in some)}
        assert self.index.touched(change) == expected

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "index"):
            assert len(self.index) == len(self.groups)


@pytest.mark.contract("X3")
class TestGroups(Groups.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=60),
    st.lists(st.integers(0, 59), max_size=40),
    st.lists(st.integers(-1, 61), min_size=1, max_size=20),
)
def test_intervals_are_found_after_any_mix_of_additions_and_removals(
    intervals: list[tuple[int, int]], gone: list[int], points: list[int]
) -> None:
    found: Index[int] = Index()
    kept = dict(enumerate(intervals))
    for number, (low, high) in kept.items():
        found.put(number, [read(between("id", low, high))])
    for number in gone:
        found.remove(number)
        kept.pop(number, None)
    for point in points:
        assert found.touched(inserted(id=point)) == {
            number for number, (low, high) in kept.items() if low <= point <= high
        }


def test_a_list_parameter_is_looked_up_by_each_of_its_members() -> None:
    found: Index[str] = Index()
    some = bound(AnyOf("id", Parameter("ids")), ids=[1, 2, None])
    found.put("some", [BoundRead("public", "t", None, some)])
    assert [found.touched(inserted(id=number)) for number in (1, 2, 3)] == [{"some"}, {"some"}, set()]
