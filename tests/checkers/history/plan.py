"""Plan of a history as data: a seed in, a Plan out, the same one every time.

A plan can be printed, saved as JSON, made smaller (`shrink`) and run again. Times are seconds from the start of
the run, except where a name says milliseconds.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from tests.checkers.session_settings import chosen, of_database, shown

OperationKind = Literal[
    "insert",
    "insert strictly",
    "upsert",
    "merge",
    "update",
    "rekey",
    "shift",
    "delete",
    "truncate",
    "copy",
    "savepoint",
    "add column",
    "attach",
    "retype",
]
FaultKind = Literal["kill", "pause", "cut", "stall", "refuse", "terminate", "hold", "restart", "immediate", "crash"]
Ending = Literal["commit", "rollback", "commit prepared", "rollback prepared"]
Isolation = Literal["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
_Choice = TypeVar("_Choice")
ReaderKind = Literal["follow", "sequence"]

READER_FAULTS: Final[tuple[FaultKind, ...]] = ("kill", "pause", "cut", "stall", "refuse")
SERVER_FAULTS: Final[tuple[FaultKind, ...]] = ("restart", "immediate", "crash")
FAULTS: Final[tuple[FaultKind, ...]] = (*READER_FAULTS, "terminate", "hold", *SERVER_FAULTS)
CRASHES: Final[tuple[FaultKind, ...]] = ("immediate", "crash")
"""What may take back a transaction that committed with synchronous_commit = off."""


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One statement on the rows `k` to `k + span`, or a savepoint around `inner`."""

    kind: OperationKind
    table: str = "plain"
    k: int = 0
    span: int = 0
    to: int = 0
    """The row that `k` becomes when keys change."""
    n: int = 0
    leaf: bool = False
    """Whether it is done on the partition and not on the partitioned table."""
    inner: tuple["Operation", ...] = ()
    undo: bool = False
    """Whether the savepoint is rolled back to, or released."""
    sent: Literal["alone", "together", "block"] = "alone"
    """As a message of its own, in one message with the operations beside it that are sent so too, or in a DO block."""


