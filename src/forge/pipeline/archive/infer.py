"""Infer a column's type from its values, and number a definition that no log has numbered.

The traits of values are bits, so the observations of many tasks are combined by a bitwise or, in any order. The number
depends on the definition alone: the same archive read twice has the same definitions.

Objects, and values of several types or dimensions, become `json`: their text.

>>> [type_of(trait(1) | trait(value))[0] for value in (True, 2**40, 2**70, 1.5, Decimal("1.5"), "x", None)]
['text', 'bigint', 'numeric', 'double precision', 'numeric', 'text', 'bigint']
>>> [type_of(trait(value))[0] for value in ([1, None], [[1.5]], ["a", 1], {"a": 1}, b"", None)]
['bigint[]', 'json', 'json', 'json', 'bytea', 'text']
>>> type_of(trait([1.5])), type_of(trait(UNAVAILABLE))
(('double precision[]', 'float[]'), ('text', 'hidden'))
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final

import msgspec

from forge.change import UNAVAILABLE
from forge.pipeline.definitions import Definition
from forge.values import Column
from forge.wire import MOST_EXACT_INT

BOOLEAN: Final = 1 << 0
SMALL: Final = 1 << 1
"""An integer that a double holds exactly."""
LONG: Final = 1 << 2
WHOLE: Final = 1 << 3
"""An integer that a bigint does not hold."""
DECIMAL: Final = 1 << 4
FLOAT: Final = 1 << 5
TEXT: Final = 1 << 6
BYTES: Final = 1 << 7
JSON: Final = 1 << 8
SCALED: Final = 1 << 9
"""A decimal of variable scale as a Debezium connector sends it: an object of a scale and base64."""
UNSENT: Final = 1 << 10
BASE64: Final = 1 << 11
"""A text that is base64 and not a number: in a numeric column, a decimal as a Debezium connector sends it."""
LIST: Final = 1 << 12
NESTED: Final = 1 << 13
_ELEMENTS: Final = 16
_NUMBERS: Final = SMALL | LONG | WHOLE | DECIMAL | FLOAT | SCALED
_SENT: Final = BOOLEAN | _NUMBERS | TEXT | BYTES | JSON
_JSON: Final = ("json", "plain")


def trait(value: Any) -> int:
    """Return the bit of a value, and for a list also the bits of its elements."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, str):
        return TEXT
    if isinstance(value, int):
        return SMALL if abs(value) <= MOST_EXACT_INT else LONG if -(2**63) <= value < 2**63 else WHOLE
    if isinstance(value, list):
        bits = 0
        for item in value:
            bits |= trait(item)
        return LIST | (NESTED if bits & LIST else 0) | (bits & _SENT) << _ELEMENTS
    if isinstance(value, Decimal):
        return DECIMAL
    if isinstance(value, float):
        return FLOAT
    if isinstance(value, bytes):
        return BYTES
    return UNSENT if value is UNAVAILABLE else JSON


def type_of(traits: int) -> tuple[str, str]:
    """Return the type and kind of a column with values of these traits: the narrowest that holds them all."""
    sent = traits & _SENT
    if traits & LIST:
        of = traits >> _ELEMENTS
        name, kind = type_of(of)
        if sent or not of or traits & NESTED or name == "json" or (name == "text" and of != TEXT):
            return _JSON
        return f"{name}[]", f"{kind}[]"
    if sent & JSON or (sent & SCALED and sent & ~_NUMBERS):
        return _JSON
    if not sent:
        return "text", "hidden" if traits & UNSENT else "plain"
    if sent == BOOLEAN:
        return "boolean", "plain"
    if sent == BYTES:
        return "bytea", "bytea"
    if not sent & ~(SMALL | LONG):
        return "bigint", "plain"
    if not sent & ~(SMALL | FLOAT):
        return "double precision", "float"
    if not sent & ~_NUMBERS:
        return "numeric", "numeric"
    return "text", "plain"


def column(name: str, traits: int) -> Column:
    return Column(name, *type_of(traits))


def numbered(
    schema: str, table: str, columns: Sequence[Column], key: Sequence[str], known: Iterable[Definition]
) -> Definition:
    """Return the definition with its number: that of the same known definition, or else a new one.

    A new number is greater than those inferred for the table before, so the greatest is the newest.

    >>> one = numbered("public", "t", [Column("id", "bigint")], ["id"], [])
    >>> two = numbered("public", "t", [Column("id", "text")], ["id"], [one])
    >>> one.version < two.version < 0, numbered("public", "t", [Column("id", "bigint")], ["id"], [two, one]) is one
    (True, True)
    """
    taken, before = set(), []
    for other in known:
        if (other.schema, other.table, other.columns, other.key) == (schema, table, tuple(columns), tuple(key)):
            return other
        taken.add(other.version)
        if (other.schema, other.table) == (schema, table) and other.version < 0:
            before.append(other.version)
    content = msgspec.json.encode([schema, table, list(columns), list(key)])
    number = int.from_bytes(blake2b(content, digest_size=8).digest(), "big")
    version = max(before) + 1 + number % _STEP if before else _LEAST + number % _ROOM
    while version in taken:
        version += 1
    return Definition(version, schema, table, tuple(columns), tuple(key))


_LEAST: Final = -(2**31)
_ROOM: Final = 2**30
_STEP: Final = 2**16
