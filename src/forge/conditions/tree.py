"""The nodes of a condition: columns of one table, constants and parameters, combined by AND, OR and NOT.

`Undecided` stands for anything that cannot be decided here exactly as the database would. Each column of a parsed
condition is a `Path`.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

Operator = Literal["=", "<>", "<", "<=", ">", ">="]


class Path(str):
    """The path of names to a column, as in a document; the text has dots between the names.

    >>> Path.of(["orders", "status"]), Path.of(["orders", "status"]).names
    ('orders.status', ('orders', 'status'))
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> "Path":
        path = cls(".".join(found := tuple(names)))
        path.names = found
        return path


class Constant(msgspec.Struct, frozen=True):
    """A literal of the SQL text: int, Decimal, str (an untyped literal as in PostgreSQL), bool, or None for NULL."""

    value: object


class Parameter(msgspec.Struct, frozen=True):
    """A parameter `%(name)s`; its value is known when the query runs.

    `cut` if it is cast to a type that could round or truncate it: then only a value that surely stays the same counts.
    """

    name: str
    cut: bool = False


Operand = Constant | Parameter


class Compare(msgspec.Struct, frozen=True):
    """column <operator> operand."""

    column: str
    operator: Operator
    operand: Operand


class CompareColumns(msgspec.Struct, frozen=True):
    """column <operator> column."""

    left: str
    operator: Operator
    right: str


class OneOf(msgspec.Struct, frozen=True):
    """column IN (operand, …)."""

    column: str
    operands: tuple[Operand, ...]


class AnyOf(msgspec.Struct, frozen=True):
    """column = ANY (%(list)s)."""

    column: str
    operand: Parameter


class Distinct(msgspec.Struct, frozen=True):
    """column IS DISTINCT FROM operand: never null."""

    column: str
    operand: Operand


class IsNull(msgspec.Struct, frozen=True):
    """column IS NULL: never null."""

    column: str


class Not(msgspec.Struct, frozen=True):
    """NOT condition: null stays null."""

    condition: "Condition"


class All(msgspec.Struct, frozen=True):
    """Every one of the conditions; true if there are none."""

    conditions: "tuple[Condition, ...]"


class Any(msgspec.Struct, frozen=True):
    """At least one of the conditions; false if there are none."""

    conditions: "tuple[Condition, ...]"


class Decided(msgspec.Struct, frozen=True):
    """The same on every row: true, false, or None for null."""

    value: bool | None


class Undecided(msgspec.Struct, frozen=True):
    """May be true, false or null."""


Condition = Compare | CompareColumns | OneOf | AnyOf | Distinct | IsNull | Not | All | Any | Decided | Undecided

TRUE = All(())


def columns(condition: Condition) -> Iterator[str]:
    """Return the columns that a condition names, in order, each as often as it is named."""
    match condition:
        case Not():
            yield from columns(condition.condition)
        case All() | Any():
            for part in condition.conditions:
                yield from columns(part)
        case CompareColumns():
            yield from (condition.left, condition.right)
        case Compare() | OneOf() | AnyOf() | Distinct() | IsNull():
            yield condition.column