class Transaction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a writer does at once, not before `at`."""

    at: float
    operations: tuple[Operation, ...]
    ending: Ending = "commit"
    delay: int = 0
    """Milliseconds that it stays open, or prepared, before it ends."""
    synchronous: bool = True
    silent: bool = False
    """Whether it wakes nobody: the same to a reader as a NOTIFY that was dropped."""
    isolation: Isolation = "READ COMMITTED"


class Writer(msgspec.Struct, frozen=True):
    """One connection and what it does, in order."""

    transactions: tuple[Transaction, ...]
    settings: dict[str, str] = {}


class ReaderPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process that follows the log."""

    tables: tuple[str, ...] | None = None
    wakeup: Literal["auto", "notify", "poll"] = "auto"
    begins: float = 0
    """When its process starts; where it begins to read is the same."""
    linger: int = 0
    """Milliseconds between having written a batch down and having saved the cursor."""
    durable: bool = True
    """Whether it waits for the disk; without, a crash may take back what it saw, so only without crashes."""
    kind: ReaderKind = "follow"
    settings: dict[str, str] = {}


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that goes wrong at `at` and is right again `lasts` later."""

    at: float
    kind: FaultKind
    reader: int = 0
    lasts: float = 0


class Plan(msgspec.Struct, frozen=True):
    """A whole history, before it happened."""

    seed: int
    seconds: float
    writers: tuple[Writer, ...]
    readers: tuple[ReaderPlan, ...]
    faults: tuple[Fault, ...] = ()
    settings: dict[str, str] = {}
    """Those of the database, which every session begins with; writers and readers have more of their own."""

    def sessions(self) -> str:
        """The settings of every session, a line each."""
        lines = [f"database: {shown(self.settings)}"]
        lines += [f"writer {number}: {shown(writer.settings)}" for number, writer in enumerate(self.writers)]
        lines += [f"reader {number}: {shown(reader.settings)}" for number, reader in enumerate(self.readers)]
        return "\n".join(lines)

    def summary(self) -> str:
        """One line for people."""
        transactions = [each for writer in self.writers for each in writer.transactions]
        operations = sum(len(_flat(each.operations)) for each in transactions)
        faults = Counter(fault.kind for fault in self.faults)
        named = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items())) or "no faults"
        return (
            f"seed {self.seed}: {len(self.writers)} writers, {len(transactions)} transactions, "
            f"{operations} operations, {len(self.readers)} readers, {self.seconds:g} s, {named}"
        )

    @property
    def size(self) -> int:
        """How large it is, for shrinking: what counts is that parts taken away make it less."""
        transactions = [each for writer in self.writers for each in writer.transactions]
        operations = sum(len(_flat(each.operations)) for each in transactions)
        settings = len(self.settings) + sum(len(writer.settings) for writer in self.writers)
        settings += sum(len(reader.settings) for reader in self.readers)
        parts = len(self.writers) + len(self.readers) + len(self.faults)
        return operations + settings + 3 * len(transactions) + 10 * parts


def generate(
    seed: int,
    *,
    seconds: float = 6,
    writers: int = 5,
    readers: int = 3,
    faults: tuple[FaultKind, ...] = FAULTS,
    rate: float = 16,
    tables: Collection[str] = (),
) -> Plan:
    """The plan of a seed. `rate` is transactions per second and writer.

    `tables` are those written to; all, unless told.
    """
    chance = Chance(seed, tables or _TABLE_WEIGHTS)
    safe = not set(faults) & set(CRASHES)
    plan = Plan(
        seed=seed,
        seconds=seconds,
        writers=tuple(_writer(chance, seconds, rate) for _ in range(writers)),
        readers=tuple(_reader(chance, number, seconds, safe) for number in range(readers)),
        faults=_faults(chance, seconds, readers, faults),
    )
    return _in_sessions(plan, random.Random(f"writers and readers of {seed}"))


def _in_sessions(plan: Plan, chance: random.Random) -> Plan:
    """The plan with settings for every session, and with statements that are sent in several ways."""
    return msgspec.structs.replace(
        plan,
        settings=of_database(plan.seed),
        writers=tuple(
            msgspec.structs.replace(
                writer,
                settings=chosen(chance),
                transactions=tuple(_sent(transaction, chance) for transaction in writer.transactions),
            )
            for writer in plan.writers
        ),
        readers=tuple(msgspec.structs.replace(reader, settings=chosen(chance)) for reader in plan.readers),
    )


def _sent(transaction: Transaction, chance: random.Random) -> Transaction:
    """The transaction as it is sent: statement by statement, all in one message, or some in DO blocks."""
    way = chance.random()
    if way < 0.6:
        return transaction
    operations = tuple(
        msgspec.structs.replace(each, sent="together" if way < 0.85 else chance.choice(["block", "together"]))
        if each.kind in _SENDABLE
        else each
        for each in transaction.operations
    )
    return msgspec.structs.replace(transaction, operations=operations)


class Chance(random.Random):
    """The dice, which know the tables to choose from."""

    def __init__(self, seed: int, tables: Collection[str]) -> None:
        super().__init__(seed)
        self._weights = {name: weight for name, weight in _TABLE_WEIGHTS.items() if name in tables}

    def table(self) -> str:
        return self.of(self._weights)

    def of(self, weights: Mapping[_Choice, float]) -> _Choice:
        return self.choices(list(weights), list(weights.values()))[0]


def _flat(operations: tuple[Operation, ...]) -> list[Operation]:
    found = []
    for operation in operations:
        found += _flat(operation.inner) if operation.kind == "savepoint" else [operation]
    return found


def _writer(chance: Chance, seconds: float, rate: float) -> Writer:
    """Busy and idle by turns, so that readers fall asleep and are woken."""
    found, at = [], 0.0
    while at < seconds:
        busy_until = at + chance.uniform(0.2, 1.5)
        while at < min(busy_until, seconds):
            found.append(_transaction(chance, round(at, 3)))
            at += chance.expovariate(rate * 1.5)
        at += chance.choice([0, 0, 0.1, 0.5])
    return Writer(tuple(found))


def _transaction(chance: Chance, at: float) -> Transaction:
    if chance.random() < 0.02:
        return Transaction(at=at, operations=(_definition(chance),), synchronous=chance.random() < 0.5)
    count = min(8, 1 + int(chance.expovariate(0.7)))
    ending: Ending = chance.of({"commit": 84, "rollback": 8, "commit prepared": 6, "rollback prepared": 2})
    prepared = "prepared" in ending
    operations = tuple(_operation(chance) for _ in range(count))
    isolation: Isolation = chance.of({"READ COMMITTED": 80, "REPEATABLE READ": 14, "SERIALIZABLE": 6})
    return Transaction(
        at=at,
        operations=operations,
        ending=ending,
        delay=chance.choice([0, 0, 0, 0, 1, 5, 20, 60, 200]) if not prepared else chance.choice([0, 5, 50, 300]),
        synchronous=chance.random() < 0.6,
        silent=chance.random() < (0.9 if prepared else 0.1),
        isolation=isolation,
    )


_TABLE_WEIGHTS: Final = {
    "plain": 20,
    "pair": 10,
    "parted": 14,
    "bare": 8,
    "queue": 10,
    "nested": 16,
    "parent": 10,
    "child": 8,
    "ward": 8,
    "heir": 8,
}
_SHIFTABLE: Final = tuple(name for name in _TABLE_WEIGHTS if name != "pair")
_SENDABLE: Final = frozenset({"insert", "insert strictly", "upsert", "merge", "update", "rekey", "shift", "delete"})
_KINDS: Final[dict[OperationKind, float]] = {
    "insert": 26,
    "insert strictly": 2,
    "upsert": 12,
    "merge": 8,
    "update": 20,
    "rekey": 7,
    "shift": 4,
    "delete": 12,
    "truncate": 0.4,
    "copy": 20,
    "savepoint": 7,
}


def _operation(chance: Chance, depth: int = 0) -> Operation:
    table = chance.table()
    kind = chance.of(_KINDS)
    if kind == "savepoint":
        if depth == 2:
            kind = "update"
        else:
            inner = tuple(_operation(chance, depth + 1) for _ in range(chance.randint(1, 3)))
            return Operation("savepoint", inner=inner, undo=chance.random() < 0.5)
    if kind == "copy" and table != "bare":
        kind = "insert"
    if kind == "shift" and table not in _SHIFTABLE:
        kind = "rekey"
    reach = 60 if table == "parted" else 30
    k = chance.randrange(reach)
    span = 0 if kind == "rekey" or chance.random() < 0.6 else chance.randint(1, 12)
    if kind == "shift":
        to = k + (chance.choice([-1, 1]) if table in ("queue", "bare") else chance.randint(-25, 25))
    else:
        to = chance.randrange(reach)
    leaf = table == "parted" and k % 20 + span < 20 and chance.random() < 0.25
    return Operation(kind, table, k=k, span=span, to=to, n=chance.randrange(10_000), leaf=leaf)


def _definition(chance: Chance) -> Operation:
    table = chance.table()
    kind: OperationKind = chance.choice(["add column", "retype"])
    if table == "nested":
        kind = "add column"  # PL/pgSQL keeps the old type of a column in the plans of the user's own trigger
    if table == "parted" and chance.random() < 0.7:
        kind = "attach"
    return Operation(kind, table, n=chance.randint(1, 3))


def _reader(chance: Chance, number: int, seconds: float, safe: bool) -> ReaderPlan:
    """The first two see everything and wait for each other's wake-up; the others are of any kind."""
    if number < 2:
        return ReaderPlan(linger=chance.choice([0, 2]))
    tables = tuple(sorted(chance.sample(sorted(_TABLE_WEIGHTS), chance.randint(1, 4))))
    return ReaderPlan(
        tables=tables if chance.random() < 0.3 else None,
        wakeup=chance.of({"auto": 50, "notify": 30, "poll": 20}),
        begins=round(chance.uniform(0, seconds * 0.8), 2) if chance.random() < 0.5 else 0,
        linger=chance.choice([0, 0, 5, 30]),
        durable=chance.random() < 0.5 or not safe,
    )


