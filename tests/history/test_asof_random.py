"""Random histories of several writers: at every recorded instant as-of is the copy taken in that snapshot."""

import json
import random
import threading
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.history.asof import as_of, row_as_of, table_as_of
from forge.postgres.connection import Connection, connect
from tests.history.moments import Moment, begin, copy, differing, in_order, record

PASSING = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DuplicateColumn,
    psycopg.errors.LockNotAvailable,
)
"""What writers do to each other, and what a column that another one dropped does to them; nothing is written then."""


class Writer:
    """One client that writes at random, in transactions with savepoints."""

    def __init__(self, url: str, seed: int, *, truncates: bool, redefines: bool) -> None:
        self._dice = random.Random(seed)
        self._url = url
        self._truncates = truncates
        self._redefines = redefines
        self._columns = 0
        self.failure: Exception | None = None

    def run(self, transactions: int) -> None:
        try:
            with connect(self._url) as connection:
                connection.execute("SET lock_timeout = '2s'")
                for _ in range(transactions):
                    self._transaction(connection)
        except Exception as error:
            self.failure = error

    def _transaction(self, connection: Connection) -> None:
        dice = self._dice
        try:
            with connection.transaction(force_rollback=dice.random() < 0.15):
                for _ in range(dice.randrange(1, 4)):
                    with connection.transaction(force_rollback=dice.random() < 0.2):
                        self._write(connection)
                if self._truncates and dice.random() < 0.12:
                    connection.execute(dice.choice([b"TRUNCATE item", b"TRUNCATE note", b"TRUNCATE item, note"]))
            if self._redefines and dice.random() < 0.25:
                self._redefine(connection)
        except PASSING:
            return

    def _write(self, connection: Connection) -> None:
        dice = self._dice
        key, other, word = dice.randrange(12), dice.randrange(12), dice.choice("abc")
        price = Decimal(dice.randrange(1000)) / 100
        match dice.randrange(10):
            case 0 | 1 | 2:
                connection.execute(
                    "INSERT INTO item (id, part, name, price, tags) VALUES (%s, 1, %s, %s, %s)"
                    " ON CONFLICT (id, part) DO UPDATE SET price = excluded.price",
                    (key, word, price, [key, other]),
                )
            case 3:
                connection.execute("UPDATE item SET name = %s WHERE id = %s", (word, key))
            case 4:
                connection.execute("UPDATE item SET price = price + 1 WHERE id < %s", (key,))
            case 5:
                connection.execute("DELETE FROM item WHERE id = %s", (key,))
            case 6:
                connection.execute("UPDATE item SET id = %s, part = part + 1 WHERE id = %s", (other, key))
            case 7:
                connection.execute("DELETE FROM item WHERE id = %s AND part = 1", (key,))
                connection.execute("INSERT INTO item (id, part, name) VALUES (%s, 1, 'again')", (key,))
            case 8:
                connection.execute("INSERT INTO note (body, n) SELECT %s, x FROM generate_series(1, 3) x", (word,))
            case 9:
                connection.execute("UPDATE note SET n = n + 1 WHERE body = %s", (word,))
                connection.execute("DELETE FROM note WHERE n > 4 AND body = %s", (word,))

    def _redefine(self, connection: Connection) -> None:
        dice = self._dice
        name = f"more_{dice.randrange(4)}"
        statement = dice.choice(
            [
                f"ALTER TABLE item ADD COLUMN {name} int DEFAULT 7",
                f"ALTER TABLE item ADD COLUMN {name} text DEFAULT md5(random()::text)",
                f"ALTER TABLE item DROP COLUMN {name}",
                f"ALTER TABLE item RENAME COLUMN {name} TO other_{name}",
                f"ALTER TABLE item RENAME COLUMN other_{name} TO {name}",
                "ALTER TABLE item ALTER name TYPE varchar(100)",
                "ALTER TABLE item ALTER name TYPE text",
            ]
        )
        connection.execute(statement.encode())


