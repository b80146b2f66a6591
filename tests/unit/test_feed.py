"""A change as one line, whatever it contains."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forge.change import UNAVAILABLE, Change, Context, Op, Source
from forge.feed import Feed, details, value_text

AT = datetime(2026, 11, 15, 12, 1, 7, 114000, tzinfo=UTC)


def change(op: Op = Op.UPDATE, **more: Any) -> Change:
    given: dict[str, Any] = {
        "key": {"id": 4711},
        "before": {"id": 4711, "status": "placed", "total": Decimal("10.00")},
        "after": {"id": 4711, "status": "paid", "total": Decimal("10.00")},
        "context": Context("ada", "checkout", "3f2a9c0e51d74b6a"),
        **more,
    }
    return Change("1", op, "public", "orders", Source("log", "x", "1"), AT, **given)


def test_an_update_shows_what_it_changed_who_did_it_and_how_late_it_was_seen() -> None:
    line = Feed().line(change(), AT + timedelta(milliseconds=2.1))
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
    assert " orders " in Feed(schema="public").line(change(), AT)
    assert "public.orders" in Feed(schema="shop").line(change(), AT)


def test_colours_are_there_only_when_asked_for() -> None:
    assert "\x1b[33m" in Feed(colour=True).line(change(), AT)


def test_a_numeric_is_shown_as_it_is() -> None:
    assert [value_text(Decimal(text)) for text in ("10.00", "0.000001", "NaN")] == ["10.00", "0.000001", "NaN"]


@given(st.text(), st.integers(20, 200))
def test_no_value_steers_the_terminal_and_no_line_is_too_long(words: str, width: int) -> None:
    hostile = {"id": words, words or "c": words, "n": [words, {"k": words}]}
    made = change(
        Op.INSERT, before=None, after=hostile, key={"id": words}, context=Context(words or None, None, words or None)
    )
    for line in (Feed(width=width).line(made, AT), Feed().line(made, AT)):
        assert all(character.isprintable() or character == "\u3000" or not character.isascii() for character in line)
        assert len(line.splitlines()) == 1
    assert len(Feed(width=width).line(made, AT)) <= max(width, 60)
