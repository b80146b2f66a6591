"""What is there, then what happens: without a gap, without an overlap, from wherever the reader was interrupted."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

import pytest

from forge.capture import Filter
from forge.capture import changes as everything
from forge.capture.source import in_snapshot
from forge.change import Change, Op
from forge.testing.mariadb import MariadbServer, connect_mariadb, run
from tests.capture.mysql.reading import SOON, changes, snapshot, source

pytestmark = pytest.mark.contract("W5")

Table = dict[tuple[Any, ...], Any]


def apply(table: Table, told: Iterable[Change]) -> None:
    """Do to a copy what the changes say; a change that does not fit is an overlap or a gap."""
    for change in told:
        assert change.key is not None
        key = (change.table, *change.key.values())
        if change.op in (Op.READ, Op.INSERT):
            assert key not in table, f"{change.op} of {key}, which is there"
            table[key] = change.after
        elif change.op is Op.UPDATE:
            assert table[key] == change.before, f"update of {key}, which is otherwise"
            table[key] = change.after
        else:
            assert table.pop(key) == change.before


class Writer(threading.Thread):
    """Random transactions on `a` and `b` until it is stopped."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__()
        self._url = url
        self._choose = random.Random(seed)
        self._stopped = threading.Event()

    def run(self) -> None:
        choose = self._choose
        connection = connect_mariadb(self._url, autocommit=False)
        with connection.cursor() as cursor:
            while not self._stopped.is_set():
                for _ in range(choose.randrange(1, 4)):
                    cursor.execute(self._statement())
                connection.rollback() if choose.random() < 0.2 else connection.commit()
                self._stopped.wait(0.002)
        connection.close()

    def _statement(self) -> str:
        choose, key = self._choose, self._choose.randrange(1, 400)
        table = choose.choice("ab")
        column, name = ("id", str(key)) if table == "a" else ("k", f"'Ke{'yYÿ'[key % 3]}{key}'")
        return choose.choice(
            (
                f"INSERT IGNORE INTO {table} VALUES ({name}, {key})",
                f"UPDATE {table} SET n = n + 1 WHERE {column} = {name}",
                f"DELETE FROM {table} WHERE {column} = {name}",
            )
        )

    def __enter__(self) -> "Writer":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self.join()


def tables(url: str) -> None:
    run(
        url,
        "CREATE TABLE a (id int PRIMARY KEY, n int)",
        "CREATE TABLE b (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n int)",
        "INSERT INTO a VALUES " + ", ".join(f"({n}, 0)" for n in range(1, 300)),
        "INSERT INTO b VALUES " + ", ".join(f"('Ke{'yYÿ'[n % 3]}{n}', 0)" for n in range(1, 300)),
    )


def truth(url: str) -> Table:
    found: Table = {("a", row[0]): {"id": row[0], "n": row[1]} for row in run(url, "SELECT * FROM a")}
    return found | {("b", row[0]): {"k": row[0], "n": row[1]} for row in run(url, "SELECT * FROM b")}


@pytest.mark.parametrize("seed", [1, 2])
async def test_snapshot_then_stream_under_writes(database: str, seed: int) -> None:
    """Interrupted again and again, each time going on from the last saved cursor."""
    choose = random.Random(seed)
    tables(database)
    copy: Table = {}
    cursor: str | None = None
    interrupted = 0
    with Writer(database, seed):
        async with asyncio.timeout(SOON):
            while cursor is None or in_snapshot(cursor):
                stop = choose.randrange(1, 10)
                async with aclosing(source(database, page=20).snapshot(cursor)) as batches:
                    async for batch in batches:
                        apply(copy, batch.changes)
                        cursor = batch.cursor
                        stop -= 1
                        if not stop:
                            interrupted += 1
                            break
    assert interrupted > 1
    reader = source(database)
    end = await reader.now()
    async with asyncio.timeout(SOON):
        if cursor != end:
            async with aclosing(reader.stream(cursor)) as stream:
                async for batch in stream:
                    apply(copy, batch.changes)
                    if batch.cursor == end:
                        break
    assert copy == truth(database)


async def test_reading_everything_with_one_call(database: str) -> None:
    tables(database)
    copy: Table = {}
    with Writer(database, 5):
        async with asyncio.timeout(SOON), aclosing(everything(source(database, page=50), snapshot=True)) as batches:
            streamed = 0
            async for batch in batches:
                apply(copy, batch.changes)
                streamed += sum(change.op is not Op.READ for change in batch.changes)
                if streamed > 50:
                    break
    rest = await source(database).now()
    if rest != batch.cursor:
        async with asyncio.timeout(SOON), aclosing(source(database).stream(batch.cursor)) as batches:
            async for batch in batches:
                apply(copy, batch.changes)
                if batch.cursor == rest:
                    break
    assert copy == truth(database)


