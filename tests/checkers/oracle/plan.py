"""A plan as data, so that it can be saved, carried out again, and made smaller."""

from typing import Final, Literal

import msgspec

from tests.checkers.oracle.schema import Schema
from tests.checkers.oracle.values import Value
from tests.checkers.session_settings import shown

Shape = Literal["rows", "one", "value"]
FAULTS: Final = ("terminate", "hold", "slow", "restart", "immediate", "writers")


class Query(msgspec.Struct, frozen=True):
    """What an application would mark: statements, run one after the other; those after the first only where it gave an
    odd number of rows. `ordered` is whether the text leaves no choice of order."""

    statements: tuple[str, ...]
    key: tuple[str, ...] = ()
    shape: Shape = "rows"
    ordered: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A query with its parameters, asked by somebody. `reader` is asked as the role that has policies."""

    query: int
    values: dict[str, Value]
    user: str | None = None
    reader: bool = False


class Subscription(msgspec.Struct, frozen=True):
    """Who subscribes, at which node, from which round until which."""

    ask: int
    node: int
    session: int
    delta: bool
    begins: int = 0
    ends: int | None = None


class Statement(msgspec.Struct, frozen=True):
    """`undone` statements are taken back by a savepoint."""

    sql: str
    undone: bool = False


class Transaction(msgspec.Struct, frozen=True):
    statements: tuple[Statement, ...]
    commit: bool = True
    isolation: str = "READ COMMITTED"
    sent: Literal["alone", "together", "blocks"] = "alone"
    """Statement by statement, all in one message, or each statement in a DO block."""


class Fault(msgspec.Struct, frozen=True):
    """`after` is in seconds from the beginning of its round, `lasts` what it says."""

    kind: str
    after: float = 0.0
    lasts: float = 0.1


class Round(msgspec.Struct, frozen=True):
    """Each writer carries out its transactions, all writers at the same time; then all is quiet."""

    writers: tuple[tuple[Transaction, ...], ...]
    faults: tuple[Fault, ...] = ()


class Plan(msgspec.Struct, frozen=True):
    seed: int
    schema: Schema
    filling: tuple[str, ...]
    """What the tables have before anybody subscribes."""
    queries: tuple[Query, ...]
    asks: tuple[Ask, ...]
    subscriptions: tuple[Subscription, ...]
    rounds: tuple[Round, ...]
    nodes: int = 1
    settings: dict[str, str] = {}
    """Those of the database, which every session begins with."""
    writers: tuple[dict[str, str], ...] = ()
    """Those of the writers' sessions, as many as there are writers in a round at the most."""

    def sessions(self) -> str:
        """The settings of every session, a line each."""
        lines = [f"database: {shown(self.settings)}"]
        lines += [f"writer {number}: {shown(settings)}" for number, settings in enumerate(self.writers)]
        return "\n".join(lines)

    def summary(self) -> str:
        transactions = sum(len(each) for one in self.rounds for each in one.writers)
        faults = [fault.kind for one in self.rounds for fault in one.faults]
        return (
            f"seed {self.seed}: {len(self.schema.relations)} relations, {len(self.queries)} queries,"
            f" {len(self.subscriptions)} subscriptions at {self.nodes} nodes, {len(self.rounds)} rounds with"
            f" {transactions} transactions, faults: {', '.join(faults) or 'none'}"
        )
