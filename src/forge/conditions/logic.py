"""Three-valued logic. An outcome is a mask of possible results: `TRUE`, `FALSE`, `NULL`, several, or all (`MAYBE`)."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from forge.change import Row

TRUE: Final = 1
FALSE: Final = 2
NULL: Final = 4
MAYBE: Final = TRUE | FALSE | NULL

Outcome = Callable[[Row], int]

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _bits(mask: int) -> Iterator[int]:
    return (bit for bit in (TRUE, FALSE, NULL) if mask & bit)


def _pairwise(combine: Callable[[int, int], int]) -> tuple[tuple[int, ...], ...]:
    """Build a table of masks from a function that combines a pair of outcomes."""
    return tuple(
        tuple(
            reduce(operator.or_, (combine(left, right) for left in _bits(some) for right in _bits(others)), 0)
            for others in range(8)
        )
        for some in range(8)
    )


AND: Final = _pairwise(lambda left, right: FALSE if FALSE in (left, right) else NULL if NULL in (left, right) else TRUE)
OR: Final = _pairwise(lambda left, right: TRUE if TRUE in (left, right) else NULL if NULL in (left, right) else FALSE)
NOT: Final = tuple(mask & NULL | (mask & TRUE and FALSE) | (mask & FALSE and TRUE) for mask in range(8))


def always(mask: int) -> Outcome:
    """Return the same outcome for every row."""
    return lambda row: mask


def negation(outcome: Outcome) -> Outcome:
    return lambda row: NOT[outcome(row)]


def conjunction(outcomes: Sequence[Outcome]) -> Outcome:
    """Combine outcomes by AND; the result without outcomes is true."""
    return outcomes[0] if len(outcomes) == 1 else _combined(tuple(outcomes), AND, TRUE, FALSE)


def disjunction(outcomes: Sequence[Outcome]) -> Outcome:
    """Combine outcomes by OR; the result without outcomes is false."""
    return outcomes[0] if len(outcomes) == 1 else _combined(tuple(outcomes), OR, FALSE, TRUE)


def _combined(outcomes: tuple[Outcome, ...], table: Sequence[Sequence[int]], start: int, final: int) -> Outcome:
    def combined(row: Row) -> int:
        mask = start
        for part in outcomes:
            mask = table[mask][part(row)]
            if mask == final:
                break
        return mask

    return combined
