"""What a query asks of the rows of one table: conditions in SQL's three-valued logic.

A condition speaks of one table's columns, constants and parameters. `Undecided` stands for whatever cannot be decided
here exactly as PostgreSQL would. Conditions are as parsed; `forge.react.bound` binds parameters and evaluates.
"""

from typing import Literal

import msgspec

Operator = Literal["=", "<>", "<", "<=", ">", ">="]


class Constant(msgspec.Struct, frozen=True):
    """A literal of the SQL text: int, Decimal, str (an untyped literal as in PostgreSQL), bool, or None for NULL."""

    value: object


class Parameter(msgspec.Struct, frozen=True):
    """A parameter `%(name)s`; its value is known when the query runs.

    `cut` when it is cast to a type that could round or cut it: only a value that surely stays the same counts then.
    """

    name: str
    cut: bool = False


Operand = Constant | Parameter


class Compare(msgspec.Struct, frozen=True):
    """column <operator> operand."""

    column: str
    operator: Operator
    operand: Operand


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
    """Every one of the conditions; none at all is true."""

    conditions: "tuple[Condition, ...]"


class Any(msgspec.Struct, frozen=True):
    """At least one of the conditions; none at all is false."""

    conditions: "tuple[Condition, ...]"


class Undecided(msgspec.Struct, frozen=True):
    """May be true, false or null."""


Condition = Compare | OneOf | AnyOf | Distinct | IsNull | Not | All | Any | Undecided

TRUE = All(())