def ran(database: str, connection: Connection, seed: int, *, truncates: bool, redefines: bool) -> list[Moment]:
    """The moments of a random history of three writers, recorded while they write."""
    begin(connection)
    connection.execute(
        "CREATE TABLE item (id int, part int, name text, price numeric, tags int[], PRIMARY KEY (id, part));"
        "CREATE TABLE note (body text, n int)"
    )
    connection.execute("SELECT public.forge_enable_reactivity('item'), public.forge_enable_reactivity('note')")
    writers = [
        Writer(database, seed * 10 + place, truncates=truncates and place == 0, redefines=redefines and place == 1)
        for place in range(3)
    ]
    threads = [threading.Thread(target=writer.run, args=(20,)) for writer in writers]
    for thread in threads:
        thread.start()
    moments = [record(connection, ["item", "note"])]
    while any(thread.is_alive() for thread in threads):
        moments.append(record(connection, ["item", "note"]))
        threads[0].join(0.05)
    for thread in threads:
        thread.join()
    moments.append(record(connection, ["item", "note"]))
    assert [writer.failure for writer in writers] == [None] * 3
    dice = random.Random(seed)
    return moments if len(moments) < 25 else [moments[0], *sorted(dice.sample(moments[1:-1], 23)), moments[-1]]


@pytest.mark.contract("T9")
@pytest.mark.every_version
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(11, 15))])
def test_writes_and_truncates(database: str, connection: Connection, seed: int) -> None:
    moments = ran(database, connection, seed, truncates=True, redefines=False)
    for moment in moments:
        found = as_of(connection, ["item", "note"], moment.at)
        for table, past in found.items():
            assert past.at == moment.at
            assert in_order(past.rows) == in_order(moment.copies[table]), table
    moment = random.Random(seed).choice(moments)
    for key in range(12):
        for part in (1, 2):
            expected = [row for row in moment.copies["item"] if (row["id"], row["part"]) == (key, part)]
            assert row_as_of(connection, "item", {"id": key, "part": part}, moment.at).rows == expected


@pytest.mark.contract("T9")
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 10))])
def test_writes_and_truncates_while_columns_come_and_go(database: str, connection: Connection, seed: int) -> None:
    moments = ran(database, connection, seed, truncates=True, redefines=True)
    now = set(moments[-1].copies["item"][0]) if moments[-1].copies["item"] else set()
    refused: list[tuple[Moment, HistoryUnavailable]] = []
    for moment in moments:
        expected = moment.copies["item"]
        forgotten = {name for row in expected for name in row} - now | {"name"} | _made_since(expected, now)
        try:
            found = table_as_of(connection, "item", moment.at).rows
        except HistoryUnavailable as error:
            refused.append((moment, error))
            continue
        assert differing(found, expected, ("id", "part"), forgotten) == []
        assert in_order(table_as_of(connection, "note", moment.at).rows) == in_order(moment.copies["note"])
    for moment, refusal in refused:  # a type was changed before, and it was truncated after: nobody knows the rows
        assert "was truncated" in str(refusal)
        assert _rewritten_before(connection, moment)
        assert refusal.oldest is not None
        assert "an earlier one" in refusal.fix or refusal.oldest > moment.at


