"""What silver must be, in plain Python: all that happened to a table is played once, in order. And tables to play."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

from forge.pipeline.changes import seq, seq_of_read
from forge.pipeline.silver.ends import End

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = 4
PLACES = 24
"""How many rows a history has, and how many places in the log of each generation."""

Row = dict[str, Any]


class Event(NamedTuple):
    """A row that `forge.pipeline.silver.rows` found fitting; `missing` are columns whose values were not sent."""

    seq: str
    op: str
    key: tuple[Any, ...]
    values: Mapping[str, Any]
    at: int
    transaction: int | None = None
    missing: frozenset[str] = frozenset()


def history(events: Iterable[Event], ends: Iterable[End], *, keyed: bool = True) -> dict[tuple[Any, ...], Row]:
    """Every version by key and seq, with its values, times in microseconds."""
    versions: dict[tuple[Any, ...], Row] = {}
    alive: dict[tuple[Any, ...], deque[Row]] = defaultdict(deque)
    happened: list[tuple[str, Event | End]] = [(end.seq, end) for end in ends]
    happened += {(event.key, event.seq): (event.seq, event) for event in events}.values()
    for where, thing in sorted(happened, key=lambda pair: pair[0]):
        if isinstance(thing, End):
            for row in [row for rows in alive.values() for row in rows]:
                _end(row, where, thing.micros, thing.transaction)
            alive.clear()
            continue
        queue = alive[thing.key]
        ended = queue.popleft() if queue and (keyed or thing.op == "delete") else None
        sent = {name: value for name, value in thing.values.items() if name not in thing.missing}
        row = {name: (ended or {}).get(name) for name in thing.values} | sent
        row |= {"_op": thing.op, "_valid_from": thing.at}
        _end(row, None, None, None)
        if ended is not None:
            _end(ended, where, thing.at, thing.transaction)
        if thing.op == "delete":
            _end(row, where, thing.at, thing.transaction)
        else:
            queue.append(row)
        versions[(*thing.key, where)] = row
    return versions


def current(versions: Mapping[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], Row]:
    """The versions that live."""
    return {place: row for place, row in versions.items() if row["_end_seq"] is None}


def _end(row: Row, seq: str | None, at: int | None, transaction: int | None) -> None:
    row.update({"_end_seq": seq, "_valid_to": at, "_end_transaction": transaction})


def moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


class Played(NamedTuple):
    """Many random histories of a table, whose key begins with the number of the history; ends are common to all."""

    events: list[Event]
    ends: list[End]

    def batches(self, dice: Random, count: int) -> list[tuple[list[Event], list[End]]]:
        """All of it in random order and pieces, some of it several times."""
        batches: list[tuple[list[Event], list[End]]] = [([], []) for _ in range(count)]
        for event in self.events:
            for index in dice.sample(range(count), dice.choice([1, 1, 1, 2])):
                batches[index][0].extend([event] * dice.choice([1, 1, 1, 2]))
        for end in self.ends:
            for index in dice.sample(range(count), dice.choice([1, 2])):
                batches[index][1].append(end)
        for events, _ in batches:
            dice.shuffle(events)
        return batches


def play(dice: Random, histories: int, *, keyed: bool, most_truncates: int, missing: bool = False) -> Played:
    """What can be logged of a few rows; deletes of rows that nobody has seen, reads and reused keys among it."""
    truncates = [seq(dice.randrange(3), place) for place in dice.sample(range(PLACES), most_truncates)]
    snapshots = [f"{generation:04x}" for generation in (1, 2) if most_truncates]
    ends = [End(each, moment(number * 7), number) for number, each in enumerate(truncates + snapshots, 1)]
    taken = {end.seq for end in ends}
    return Played([event for number in range(histories) for event in _some(dice, number, taken, keyed, missing)], ends)


def _some(dice: Random, number: int, taken: set[str], keyed: bool, missing: bool) -> Iterable[Event]:
    ops: Sequence[str] = ["insert", "update", "update", "delete"] if keyed else ["insert", "insert", "delete"]
    for generation in range(3):
        for id in range(ROWS if f"{generation:04x}" in taken else 0):
            for counter in range(1 if keyed else dice.randint(0, 3)):
                where = seq_of_read(generation, None if keyed else counter + id * 10)
                yield Event(where, "read", (number, id), {"a": f"read{id}", "b": id}, generation * 1000 - 1)
        for place in range(PLACES):
            where, id, op = seq(generation, place), dice.randrange(ROWS), dice.choice(ops)
            if dice.random() < 0.6 or where in taken:
                continue
            values = {"a": f"a{dice.random():.3f}", "b": dice.randrange(100)} if keyed else {"a": f"read{id}", "b": id}
            lacks = dice.sample(["a", "b"], dice.choice([0, 0, 1, 2])) if missing and op != "insert" else []
            yield Event(where, op, (number, id), values, generation * 1000 + place, place, frozenset(lacks))
