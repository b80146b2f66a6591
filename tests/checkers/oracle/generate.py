"""Generate a plan from a seed: the same seed gives the same plan."""

import random
from typing import Final

import msgspec

from tests.checkers.oracle import schema as schemas
from tests.checkers.oracle.plan import FAULTS, Ask, Fault, Plan, Round, Subscription
from tests.checkers.oracle.queries import Maker, views
from tests.checkers.oracle.writes import Writer
from tests.checkers.session_settings import chosen, of_database


def generate(
    seed: int,
    *,
    rounds: int = 40,
    queries: int = 16,
    faults: tuple[str, ...] = FAULTS,
    ddl: bool = True,
    joins: float = 0.1,
) -> Plan:
    """The plan of a seed; `joins` is the share of queries that are plain outer joins."""
    chance = random.Random(seed)
    schema = views(schemas.generate(chance), chance)
    nodes = chance.choice((1, 1, 2))
    maker = Maker(schema, chance, joins=joins)
    asked, made = [], []
    for number in range(queries):
        query, draws = maker.query()
        made.append(query)
        for _ in range(chance.choice((1, 1, 2, 3))):
            values = {name: draw() for name, draw in draws.items()}
            asked.append(Ask(number, values, chance.choice((None, "a", "b")), chance.random() < 0.3))
    subscriptions = []
    for number in range(len(asked)):
        for _ in range(chance.choice((1, 1, 2))):
            begins = 0 if chance.random() < 0.6 else chance.randrange(rounds)
            ends = chance.randrange(begins, rounds) if chance.random() < 0.2 else None
            node, session, delta = chance.randrange(nodes), chance.randrange(4), chance.random() < 0.6
            subscriptions.append(Subscription(number, node, session, delta, begins, ends))
            if ends is not None and chance.random() < 0.7:  # the client comes back
                back = min(rounds - 1, ends + chance.randint(1, 3))
                subscriptions.append(Subscription(number, node, session, delta, back))
    writer = Writer(schema, chance, ddl=ddl)
    filling = tuple(writer.filling())
    planned = tuple(Round(writer.round(), _faults(chance, faults)) for _ in range(rounds))
    plan = Plan(seed, schema, filling, tuple(made), tuple(asked), tuple(subscriptions), planned, nodes)
    return _in_sessions(plan, random.Random(f"writers of {seed}"))


def _in_sessions(plan: Plan, chance: random.Random) -> Plan:
    """The plan with settings for every session, and with statements that are sent in several ways."""
    rounds = tuple(
        msgspec.structs.replace(
            each,
            writers=tuple(
                tuple(
                    msgspec.structs.replace(one, sent=chance.choice(("alone", "alone", "alone", "together", "blocks")))
                    for one in writer
                )
                for writer in each.writers
            ),
        )
        for each in plan.rounds
    )
    writers = max(len(each.writers) for each in plan.rounds)
    return msgspec.structs.replace(
        plan, rounds=rounds, settings=of_database(plan.seed), writers=tuple(chosen(chance) for _ in range(writers))
    )


_SHARES: Final = {"terminate": 0.05, "hold": 0.02, "slow": 0.1, "restart": 0.008, "immediate": 0.008, "writers": 0.02}


def _faults(chance: random.Random, kinds: tuple[str, ...]) -> tuple[Fault, ...]:
    return tuple(
        Fault(kind, round(chance.uniform(0, 0.05), 3), round(chance.uniform(0.02, 0.4), 3))
        for kind in kinds
        if chance.random() < _SHARES[kind]
    )
