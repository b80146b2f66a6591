"""The types of the oracle's columns: few values of each, so that conditions are met often.

A `Kind` has its values as the text of SQL literals. `Value` is a parameter as a plan keeps it; `python` makes of it
what an application would hand to psycopg.
"""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """A type. `exact` tells apart what `=` holds equal (1.0 and 1.00), so that DISTINCT leaves no choice."""

    name: str
    letter: str
    sql: str
    texts: tuple[str, ...]
    given: tuple[str, ...] = ("str",)
    exact: str = "{}"
    number: bool = False
    ordered: bool = True


_MOMENTS: Final = (
    *("2024-01-01 00:00:00+00", "2024-01-01 01:00:00+01", "2024-06-30 12:00:00.5+00", "2024-06-30 22:30:00+00"),
    *("1999-12-31 23:59:59.999999+00", "2024-07-01 00:00:00+02"),
)
_NUMBERS: Final = ("int", "int", "decimal", "float", "str")

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("int", "i", "int", ("-1", "0", "1", "2", "3", "4"), _NUMBERS, number=True),
        Kind("small", "s", "smallint", ("0", "1", "2", "3"), _NUMBERS, number=True),
        Kind("big", "b", "bigint", ("0", "1", "2", "3000000000", "9007199254740993"), _NUMBERS, number=True),
        Kind(
            "numeric",
            "m",
            "numeric",
            ("0", "1", "1.0", "1.50", "2", "-1.25", "NaN"),
            _NUMBERS,
            "trim_scale({})",
            number=True,
        ),
        Kind("float", "f", "float8", ("0", "0.5", "1", "1.5", "2", "NaN", "Infinity"), _NUMBERS, number=True),
        Kind("text", "t", "text", ("", "a", "b", "ab", "A", "a ", "ä", "%", "NULL")),
        Kind("varchar", "v", "varchar(4)", ("", "a", "b", "ab", "a ")),
        Kind("char", "c", "char(3)", ("a", "b", "ab", "")),
        Kind("fold", "k", "text", ("a", "A", "b", "B", "ab"), exact='({}::text COLLATE "C")'),
        Kind("bool", "o", "boolean", ("t", "f"), ("bool", "bool", "str")),
        Kind("moment", "z", "timestamptz", _MOMENTS, ("datetime", "datetime", "naive", "str")),
        Kind("local", "y", "timestamp", ("2024-01-01 00:00:00", "2024-06-30 12:00:00.5"), ("naive", "str", "date")),
        Kind("date", "d", "date", ("2024-01-01", "2024-06-30", "2024-07-01"), ("date", "naive", "str")),
        Kind("uuid", "u", "uuid", tuple(f"0000000{n}-0000-4000-8000-00000000000a" for n in "123"), ("uuid", "str")),
        Kind("json", "x", "jsonb", ("1", "null", '{"a": 1}', '{"a": 2, "b": [1]}', '[1, "a"]'), exact="{}::text"),
        Kind("enum", "e", "mood", ("sad", "ok", "glad")),
        Kind("bytes", "h", "bytea", ("\\x", "\\x00", "\\x6162"), ("bytes",)),
        Kind("list", "l", "int[]", ("{}", "{1}", "{1,2}", "{NULL}"), ("ints",)),
        Kind("span", "n", "interval", ("1 day", "24:00:00", "2 hours"), exact="{}::text"),
        Kind("domain", "q", "small_number", ("0", "1", "2", "3"), _NUMBERS, number=True),
    )
}
BY_LETTER: Final = {kind.letter: kind for kind in KINDS.values()}


class Value(msgspec.Struct, frozen=True):
    """A parameter: `given` says as what it is handed over; `texts` are several for a list, None is NULL."""

    given: str
    texts: tuple[str | None, ...]
    many: bool = False


def python(value: Value) -> Any:
    """What an application would hand over.

    >>> python(Value("int", ("1",))), python(Value("decimal", ("1.50", None), many=True))
    (1, [Decimal('1.50'), None])
    """
    found = [None if text is None else _MAKERS[value.given](text) for text in value.texts]
    return found if value.many else found[0]


def _datetime(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _naive(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


_MAKERS: Final[dict[str, Callable[[str], Any]]] = {
    "int": lambda text: int(float(text)) if "." in text else int(text),
    "decimal": Decimal,
    "float": float,
    "str": str,
    "bool": lambda text: text == "t",
    "datetime": _datetime,
    "naive": _naive,
    "date": lambda text: _naive(text).date() if len(text) > 10 else date.fromisoformat(text),
    "uuid": UUID,
    "bytes": lambda text: bytes.fromhex(text[2:]),
    "ints": lambda text: [None if part == "NULL" else int(part) for part in text.strip("{}").split(",") if part],
}
_ENDLESS: Final = ("NaN", "Infinity")


def some_text(kind: Kind, chance: random.Random) -> str:
    """One of the values, mostly of the first few."""
    return chance.choice(kind.texts[:3] if chance.random() < 0.6 else kind.texts)


def draw(kind: Kind, chance: random.Random, *, many: bool = False) -> Value:
    """A parameter to compare with a column of that kind; NULL now and then."""
    given = chance.choice(kind.given)
    if many:
        given = "str" if given == "ints" else given
    drawn = [
        None if chance.random() < 0.08 else some_text(kind, chance) for _ in range(chance.randint(0, 4) if many else 1)
    ]
    if given == "int":
        drawn = [text if text not in _ENDLESS else "1" for text in drawn]
    return Value(given, tuple(drawn), many)


def quoted(text: str) -> str:
    """
    >>> quoted("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def literal(kind: Kind, chance: random.Random) -> str:
    """A constant as one may write it to compare it with a column of that kind."""
    text = some_text(kind, chance)
    form = chance.random()
    if kind.name == "bool" and form < 0.6:
        return {"t": "true", "f": "false"}[text]
    if kind.number and form < 0.5 and text not in _ENDLESS:
        return text
    return f"{quoted(text)}::{kind.sql}" if form < 0.75 else quoted(text)


def stored(kind: Kind, chance: random.Random, *, nullable: bool) -> str:
    """A constant to be written into a column of that kind."""
    if nullable and chance.random() < 0.15:
        return f"NULL::{kind.sql}"
    return f"{quoted(some_text(kind, chance))}::{kind.sql}"
