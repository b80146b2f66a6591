"""Making a failing plan smaller: parts are taken away for as long as it still fails in one of the same ways.

A history depends on timing, so a smaller plan may fail only sometimes; what comes out did fail, and is often,
but not always, the smallest there is.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from tests.checkers.history.plan import Operation, Plan, Writer

_Part = TypeVar("_Part")


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, seconds: float) -> Plan:
    """The smallest plan found in that time for which `fails` was true; the plan itself if there is none."""
    deadline = time.monotonic() + seconds
    smaller = candidates(plan)
    while time.monotonic() < deadline:
        candidate = next(smaller, None)
        if candidate is None:
            break
        if fails(candidate):
            plan, smaller = candidate, candidates(candidate)
    return plan


def candidates(plan: Plan) -> Iterator[Plan]:
    """Plans with something taken away, the boldest first. Each is smaller than the plan."""
    if plan.settings:
        yield msgspec.structs.replace(plan, settings={})
    for number, writer in enumerate(plan.writers):
        if writer.settings:
            yield _with_writer(plan, number, msgspec.structs.replace(writer, settings={}))
    for number, reader in enumerate(plan.readers):
        if reader.settings:
            plainer = (
                *plan.readers[:number],
                msgspec.structs.replace(reader, settings={}),
                *plan.readers[number + 1 :],
            )
            yield msgspec.structs.replace(plan, readers=plainer)
    for faults in _without(plan.faults):
        yield msgspec.structs.replace(plan, faults=tuple(faults))
    for number in range(len(plan.readers) - 1, -1, -1):
        if len(plan.readers) > 1:
            yield _without_reader(plan, number)
    for writers in _without(plan.writers):
        if writers:
            yield msgspec.structs.replace(plan, writers=tuple(writers))
    for number, writer in enumerate(plan.writers):
        for transactions in _without(writer.transactions):
            if transactions:
                yield _with_writer(plan, number, msgspec.structs.replace(writer, transactions=tuple(transactions)))
    for number, writer in enumerate(plan.writers):
        for place, transaction in enumerate(writer.transactions):
            for operations in _fewer(transaction.operations):
                changed = msgspec.structs.replace(transaction, operations=operations)
                rest = (*writer.transactions[:place], changed, *writer.transactions[place + 1 :])
                yield _with_writer(plan, number, msgspec.structs.replace(writer, transactions=rest))


def _without(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """The parts without all, without each half, each quarter, and so on down to without each one."""
    size = len(parts)
    while size >= 1:
        for start in range(0, len(parts), size):
            yield [*parts[:start], *parts[start + size :]]
        size //= 2


def _fewer(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    for fewer in _without(operations):
        if fewer:
            yield tuple(fewer)
    for place, operation in enumerate(operations):
        if operation.kind == "savepoint":
            for inner in _fewer(operation.inner):
                changed = msgspec.structs.replace(operation, inner=inner)
                yield (*operations[:place], changed, *operations[place + 1 :])


def _with_writer(plan: Plan, number: int, writer: Writer) -> Plan:
    writers = (*plan.writers[:number], writer, *plan.writers[number + 1 :])
    return msgspec.structs.replace(plan, writers=writers)


def _without_reader(plan: Plan, number: int) -> Plan:
    """Faults of that reader go with it; those of later ones keep their reader."""
    faults = tuple(
        msgspec.structs.replace(fault, reader=fault.reader - (fault.reader > number))
        for fault in plan.faults
        if fault.reader != number
    )
    readers = plan.readers[:number] + plan.readers[number + 1 :]
    return msgspec.structs.replace(plan, readers=readers, faults=faults)
