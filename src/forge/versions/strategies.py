"""How readers find what changed indirectly. All strategies give the same answers.

=============  ====================================================  ==================================================
journal        identity changes, and who refers to them, on reading  nothing is kept
denormalized   the same, with one join less                          each edge keeps the resource of its parent
monotonic      one range of an index                                 each document keeps the greatest identity token of
                                                                     what it refers to: a change of identity writes to
                                                                     all who refer to it
=============  ====================================================  ==================================================

What a strategy keeps is kept by triggers, whoever writes. `use_strategy` goes from one to another while others read and
write: first its triggers, which every writer has from then on; then, in batches, what was there before; then its index;
and only then readers are told, who look at the setting in the statement that stands on it. What the former kept goes
last. Whenever that is cut short, readers have the former or the new one, whole, and doing it again completes it.

It waits for a row only while it holds none: a batch leaves out what somebody holds, and that is filled alone after it.
So no writer ends in a deadlock because the strategy is changed. Where writers run into one of their own, and it stands
between them in the queue for a row, it may be the one that the server tells: it leaves the queue and comes again. So it
does where it makes or drops its index, which waits for all who write.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, cast, get_args

import psycopg
from psycopg.pq import TransactionStatus

from forge.postgres import leases
from forge.postgres.connection import Connection
from forge.versions.errors import StrategyBusy
from forge.versions.operation import typed
from forge.versions.switch import PATIENCE, sql, switch

Strategy = Literal["journal", "denormalized", "monotonic"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
BATCH: Final = 5000
"""Documents that are filled in one transaction."""
STRATEGY_LEASE: Final = "strategy"
"""Held by the session that changes the strategy."""

Progress = Callable[[int], None]


def strategy(connection: Connection) -> Strategy:
    """What readers stand on."""
    with typed():
        row = connection.execute("SELECT strategy FROM forge_versions.setting").fetchone()
    assert row is not None
    return cast(Strategy, row[0])


def use_strategy(
    connection: Connection,
    name: Strategy,
    *,
    batch: int = BATCH,
    patience: float = PATIENCE,
    progress: Progress | None = None,
) -> None:
    """Go over to a strategy, on a connection in autocommit; `progress` hears the id of the last document done."""
    if name not in STRATEGIES:
        raise ValueError(f"{name!r} is none of {', '.join(STRATEGIES)}")
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        raise StrategyBusy(
            "a strategy is changed in several transactions",
            fix="use a connection in autocommit, outside of a transaction",
        )
    with typed():
        if not leases.take(connection, STRATEGY_LEASE, "forge_versions"):
            raise StrategyBusy("another session changes the strategy", fix="wait until it is done")
        try:
            if name != "journal":
                _build(connection, name, batch, patience, progress)
            connection.execute("UPDATE forge_versions.setting SET strategy = %s WHERE strategy <> %s", (name, name))
            for former in ("monotonic", "denormalized"):
                if former != name:
                    _clear(connection, former, patience)
        finally:
            if not connection.closed:
                leases.give_up(connection, STRATEGY_LEASE, "forge_versions")


def _build(connection: Connection, name: Strategy, batch: int, patience: float, progress: Progress | None) -> None:
    switch(connection, lambda: _run(connection, f"keep_{name}"), drops=False, patience=patience)
    after = 0
    while (upto := _value(connection, sql("next_batch"), {"after": after, "size": batch})) is not None:
        for parent, named in connection.execute(sql(f"fill_{name}"), {"after": after, "upto": upto}).fetchall():
            _fill_one(connection, name, parent, named)
        after = upto
        if progress is not None:
            progress(after)
    if name == "monotonic":
        _again(lambda: _index(connection))


def _fill_one(connection: Connection, name: Strategy, parent: int, named: str | None) -> None:
    _again(lambda: connection.execute(sql(f"fill_one_{name}"), {"parent": parent, "name": named}))


def _again(act: Callable[[], object]) -> None:
    """Do it, as often as the server ends a deadlock by it."""
    while True:
        try:
            act()
            return
        except psycopg.errors.DeadlockDetected:
            continue


def _index(connection: Connection) -> None:
    valid = _value(
        connection,
        "SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass('forge_versions.document_kept')",
    )
    if valid is False:
        connection.execute("DROP INDEX CONCURRENTLY forge_versions.document_kept")
    if not valid:
        connection.execute(
            "CREATE INDEX CONCURRENTLY document_kept ON forge_versions.document"
            " (resource, greatest(content_version, identity_version, max_dependency), id)"
        )


def _clear(connection: Connection, name: str, patience: float) -> None:
    kept = _value(
        connection, "SELECT count(*) FROM pg_trigger t WHERE NOT t.tgisinternal AND t.tgname LIKE %s", f"{name}\\_%"
    )
    if kept:
        switch(connection, lambda: _run(connection, f"drop_{name}"), patience=patience)
    if name == "monotonic":
        _again(lambda: connection.execute("DROP INDEX CONCURRENTLY IF EXISTS forge_versions.document_kept"))


def _run(connection: Connection, name: str) -> None:
    connection.execute(sql(name))


def _value(connection: Connection, statement: Any, parameters: Any = ()) -> Any:
    given = parameters if isinstance(parameters, (dict, tuple)) else (parameters,)
    row = connection.execute(statement, given).fetchone()
    return None if row is None else row[0]
