"""A change as one line, whatever it contains."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.change import UNAVAILABLE, Change, ChangeSource, Context, Op
from forge.terminal import FeedPrinter, details, value_text, who

AT = datetime(2026, 11, 15, 12, 1, 7, 114000, tzinfo=UTC)


def change(op: Op = Op.UPDATE, **more: Any) -> Change:
    given: dict[str, Any] = {
        "key": {"id": 4711},
        "before": {"id": 4711, "status": "placed", "total": Decimal("10.00")},
        "after": {"id": 4711, "status": "paid", "total": Decimal("10.00")},
        "context": Context("ada", "checkout", "3f2a9c0e51d74b6a"),
        **more,
    }
    return Change("1", op, "public", "orders", ChangeSource("log", "x", "1"), AT, **given)


def test_an_update_shows_what_it_changed_who_did_it_and_how_late_it_was_seen() -> None:
    line = FeedPrinter().line(change(), AT + timedelta(milliseconds=2.1))
    for part in ("orders", "UPDATE 4711", "status: placed → paid", "ada · checkout · 3f2a…", "2.1 ms"):
        assert part in line
    assert "total" not in line
    assert "\x1b" not in line


def test_an_insert_and_a_delete_show_the_row() -> None:
    row = {"id": 1, "name": "Ada", "none": None, "hidden": UNAVAILABLE}
    assert details(change(Op.INSERT, before=None, after=row, key={"id": 1})) == "name: Ada"
    assert details(change(Op.DELETE, before=row, after=None, key={"id": 1})) == "name: Ada"


def test_a_hidden_value_is_named_and_not_shown() -> None:
    hidden = {"id": 1, "secret": UNAVAILABLE}
    assert details(change(before=hidden, after=hidden, hidden=("secret",))) == "secret: (hidden)"


def test_schemas_are_named_except_the_usual_one() -> None:
    assert " orders " in FeedPrinter(schema="public").line(change(), AT)
    assert "public.orders" in FeedPrinter(schema="shop").line(change(), AT)


def test_colours_are_there_only_when_asked_for() -> None:
    assert "\x1b[33m" in FeedPrinter(colour=True).line(change(), AT)


def test_a_numeric_is_shown_as_it_is() -> None:
    assert [value_text(Decimal(text)) for text in ("10.00", "0.000001", "NaN")] == ["10.00", "0.000001", "NaN"]


@given(st.text(), st.integers(20, 200))
def test_no_value_steers_the_terminal_and_no_line_is_too_long(words: str, width: int) -> None:
    hostile = {"id": words, words or "c": words, "n": [words, {"k": words}]}
    made = change(
        Op.INSERT, before=None, after=hostile, key={"id": words}, context=Context(words or None, None, words or None)
    )
    for line in (FeedPrinter(width=width).line(made, AT), FeedPrinter().line(made, AT)):
        assert all(character.isprintable() or character == "\u3000" or not character.isascii() for character in line)
        assert len(line.splitlines()) == 1
    assert len(FeedPrinter(width=width).line(made, AT)) <= width


def test_eighty_columns_hold_what_who_and_how_late() -> None:
    line = FeedPrinter(width=80).line(change(), AT + timedelta(milliseconds=2.1))
    assert len(line) <= 80
    for part in ("orders", "UPDATE 4711", "status: placed → paid", "ada · checkout", "2.1 ms"):
        assert part in line


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_long_values_and_uuids_push_nobody_off_the_line(width: int) -> None:
    feed = FeedPrinter(width=width)
    for number in range(4):
        uuid, long = str(UUID(int=number + 2**120)), {"note": "x" * 500, "more": "y" * 500}
        busy = change(Op.INSERT, key={"id": uuid}, before=None, after=long)
        line = feed.line(busy, AT + timedelta(milliseconds=123))
        assert len(line) <= width
        assert uuid[:7] in line
        assert "note: xxxxx" in line
        assert "ada · checkout" in line
        assert line.endswith("123 ms")


def test_values_are_shortened_before_columns_are_left_out() -> None:
    both = change(before={"a": "x" * 60, "b": "y" * 60}, after={"a": "X" * 60, "b": "Y" * 60})
    assert details(both, 60) == "a: xxxxxxx… → XXXXXXX…, b: yyyyyyy… → YYYYYYY…"


def test_of_who_the_trace_goes_first_and_the_user_stays() -> None:
    assert [who(change(), width) for width in (26, 16, 8, 2)] == [
        "ada · checkout · 3f2a…",
        "ada · checkout",
        "ada",
        "a…",
    ]


@pytest.mark.parametrize("width", [80, 120, None])
def test_columns_stay_where_they_are_among_mixed_keys(width: int | None) -> None:
    feed = FeedPrinter(width=width)
    keys = [1, str(UUID(int=2**127)), 22, str(UUID(int=2**126)), 333_333]
    lines = [feed.line(change(key={"id": key}), AT) for key in keys]
    settled = lines[1:]
    for part in ("UPDATE", "status", "ada", "0.0 ms"):
        assert len({line.index(part) for line in settled}) == 1, part
    assert (str(keys[1]) in lines[1]) is (width is None)


@pytest.mark.parametrize("width", [80, 120, None])
def test_columns_stay_from_the_first_line_on_where_keys_have_a_width(width: int | None) -> None:
    feed = FeedPrinter(width=width, key=9)
    lines = [feed.line(change(key={"id": key}), AT) for key in (1, str(UUID(int=2**127)), 333_333, "x" * 80)]
    for part in ("UPDATE", "status", "ada", "0.0 ms"):
        assert len({line.index(part) for line in lines}) == 1, part
    assert ("80000000…" if width != 80 else "8000000…") in lines[1]