KEYS: list[tuple[str, list[str]]] = [
    ("bigint unsigned", ["0", "18446744073709551615", "9223372036854775807"]),
    ("decimal(20,3)", ["-1.5", "0", "7.125"]),
    ("varchar(9) character set latin1", ["'a'", "'É'", "'z '", "'12'"]),
    ("char(4) collate utf8mb4_bin", ["'A'", "'a'", "'é'", "''"]),
    ("varbinary(9)", ["x'00'", "x'ff27'", "x''"]),
    ("binary(3)", ["x'00'", "x'ff27'", "x'616263'"]),
    ("date", ["'2026-01-31'", "'1000-01-01'"]),
    ("datetime(3)", ["'2026-01-31 12:00:00.5'", "'2026-01-31 12:00:00.25'"]),
    ("timestamp(6)", ["'2026-01-31 12:00:00.5'", "'2026-01-31 12:00:00.25'"]),
    ("time(2)", ["'-12:00:00.5'", "'300:00:00.25'", "'00:00:00'"]),
    ("enum('z','a','m')", ["'z'", "'a'", "'m'"]),
    ("double", ["0.1", "1e300", "-2.5"]),
]


@pytest.mark.parametrize(("type", "values"), KEYS, ids=[key[0].partition("(")[0] for key in KEYS])
async def test_every_type_of_key(database: str, type: str, values: list[str]) -> None:
    """In pages of one row, interrupted after each, with a change of every row in between."""
    run(database, f"CREATE TABLE t (k {type}, j int, n int, PRIMARY KEY (k, j))")
    run(database, "INSERT INTO t VALUES " + ", ".join(f"({value}, {j}, 0)" for value in values for j in (1, 2)))
    pages = not type.startswith(("enum", "double"))  # these are ordered otherwise than compared, or compared badly
    copy: Table = {}
    cursor: str | None = None
    while cursor is None or in_snapshot(cursor):
        async with aclosing(source(database, page=1 if pages else 100).snapshot(cursor)) as batches:
            async for batch in batches:
                apply(copy, batch.changes)
                cursor = batch.cursor
                if any(change.op is Op.READ for change in batch.changes) and pages:
                    break
        if len(copy) < 2 * len(values):
            run(database, "UPDATE t SET n = n + 1")
    assert [image["n"] for image in copy.values()] == [row[0] for row in run(database, "SELECT n FROM t")]
    assert len(copy) == 2 * len(values)


async def test_a_table_without_a_key_is_read_from_its_beginning(database: str) -> None:
    run(database, "CREATE TABLE t (n int)", "INSERT INTO t VALUES (1), (2), (2)", "CREATE TABLE u (n int)")
    whole = await snapshot(source(database, page=2))
    assert [[change.after for change in batch.changes] for batch in whole] == [[{"n": 1}, {"n": 2}], [{"n": 2}], []]
    assert {change.key for batch in whole for change in batch.changes} == {None}
    run(database, "INSERT INTO t VALUES (3)")
    rest = await snapshot(source(database, page=10), whole[0].cursor)
    told = [change for batch in rest for change in batch.changes]
    assert [change.op for change in told] == [Op.INVALIDATE] + [Op.READ] * 4
    assert not in_snapshot(rest[-1].cursor)


async def test_tables_that_are_altered_and_dropped_under_it(database: str) -> None:
    run(
        database,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abcd"),
        *(f"INSERT INTO {name} VALUES (1), (2), (3)" for name in "abcd"),
    )
    seen: list[Change] = []
    async with asyncio.timeout(SOON), aclosing(source(database, page=2).snapshot()) as batches:
        async for batch in batches:
            seen += batch.changes
            if len(seen) == 2:
                run(
                    database,
                    "DROP TABLE b",
                    "ALTER TABLE c ADD COLUMN n int DEFAULT 7, ALGORITHM=COPY",
                    "INSERT INTO a VALUES (0)",
                )
    found = [(change.table, change.op.value, change.after) for change in seen]
    assert found[:2] == [("a", "read", {"id": 1}), ("a", "read", {"id": 2})]
    assert ("a", "insert", {"id": 0}) in found
    assert [row for name, _, row in found if name == "c"] == [{"id": n, "n": 7} for n in (1, 2, 3)]
    assert "b" not in {name for name, op, _ in found if op == "read"}
    cursor = batch.cursor
    run(database, "INSERT INTO d VALUES (9)")
    (last,) = await changes(source(database), cursor, 1)
    assert last.after == {"id": 9}


async def test_filters_of_a_snapshot(database: str) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY, n int, s text)", "CREATE TABLE u (id int PRIMARY KEY)")
    run(database, "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')", "INSERT INTO u VALUES (1)")
    wanted = Filter(tables=("t",), columns=("n",), where="n > 1")
    found = [change for batch in await snapshot(source(database, wanted)) for change in batch.changes]
    assert [change.after for change in found] == [{"id": 2, "n": 2}]


async def test_ids_are_the_same_when_nothing_changed(database: str) -> None:
    run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    once = await snapshot(source(database, page=2))
    twice = await snapshot(source(database, page=2))
    ids: Callable[[list[Any]], list[str]] = lambda found: [change.id for batch in found for change in batch.changes]  # noqa: E731
    assert ids(once) == ids(twice)
    assert len(set(ids(once))) == 3
    rest = await snapshot(source(database, page=2), once[0].cursor)
    assert ids(rest) == ids(once)[2:]


async def test_all_databases_of_a_server(maria: MariadbServer, maria_database: str) -> None:
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    found = [change for batch in await snapshot(source(maria.url())) for change in batch.changes]
    assert maria_database.rpartition("/")[2] in {change.schema for change in found}
    assert not {change.schema for change in found} & {"mysql", "sys", "information_schema", "performance_schema"}
