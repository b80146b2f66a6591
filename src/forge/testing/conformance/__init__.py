"""One suite for every source: does it give each change once, in order, as the database has it, and is what it says of
itself true? In comes an adapter, which knows how to open, write to and break one kind of database; out come violations.

    @pytest.mark.parametrize("check", checks(), ids=name)
    async def test_it_conforms(check):
        async with opened() as adapter:         # a fresh database, see `Adapter`
            await conform(check, adapter)       # skips what the database cannot be asked

    python -m forge.testing.conformance mine.adapter:opened

A check is a plain async function of an adapter. It raises `Violation` when the source is at fault and `Unsupported`
when the question makes no sense for it. `forge.testing.conformance.memory` is the smallest source that passes, and its
adapter the smallest adapter.
"""

from forge.testing.conformance.adapter import Adapter, Opening, Sample, Unsupported, Violation, Writer
from forge.testing.conformance.operations import (
    AddColumn,
    Delete,
    Fill,
    Insert,
    Operation,
    Truncate,
    Update,
)
from forge.testing.conformance.proxy import CountingProxy
from forge.testing.conformance.runner import Check, Outcome, checks, name, outcome, report, run

__all__ = [
    "Adapter",
    "AddColumn",
    "Check",
    "CountingProxy",
    "Delete",
    "Fill",
    "Insert",
    "Opening",
    "Operation",
    "Outcome",
    "Sample",
    "Truncate",
    "Unsupported",
    "Update",
    "Violation",
    "Writer",
    "checks",
    "conform",
    "name",
    "outcome",
    "report",
    "run",
]


async def conform(check: Check, adapter: Adapter) -> None:
    """A check in a test of pytest: what cannot be checked is skipped, with the reason."""
    import pytest

    try:
        await check(adapter)
    except Unsupported as reason:
        pytest.skip(str(reason))
