"""Smaller plans of the oracle, for shrinking: each has something taken away."""

from collections.abc import Iterator, Sequence

import msgspec

from tests.checkers.oracle.plan import Plan, Round, Transaction
from tests.checkers.oracle.schema import mentions
from tests.checkers.shrink import without


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
    for subscriptions in without(plan.subscriptions):
        if subscriptions:
            yield msgspec.structs.replace(plan, subscriptions=tuple(subscriptions))
    if any(each.faults for each in plan.rounds):
        yield _with_rounds(plan, [msgspec.structs.replace(each, faults=()) for each in plan.rounds])
    for rounds in without(range(len(plan.rounds))):
        if rounds:
            yield _only_rounds(plan, rounds)
    for relation in reversed(plan.schema.relations):
        if len(plan.schema.relations) > 1:
            yield without_relation(plan, relation.name)
    for extras in without(plan.schema.extras):
        yield msgspec.structs.replace(plan, schema=msgspec.structs.replace(plan.schema, extras=tuple(extras)))
    for filling in without(plan.filling):
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
    for faults in without(each.faults):
        yield Round(each.writers, tuple(faults))
    for writers in without(each.writers):
        yield Round(tuple(writers), each.faults)
    for number, writer in enumerate(each.writers):
        for transactions in without(writer):
            yield Round((*each.writers[:number], tuple(transactions), *each.writers[number + 1 :]), each.faults)
        for place, transaction in enumerate(writer):
            for statements in without(transaction.statements):
                less: Transaction = msgspec.structs.replace(transaction, statements=tuple(statements))
                mine = (*writer[:place], less, *writer[place + 1 :])
                yield Round((*each.writers[:number], mine, *each.writers[number + 1 :]), each.faults)
