"""What was read, as data that another node can match: it touches the same changes."""

import random
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from forge.cache.entry import CacheEntry
from forge.change import UNAVAILABLE
from forge.conditions.bound import Bound, bind
from forge.conditions.canonical import ColumnType
from forge.conditions.tree import (
    All,
    AnyOf,
    Compare,
    Condition,
    Constant,
    Distinct,
    IsNull,
    Not,
    OneOf,
    Operand,
    Parameter,
    Undecided,
)
from forge.conditions.tree import Any as Some
from forge.react.cached import ReadMatcher
from forge.react.index import BoundRead

TYPES = {
    "i": ColumnType("integer"),
    "n": ColumnType("numeric"),
    "t": ColumnType("text"),
    "d": ColumnType("date"),
    "z": ColumnType("timestamp with time zone"),
    "u": ColumnType("uuid"),
    "b": ColumnType("bytea"),
    "h": ColumnType("text", hidden=True),
}
VALUES: dict[str, list[Any]] = {
    "i": [0, 1, 2**40, None],
    "n": [Decimal("1.10"), Decimal("NaN"), 1, None],
    "t": ["a", "é", "", None],
    "d": [date(2026, 1, 31), "2026-01-31", None],
    "z": [datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC), None],
    "u": [UUID(int=1), str(UUID(int=2)), None],
    "b": [b"\x00", b"", None],
    "h": ["x", None],
}


class Odd(int):
    """A subclass: nobody knows how it is sent."""


def operand(dice: random.Random, column: str, parameters: dict[str, Any]) -> Operand:
    value = dice.choice([*VALUES[column], Odd(1)])
    if dice.random() < 0.5 and type(value) is not Odd:
        return Constant(value)
    name = f"p{len(parameters)}"
    parameters[name] = value
    return Parameter(name, cut=dice.random() < 0.2)


def condition(dice: random.Random, parameters: dict[str, Any], depth: int = 0) -> Condition:
    column = dice.choice(list(TYPES))
    match dice.randrange(9 if depth < 3 else 6):
        case 0:
            return Compare(column, dice.choice(["=", "<>", "<", "<=", ">", ">="]), operand(dice, column, parameters))
        case 1:
            return OneOf(column, tuple(operand(dice, column, parameters) for _ in range(dice.randrange(3))))
        case 2:
            name = f"p{len(parameters)}"
            parameters[name] = dice.sample(VALUES[column], 2)
            return AnyOf(column, Parameter(name))
        case 3:
            return Distinct(column, operand(dice, column, parameters))
        case 4:
            return IsNull(column)
        case 5:
            return Undecided()
        case 6:
            return Not(condition(dice, parameters, depth + 1))
        case 7:
            return All(tuple(condition(dice, parameters, depth + 1) for _ in range(dice.randrange(4))))
        case _:
            return Some(tuple(condition(dice, parameters, depth + 1) for _ in range(dice.randrange(4))))


def rows(dice: random.Random) -> Iterable[dict[str, Any]]:
    for _ in range(20):
        yield {column: dice.choice([*values, UNAVAILABLE]) for column, values in VALUES.items()}


def travelled(read: BoundRead) -> BoundRead:
    matcher = ReadMatcher()
    (found,) = matcher.decode(CacheEntry("", "", "", "", (), {}, b"", "", matcher.encode([read])))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_reads_travel(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        parameters: dict[str, Any] = {}
        made = condition(dice, parameters)
        columns = None if dice.random() < 0.2 else frozenset(dice.sample(list(TYPES), 3))
        read = BoundRead("public", "t", columns, bind(made, TYPES, parameters))
        found = travelled(read)
        assert (found.schema, found.table, found.columns) == ("public", "t", columns)
        odd = any(type(value) is Odd for value in parameters.values())
        for row in rows(dice):
            here, there = read.bound.outcome(row), found.bound.outcome(row)
            assert here & ~there == 0, "it may say more, never less"
            assert odd or here == there
        assert isinstance(found.bound, Bound)


def test_without_reads_whole_tables_count() -> None:
    found = ReadMatcher().decode(CacheEntry("", "", "", "", ("public.t", "*"), {}, b"", ""))
    assert [(read.schema, read.table, read.columns) for read in found] == [("public", "t", None), ("forge", "*", None)]
    assert found[0].bound.may({"i": 1})
