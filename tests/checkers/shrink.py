"""Make a failing plan smaller: parts are taken away for as long as it still fails in one of the same ways.

A run depends on timing, so a smaller plan may fail only sometimes; what comes out did fail, and is often, but not
always, the smallest there is.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

Part = TypeVar("Part")
PlanT = TypeVar("PlanT", bound=msgspec.Struct)


def shrink(
    plan: PlanT, candidates: Callable[[PlanT], Iterator[PlanT]], fails: Callable[[PlanT], bool], *, seconds: float
) -> PlanT:
    """The smallest plan found in that time for which `fails` was true; the plan itself if there is none.

    `candidates` gives plans that are smaller than a plan, the boldest first.
    """
    deadline = time.monotonic() + seconds
    smaller = candidates(plan)
    while time.monotonic() < deadline:
        candidate = next(smaller, None)
        if candidate is None:
            break
        if fails(candidate):
            plan, smaller = candidate, candidates(candidate)
    return plan


def without(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts without all, without each half, each quarter, and so on down to without each one.

    >>> list(without("abc"))
    [[], ['b', 'c'], ['a', 'c'], ['a', 'b']]
    """
    size = len(parts)
    while size >= 1:
        for start in range(0, len(parts), size):
            yield [*parts[:start], *parts[start + size :]]
        size //= 2


def fewer(plan: PlanT, **least: int) -> Iterator[PlanT]:
    """The plan with a number of its made smaller: the least, half of the way to it, one less.

    >>> class Plan(msgspec.Struct):
    ...     writers: int
    >>> [each.writers for each in fewer(Plan(8), writers=1)]
    [1, 4, 7]
    """
    for name, low in least.items():
        value: Any = getattr(plan, name)
        for number in sorted({low, (value + low) // 2, value - 1}):
            if low <= number < value:
                yield msgspec.structs.replace(plan, **{name: number})
