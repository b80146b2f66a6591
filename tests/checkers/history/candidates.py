"""Smaller plans of a history, for shrinking: each has something taken away."""

from collections.abc import Iterator

import msgspec

from tests.checkers.history.plan import Operation, Plan, Writer
from tests.checkers.shrink import without


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
    for faults in without(plan.faults):
        yield msgspec.structs.replace(plan, faults=tuple(faults))
    for number in range(len(plan.readers) - 1, -1, -1):
        if len(plan.readers) > 1:
            yield _without_reader(plan, number)
    for writers in without(plan.writers):
        if writers:
            yield msgspec.structs.replace(plan, writers=tuple(writers))
    for number, writer in enumerate(plan.writers):
        for transactions in without(writer.transactions):
            if transactions:
                yield _with_writer(plan, number, msgspec.structs.replace(writer, transactions=tuple(transactions)))
    for number, writer in enumerate(plan.writers):
        for place, transaction in enumerate(writer.transactions):
            for operations in _fewer(transaction.operations):
                changed = msgspec.structs.replace(transaction, operations=operations)
                rest = (*writer.transactions[:place], changed, *writer.transactions[place + 1 :])
                yield _with_writer(plan, number, msgspec.structs.replace(writer, transactions=rest))


def _fewer(operations: tuple[Operation, ...]) -> Iterator[tuple[Operation, ...]]:
    for fewer in without(operations):
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