_LASTS: Final[dict[FaultKind, Callable[[Chance], float]]] = {
    "kill": lambda chance: chance.choice([0.0, 0.2, 1.0]),
    "pause": lambda chance: chance.choice([0.5, 1.5, 6.0]),
    "cut": lambda chance: 0.0,
    "stall": lambda chance: chance.choice([0.3, 1.0, 3.0]),
    "refuse": lambda chance: chance.choice([0.3, 1.0]),
    "terminate": lambda chance: 0.0,
    "hold": lambda chance: chance.choice([0.3, 1.0, 2.0]),
    "restart": lambda chance: chance.choice([0.0, 0.5]),
    "immediate": lambda chance: chance.choice([0.0, 0.3]),
    "crash": lambda chance: chance.choice([0.0, 0.3]),
}


def _faults(chance: Chance, seconds: float, readers: int, allowed: tuple[FaultKind, ...]) -> tuple[Fault, ...]:
    """About two faults a second, and one of the server in four seconds; one half of the kills come in pairs."""
    found: list[Fault] = []
    small = [kind for kind in allowed if kind not in SERVER_FAULTS]
    large = [kind for kind in allowed if kind in SERVER_FAULTS]
    for kinds, every in ((small, 0.5), (large, 4.0)):
        at = chance.uniform(0.3, every + 0.3)
        while kinds and readers and at < seconds:
            kind = chance.choice(kinds)
            fault = Fault(round(at, 2), kind, chance.randrange(readers), _LASTS[kind](chance))
            found.append(fault)
            at += chance.uniform(0.4, 1.6) * every
    return tuple(sorted(found, key=lambda fault: fault.at))
