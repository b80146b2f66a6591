"""The noun Change: what it derives from its rows, and the two values that are not values."""

import copy
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.change import JSON_NULL, UNAVAILABLE, Change, ChangeSource, Op, same, text


def change(op: Op = Op.UPDATE, **fields: Any) -> Change:
    base: dict[str, Any] = {
        "id": "1",
        "op": op,
        "schema": "public",
        "table": "orders",
        "source": ChangeSource("log", "shop", "1"),
        "at": datetime(2026, 1, 31, tzinfo=UTC),
    }
    return Change(**base | fields)


@pytest.mark.parametrize("only", [UNAVAILABLE, JSON_NULL])
def test_a_sentinel_stays_the_one_instance(only: object) -> None:
    assert all(pickle.loads(pickle.dumps(only, version)) is only for version in range(6))
    assert copy.copy(only) is only
    assert copy.deepcopy(only) is only
    assert type(only)() is only
    assert not only


def test_a_pickled_change_keeps_its_sentinels() -> None:
    before = change(before={"a": UNAVAILABLE}, after={"a": JSON_NULL})
    after = pickle.loads(pickle.dumps(before))
    assert after.before["a"] is UNAVAILABLE
    assert after.after["a"] is JSON_NULL


def test_a_change_is_frozen() -> None:
    with pytest.raises(AttributeError):
        change().table = "other"  # type: ignore[misc]


def test_changed_names_columns_in_table_order_then_hidden_ones() -> None:
    before = {"id": 1, "z": 1, "a": None, "m": Decimal("1.0"), "n": float("nan"), "t": UNAVAILABLE}
    after = {"id": 1, "z": 2, "a": JSON_NULL, "m": Decimal("1.00"), "n": float("nan"), "t": UNAVAILABLE}
    assert change(before=before, after=after, hidden=("secret", "z")).changed == ("z", "a", "m", "secret")


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.UPDATE])
def test_only_an_update_has_changed_columns(op: Op) -> None:
    assert change(op, before={"a": 1}, after={"a": 2}).changed == ()


@given(st.dictionaries(st.text(), st.integers()), st.dictionaries(st.text(), st.integers()))
def test_changed_is_the_difference_of_the_rows(one: dict[str, int], two: dict[str, int]) -> None:
    before, after = {**two, **one}, {**one, **two}
    assert set(change(before=before, after=after).changed) == {name for name in after if before[name] != after[name]}


@pytest.mark.parametrize(
    ("key", "row_id"),
    [
        (None, "*"),
        ({"id": 7}, "7"),
        ({"id": "a b"}, "a b"),
        ({"id": True}, "true"),
        ({"id": Decimal("1.50")}, "1.50"),
        ({"id": b"\x00\xff"}, "\\x00ff"),
        ({"a": 1, "b": "x,y"}, '["1", "x,y"]'),
    ],
)
def test_row_id(key: dict[str, Any] | None, row_id: str) -> None:
    assert change(key=key).row_id == row_id


@given(st.lists(st.text(), min_size=2, max_size=4), st.lists(st.text(), min_size=2, max_size=4))
def test_longer_keys_never_share_a_row_id(one: list[str], two: list[str]) -> None:
    left, right = (change(key={str(at): value for at, value in enumerate(key)}).row_id for key in (one, two))
    assert (left == right) == (one == two)
    assert msgspec.json.decode(left) == one


DIFFERENT = [
    None, JSON_NULL, UNAVAILABLE, True, False, 1, 0, 1.0, 0.0, -0.0, float("nan"), float("inf"), Decimal(1),
    Decimal("1.0"), Decimal("NaN"), "1", "", b"1", b"", [], [None], [1], [1.0], [[1]], {}, {"a": None},
    {"a": 1}, {"a": True}, {"b": 1}, {"a": [Decimal("1.0")]}, {"a": [Decimal("1.00")]},
]  # fmt: skip


def test_same_tells_representations_apart() -> None:
    for at, left in enumerate(DIFFERENT):
        for other, right in enumerate(DIFFERENT):
            assert same(left, copy.deepcopy(right)) == (at == other), (left, right)


def test_text_is_as_postgresql_prints_it() -> None:
    assert [text(value) for value in (True, False, 1, "x", b"\xab", Decimal("1.0"))] == [
        "true", "false", "1", "x", "\\xab", "1.0",
    ]  # fmt: skip
