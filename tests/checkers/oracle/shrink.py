"""Making a failing plan smaller: parts are taken away for as long as it still fails in one of the same ways."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from tests.checkers.oracle.plan import Plan, Round, Transaction
from tests.checkers.oracle.schema import mentions

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


def until(plan: Plan, last: int, ask: int) -> Plan:
    """The plan up to a round, with one ask only: where a discrepancy was first seen."""
    rounds = plan.rounds[: last + 1]
    subscriptions = tuple(each for each in plan.subscriptions if ask in (each.ask, -1) and each.begins <= last)
    return msgspec.structs.replace(plan, rounds=rounds, subscriptions=subscriptions)


def candidates(plan: Plan) -> Iterator[Plan]:
    """Plans with something taken away, the boldest first. Each is smaller than the plan."""
    if plan.settings or any(plan.writers):
        yield msgspec.structs.replace(plan, settings={}, writers=())
    if plan.nodes > 1:
        alone = tuple(msgspec.structs.replace(each, node=0) for each in plan.subscriptions)
        yield msgspec.structs.replace(plan, nodes=1, subscriptions=alone)
    for subscriptions in _without(plan.subscriptions):
        if subscriptions:
            yield msgspec.structs.replace(plan, subscriptions=tuple(subscriptions))
    if any(each.faults for each in plan.rounds):
        yield _with_rounds(plan, [msgspec.structs.replace(each, faults=()) for each in plan.rounds])
    for rounds in _without(range(len(plan.rounds))):
        if rounds:
            yield _only_rounds(plan, rounds)
    for relation in reversed(plan.schema.relations):
        if len(plan.schema.relations) > 1:
            yield without_relation(plan, relation.name)
    for extras in _without(plan.schema.extras):
        yield msgspec.structs.replace(plan, schema=msgspec.structs.replace(plan.schema, extras=tuple(extras)))
    for filling in _without(plan.filling):
        yield msgspec.structs.replace(plan, filling=tuple(filling))
    for number, each in enumerate(plan.rounds):
        for smaller in _smaller_round(each):
            yield _with_rounds(plan, [*plan.rounds[:number], smaller, *plan.rounds[number + 1 :]])


def without_relation(plan: Plan, name: str) -> Plan:
    """The plan without a relation, and without every view, query and statement that names it."""
    schema = plan.schema.without(name)
    kept = {relation.name for relation in schema.relations}
    gone = [relation.name for relation in plan.schema.relations if relation.name not in kept]

    def stays(sql: str) -> bool:
        return not any(mentions(sql, each) for each in gone)

    queries = {n for n, query in enumerate(plan.queries) if all(map(stays, query.statements))}
    asks = {n for n, ask in enumerate(plan.asks) if ask.query in queries}
    rounds = [
        msgspec.structs.replace(
            each,
            writers=tuple(
                tuple(
                    msgspec.structs.replace(t, statements=tuple(s for s in t.statements if stays(s.sql)))
                    for t in writer
                )
                for writer in each.writers
            ),
        )
        for each in plan.rounds
    ]
    return msgspec.structs.replace(
        plan,
        schema=schema,
        filling=tuple(filter(stays, plan.filling)),
        subscriptions=tuple(each for each in plan.subscriptions if each.ask in asks),
        rounds=tuple(rounds),
    )


def _with_rounds(plan: Plan, rounds: Sequence[Round]) -> Plan:
    return msgspec.structs.replace(plan, rounds=tuple(rounds))


def _only_rounds(plan: Plan, kept: Sequence[int]) -> Plan:
    """Whoever came in a round that is gone comes in the next that stays; who left in one stays to the end."""

    def place(number: int) -> int:
        return min(sum(each < number for each in kept), len(kept) - 1)

    subscriptions = tuple(
        msgspec.structs.replace(each, begins=place(each.begins), ends=None if each.ends is None else place(each.ends))
        for each in plan.subscriptions
    )
    rounds = tuple(plan.rounds[number] for number in kept)
    return msgspec.structs.replace(plan, rounds=rounds, subscriptions=subscriptions)


def _smaller_round(each: Round) -> Iterator[Round]:
    for faults in _without(each.faults):
        yield Round(each.writers, tuple(faults))
    for writers in _without(each.writers):
        yield Round(tuple(writers), each.faults)
    for number, writer in enumerate(each.writers):
        for transactions in _without(writer):
            yield Round((*each.writers[:number], tuple(transactions), *each.writers[number + 1 :]), each.faults)
        for place, transaction in enumerate(writer):
            for statements in _without(transaction.statements):
                less: Transaction = msgspec.structs.replace(transaction, statements=tuple(statements))
                mine = (*writer[:place], less, *writer[place + 1 :])
                yield Round((*each.writers[:number], mine, *each.writers[number + 1 :]), each.faults)


def _without(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """The parts without all, without each half, each quarter, and so on down to without each one."""
    size = len(parts)
    while size >= 1:
        for start in range(0, len(parts), size):
            yield [*parts[:start], *parts[start + size :]]
        size //= 2
