"""Strategies for finding indirect changes. All strategies give the same answers.

=============  ====================================================  ==================================================
journal        identity changes, and who refers to them, on reading  nothing is kept
denormalized   the same, with one join less                          each edge keeps the resource of its parent
monotonic      one range of an index                                 each document keeps the greatest identity token of
                                                                     what it refers to: a change of identity writes to
                                                                     all who refer to it
=============  ====================================================  ==================================================

Triggers maintain the data of a strategy, for every writer. `use_strategy` changes the strategy under concurrent reads
and writes: first it creates the triggers, which every writer has from then on; then it fills existing rows, in batches;
then it creates the index; and only then it switches the readers, which read the setting in the statement that depends
on it. The data of the former strategy is dropped last. After an interruption at any point, readers have the former or
the new strategy, complete, and a retry finishes the change.

It waits for a row lock only while it holds none: a batch skips locked rows, and these are filled one by one afterwards.
So no writer gets a deadlock because the strategy is changed. Where writers deadlock among themselves, and the fill is
between them in the queue for a row, the server may choose it as the victim: it leaves the queue and retries. The same
holds where it creates or drops its index, which waits for all writers.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, cast, get_args

import psycopg
from psycopg.pq import TransactionStatus

from forge.errors import StrategyBusy
from forge.postgres import leases
from forge.postgres.connection import Connection
from forge.versions.operation import typed
from forge.versions.switch import PATIENCE, sql, switch

Strategy = Literal["journal", "denormalized", "monotonic"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
BATCH: Final = 5000
"""The number of documents that are filled in one transaction."""
STRATEGY_LEASE: Final = "strategy"
"""Held by the session that changes the strategy."""

Progress = Callable[[int], None]


def strategy(connection: Connection) -> Strategy:
    """Return the strategy that readers use."""
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
    """Change to a strategy, on a connection in autocommit; `progress` is called with the id of the last finished
    document."""
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
    """Run a step, and retry it whenever the server chooses it as a deadlock victim."""
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
