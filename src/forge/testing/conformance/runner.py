"""Every check in its order, and a report of a run of them."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec

from forge.testing.conformance import claims, cursors, faults, snapshots, writes
from forge.testing.conformance.adapter import Adapter, Opening, Unsupported

Check = Callable[[Adapter], Awaitable[None]]
"""In: a fresh database. It returns when all is well, raises Violation when not, and Unsupported when it cannot tell."""

_MODULES: Final = (writes, snapshots, cursors, claims, faults)


def checks() -> tuple[Check, ...]:
    """Every check, for `pytest.mark.parametrize("check", checks(), ids=name)`."""
    return tuple(
        function for module in _MODULES for name, function in vars(module).items() if name.startswith("check_")
    )


def name(check: Check) -> str:
    """
    >>> from forge.testing.conformance.writes import check_key_change
    >>> name(check_key_change)
    'key change'
    """
    return getattr(check, "__name__", "check").removeprefix("check_").replace("_", " ")


class Outcome(msgspec.Struct, frozen=True):
    """What became of one check; `why` says what is wrong, or why it could not be checked."""

    check: str
    result: Literal["passed", "failed", "not checked"]
    seconds: float
    why: str | None = None


async def run(opening: Opening, chosen: Iterable[Check] | None = None) -> list[Outcome]:
    """Each check on a database of its own, one after the other."""
    return [await outcome(opening, check) for check in (checks() if chosen is None else chosen)]


async def outcome(opening: Opening, check: Check) -> Outcome:
    """One check on a fresh database. What a source raises that it should not is a failure too."""
    began = time.monotonic()
    try:
        async with opening() as adapter:
            await check(adapter)
    except Unsupported as reason:
        return Outcome(name(check), "not checked", time.monotonic() - began, str(reason))
    except Exception as error:
        why = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Outcome(name(check), "failed", time.monotonic() - began, why)
    return Outcome(name(check), "passed", time.monotonic() - began)


def report(outcomes: Sequence[Outcome]) -> str:
    """A line for each check, and one for all."""
    signs = {"passed": "✓", "failed": "✗", "not checked": "·"}
    width = max(len(name(check)) for check in checks())
    lines = [
        f"{signs[each.result]} {each.check:<{width}}  {each.seconds:6.2f} s{f'   {each.why}' if each.why else ''}"
        for each in outcomes
    ]
    counts = ", ".join(f"{sum(each.result == kind for each in outcomes)} {kind}" for kind in signs)
    return "\n".join([*lines, counts])


def main(opening: Opening, words: Sequence[str] = ()) -> int:
    """Run the checks whose names have one of the words, print the report, and return 1 when one failed."""
    chosen = [check for check in checks() if not words or any(word in name(check) for word in words)]

    async def all_of_them() -> bool:
        well = True
        for check in chosen:
            found = await outcome(opening, check)
            sys.stdout.write(report([found]).splitlines()[0] + "\n")
            sys.stdout.flush()
            well &= found.result != "failed"
        return well

    return 0 if asyncio.run(all_of_them()) else 1
