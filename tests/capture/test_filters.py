"""What a filter keeps, and what it must never drop."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from forge.capture import Filter, SourceBatch
from forge.change import UNAVAILABLE, Change, ChangeSource, Op
from forge.errors import ConfigError
from forge.values import Column


def change(op: Op, before: Any = None, after: Any = None, **more: Any) -> Change:
    row = after or before or {}
    return Change(
        id=more.pop("id", "1"),
        op=op,
        schema=more.pop("schema", "public"),
        table=more.pop("table", "orders"),
        source=ChangeSource("log", "x", "1"),
        at=datetime(2026, 1, 1, tzinfo=UTC),
        key=more.pop("key", {"id": row["id"]} if "id" in row else None),
        before=before,
        after=after,
        **more,
    )


INSERT = change(Op.INSERT, after={"id": 1, "status": "paid", "total": 20})
UPDATE = change(Op.UPDATE, {"id": 1, "status": "open", "total": 5}, {"id": 1, "status": "paid", "total": 5})
DELETE = change(Op.DELETE, {"id": 1, "status": "paid", "total": 20})
TRUNCATE = change(Op.TRUNCATE)
ALL = (INSERT, UPDATE, DELETE, TRUNCATE)


@pytest.mark.contract("W9")
@pytest.mark.parametrize(
    ("filter", "kept"),
    [
        (Filter(), [INSERT, UPDATE, DELETE, TRUNCATE]),
        (Filter(tables=("orders",)), [INSERT, UPDATE, DELETE, TRUNCATE]),
        (Filter(tables=("public.*",)), [INSERT, UPDATE, DELETE, TRUNCATE]),
        (Filter(tables=("order",)), []),
        (Filter(tables=("order?",)), [INSERT, UPDATE, DELETE, TRUNCATE]),
        (Filter(operations=(Op.INSERT, Op.DELETE)), [INSERT, DELETE]),
        (Filter(where="total > 10"), [INSERT, DELETE, TRUNCATE]),
        (Filter(where="status = 'open'"), [UPDATE, TRUNCATE]),
        (Filter(where="status = 'lost'"), [TRUNCATE]),
        (Filter(where="unknown = 1"), [INSERT, UPDATE, DELETE, TRUNCATE]),
        (Filter(columns=("status",), where="total <= 5"), [UPDATE, TRUNCATE]),
    ],
)
def test_what_is_kept(filter: Filter, kept: list[Change]) -> None:
    found = [each for each in ALL if filter.keep(each) is not None]
    assert [each.op for each in found] == [each.op for each in kept]


def test_a_row_that_leaves_or_enters_the_condition_passes() -> None:
    into = Filter(where="status = 'paid'")
    assert into.keep(UPDATE) is UPDATE
    assert Filter(where="status = 'open'").keep(UPDATE) is UPDATE


def test_what_was_not_sent_is_not_a_reason_to_drop() -> None:
    """A delete of which only the key is known, an update without the row before, a value out of line."""
    paid = Filter(where="status = 'paid'")
    assert paid.keep(change(Op.DELETE, key={"id": 1})) is not None
    assert paid.keep(change(Op.UPDATE, None, {"id": 1, "status": "open"})) is not None
    assert paid.keep(change(Op.UPDATE, {"status": "open"}, {"id": 1, "status": UNAVAILABLE})) is not None
    assert paid.keep(change(Op.DELETE, {"id": 1, "status": None})) is None
    by_key = Filter(where="id = 2")
    assert by_key.keep(change(Op.DELETE, key={"id": 1})) is None
    assert by_key.keep(change(Op.UPDATE, None, {"id": 1, "status": "open"})) is None


def test_columns_keep_the_key_and_drop_updates_of_others() -> None:
    status = Filter(columns=("status",))
    kept = status.keep(UPDATE)
    assert kept is not None
    assert (kept.before, kept.after) == ({"id": 1, "status": "open"}, {"id": 1, "status": "paid"})
    assert kept.id == UPDATE.id
    assert Filter(columns=("total",)).keep(UPDATE) is None
    assert Filter(columns=("total",)).keep(change(Op.UPDATE, None, {"id": 1, "total": 5})) is not None
    hidden = change(Op.UPDATE, {"id": 1, "secret": UNAVAILABLE}, {"id": 1, "secret": UNAVAILABLE}, hidden=("secret",))
    assert Filter(columns=("secret",)).keep(hidden) == hidden
    assert Filter(columns=("status",)).keep(hidden) is None


def test_a_batch_keeps_its_cursor_and_the_columns_of_what_is_kept() -> None:
    columns = [(Column(name, "text"),) for name in "abcd"]
    batch = SourceBatch(ALL, "cursor", columns)
    assert Filter().batch(batch) is batch
    only = Filter(operations=(Op.DELETE,)).batch(batch)
    assert (list(only.changes), only.cursor, list(only.columns)) == ([DELETE], "cursor", [columns[2]])
    assert Filter(operations=(Op.DELETE,)).batch(SourceBatch(ALL, "cursor")).columns == ()


def test_names_are_taken_literally_but_for_two_marks() -> None:
    odd = Filter(tables=("a[b]", "c.d*", "x|y"))
    wanted = [("public", "a[b]"), ("c", "de"), ("public", "x|y")]
    assert all(odd.wants_table(*name) for name in wanted)
    assert not any(odd.wants_table(*name) for name in [("public", "ab"), ("cxd", "e"), ("public", "x"), ("c", "e")])


def test_a_condition_that_is_none_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError) as caught:
        Filter(where="total >").check()
    assert caught.value.fix
    Filter(where="total > 1").check()


def test_no_filter_costs_next_to_nothing() -> None:
    """A hundred thousand changes: a fraction of what it takes to decode them."""
    keep, began = Filter().keep, time.perf_counter()
    for _ in range(100_000):
        keep(INSERT)
    assert time.perf_counter() - began < 0.5