@pytest.mark.contract("T9")
@pytest.mark.parametrize("seed", [21, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(22, 26))])
def test_any_instant_is_answered_and_how_far_the_answer_is_from_it(
    database: str, connection: Connection, seed: int
) -> None:
    """Instants between recorded ones, after the newest, and now, against what the log says of every transaction."""
    ran(database, connection, seed, truncates=False, redefines=False)
    writer = Writer(database, seed, truncates=False, redefines=False)
    writer.run(10)  # nothing is recorded any more
    assert writer.failure is None
    pairs = [
        (at, Snapshot.parse(text))
        for at, text in connection.execute("SELECT at, snapshot::text FROM forge.instant ORDER BY at").fetchall()
    ]
    written = connection.execute(
        "SELECT l.transaction_id::text::bigint, l.at, v.table_name = 'item' FROM forge.forge_event_log l"
        " JOIN forge.table_version v ON v.id = l.version ORDER BY l.id"
    ).fetchall()
    changes = [(xid, at) for xid, at, of_item in written if of_item]
    dice = random.Random(seed)
    newest = pairs[-1][0]
    times = [at for _, at, _ in written]
    asked = [
        *(_between(dice, pairs[0][0], newest) for _ in range(12)),
        *(_between(dice, newest, times[-1]) for _ in range(6)),
        *dice.sample(times, 6),
        *dice.sample([at for at, _ in pairs], 3),
    ]
    for at in (moment for moment in asked if moment >= pairs[0][0]):
        found = table_as_of(connection, "item", at)
        recorded, before = max(pair for pair in pairs if pair[0] <= at)
        after = next((snapshot for other, snapshot in pairs if other > at), None)
        later = {xid for xid, time, _ in written if time > at}
        if at > newest:
            missed = 0
            unsure = sum(not before.sees(xid) and xid not in later for xid, _ in changes)
            assert (found.at, found.gap.seconds) == (at, 0)
        else:
            missed = sum(
                not before.sees(xid) and (after is None or after.sees(xid)) and time <= at for xid, time in changes
            )
            missed, unsure = (0 if recorded == at else missed), 0
            assert (found.at, found.gap.seconds) == (recorded, (at - recorded).total_seconds())
            assert in_order(found.rows) == in_order(table_as_of(connection, "item", recorded).rows)
        assert (found.asked, found.gap.changes, found.gap.unsure, found.gap.capped) == (at, missed, unsure, False)
    last = table_as_of(connection, "item", times[-1])
    for exact in (last.rows, table_as_of(connection, "item", None).rows):
        assert in_order(exact) == in_order(copy(connection, "item"))
    # after the newest recorded instant: without the transactions that wrote later
    for at in dice.sample([at for at in times if at > newest], 5):
        later = {xid for xid, time, _ in written if time > at}
        assert in_order(table_as_of(connection, "item", at).rows) == in_order(_replayed(connection, later))


def _between(dice: random.Random, one: datetime, other: datetime) -> datetime:
    return one + (other - one) * dice.random()


def _replayed(connection: Connection, without: set[int]) -> list[dict[str, Any]]:
    """The rows of item as the log's images tell them, forwards, without some transactions."""
    rows: dict[str, Any] = {}
    found = connection.execute(
        "SELECT l.transaction_id::text::bigint, l.op::text, l.row_id, l.after::text FROM forge.forge_event_log l"
        " JOIN forge.table_version v ON v.id = l.version WHERE v.table_name = 'item' AND l.op IN ('I', 'U', 'D')"
        " ORDER BY coalesce(l.rank, l.id), l.id"
    )
    for xid, op, key, after in found:
        if xid in without:
            continue
        if op == "D":
            rows.pop(key)
        else:
            rows[key] = json.loads(after, parse_float=Decimal)
    return [{**row, "price": None if row["price"] is None else Decimal(row["price"])} for row in rows.values()]


def _rewritten_before(connection: Connection, moment: Moment) -> bool:
    return connection.execute(
        "SELECT EXISTS (SELECT FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version"
        " WHERE l.op = 'S' AND v.table_name = 'item' AND (l.context ->> 'rewritten')::boolean AND l.at <= %s)",
        (moment.at,),
    ).fetchone() == (True,)


def _made_since(rows: list[dict[str, object]], now: set[str]) -> set[str]:
    """A column of that name may be another one by now."""
    return {name for row in rows for name in row if "more_" in name}


@pytest.mark.contract("T9")
def test_a_rewrite_is_told_or_refused_but_never_guessed(connection: Connection) -> None:
    begin(connection)
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, n int)")
    connection.execute("SELECT public.forge_enable_reactivity('item')")
    moments, refused = [], 0
    dice = random.Random(5)
    for step in range(30):
        match dice.randrange(6):
            case 0:
                connection.execute("ALTER TABLE item ALTER n TYPE int USING n * 2")
            case 1 if step > 8:
                connection.execute("TRUNCATE item")
            case _:
                connection.execute(
                    "INSERT INTO item VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                    (dice.randrange(6), step),
                )
        moments.append(record(connection, ["item"]))
    for moment in moments:
        try:
            found = table_as_of(connection, "item", moment.at).rows
        except HistoryUnavailable as error:
            refused += 1
            assert error.oldest is not None  # noqa: PT017
            continue
        assert in_order(found) == in_order(moment.copies["item"])
    assert 0 < refused < len(moments)
