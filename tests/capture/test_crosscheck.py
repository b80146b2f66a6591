"""The trigger log against the WAL on a real server: equal under traffic, and every planted difference is found."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import forge
from forge.capture import Filter
from forge.capture.crosscheck import Difference, Kind, Report, open_window
from forge.capture.crosscheck.compare import Seen, compare
from forge.capture.wal import WalSource
from forge.change import UNAVAILABLE, Op
from forge.changelog.connection import Connection, connect
from forge.changelog.install import install
from forge.errors import ForgeError, NotInstalled, SlotInUse, SlotLost, SourceError
from forge.postgres import PostgresServer
from forge.testing import fresh_database, temporary_postgres

pytestmark = pytest.mark.contract("X8")

TABLES = """
    CREATE TYPE mood AS ENUM ('calm', 'busy');
    CREATE DOMAIN price AS numeric(12, 3);
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE plain (id int PRIMARY KEY, status text, secret text, card text, total price);
    CREATE TABLE kinds (
        id bigint PRIMARY KEY, yes boolean, small smallint, exact numeric, single real, double double precision,
        raw bytea, doc jsonb, doc_text json, day date, clock time, clock_zone timetz, at timestamp, at_zone timestamptz,
        span interval, word varchar(20), fixed char(5), uid uuid, feeling mood, both_of pair, range int4range,
        numbers int[], words text[], exacts numeric[], grid int[][], address inet, bits varbit, cash money, spot point,
        twice bigint GENERATED ALWAYS AS (id * 2) STORED, big text);
    ALTER TABLE kinds ALTER COLUMN big SET STORAGE EXTERNAL;
    CREATE TABLE whole (a int, b text, note text, PRIMARY KEY (b, a));
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE keyless (a int, b text);
    ALTER TABLE keyless REPLICA IDENTITY FULL;
    CREATE TABLE parts (id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE parts_east PARTITION OF parts FOR VALUES IN ('east');
    CREATE TABLE parts_west PARTITION OF parts FOR VALUES IN ('west');
    CREATE TABLE child (id int PRIMARY KEY, plain_id int REFERENCES plain ON DELETE CASCADE ON UPDATE CASCADE);
"""
TRACKED = ("plain", "kinds", "whole", "keyless", "parts", "child")
VALUES = """
    (%s, %s, 3, 12.30, 0.1, 'NaN', '\\x00ff', '{"a": [1, 2.50, null], "$json": "x"}', '{ "b" : 1 }', '2026-02-03', '12:30:01.5',
     '12:30+02', '2026-02-03 01:02:03.4', '2026-02-03 01:02:03+05', '1 year 2 days 03:04:05', 'żółć', 'ab',
     'b0e5c7a4-3f0e-4c57-9a53-0d6f2a3b9c11', 'busy', '(1,"x y")', '[1,5)', '{1,NULL,3}', '{"a b",NULL,"c\\"d"}', '{1.10,2}',
     '{{1,2},{3,4}}', '10.0.0.1/8', '10110', '12.34', '(1,2.5)')
"""
KINDS = """
    INSERT INTO kinds (id, yes, small, exact, single, double, raw, doc, doc_text, day, clock, clock_zone, at, at_zone, span,
        word, fixed, uid, feeling, both_of, range, numbers, words, exacts, grid, address, bits, cash, spot)
    VALUES
"""


@pytest.fixture(scope="module")
def logical() -> Iterator[PostgresServer]:
    with temporary_postgres(settings={"wal_level": "logical", "max_prepared_transactions": "5"}) as server:
        with connect(server.url()) as admin:
            admin.execute("CREATE DATABASE crosschecked")
        with connect(server.url("crosschecked")) as template:
            install(template)
            template.execute(TABLES)
        yield server


@pytest.fixture
def database(logical: PostgresServer) -> Iterator[str]:
    with fresh_database(logical, template="crosschecked") as url:
        with connect(url) as made:
            made.execute("SELECT forge.current_identity()")
            for table in TRACKED:
                made.execute(
                    "SELECT forge_enable_reactivity(%s, exclude => %s, mask => %s)",
                    (table, *((["secret"], ["card"]) if table == "plain" else ([], []))),
                )
        yield url


def found(report: Report) -> list[tuple[Kind, str, str, Op]]:
    return [(each.kind, each.table.removeprefix("public."), each.key, each.op) for each in report.differences]


async def window(url: str, *work: str, **options: Any) -> Report:
    """The report of a window in which statements are run, each in a transaction of its own."""
    async with asyncio.timeout(30), open_window(url, **options) as opened:
        with connect(url) as writer:
            for statements in work:
                writer.execute(statements.encode())
        return await opened.close()


class Traffic:
    """Random transactions of one writer; the same seed does the same, as far as the others let it."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._url = url

    def run(self, transactions: int) -> None:
        with connect(self._url) as connection:
            connection.execute("SET lock_timeout = '2s'; SET deadlock_timeout = '20ms'")
            for _ in range(transactions):
                try:
                    with connection.transaction(force_rollback=self._random.random() < 0.15):
                        self._work(connection, self._random.randint(1, 6))
                except (psycopg.errors.IntegrityError, psycopg.errors.OperationalError):
                    continue

    def _work(self, connection: Connection, count: int) -> None:
        for _ in range(count):
            if self._random.random() < 0.2:
                try:
                    with connection.transaction(force_rollback=self._random.random() < 0.5):
                        self._work(connection, 2)
                except psycopg.errors.IntegrityError:
                    continue
            else:
                self._statement(connection)

    def _statement(self, connection: Connection) -> None:
        pick, number = self._random.choice, self._random.randint
        a, b, word = number(1, 40), number(1, 40), pick(("x", "y", "long " * 700))
        statement, values = pick(
            (
                ("INSERT INTO plain VALUES (%s, %s, 's', 'c', 1.5) ON CONFLICT (id) DO UPDATE SET total = plain.total + 1",
                 (a, word)),
                ("UPDATE plain SET status = %s, secret = %s WHERE id BETWEEN %s AND %s + 5", (word, word, a, a)),
                ("UPDATE plain SET card = %s WHERE id = %s", (word, a)),
                ("UPDATE plain SET id = %s WHERE id = %s", (b, a)),
                ("DELETE FROM plain WHERE id = %s", (a,)),
                ("INSERT INTO child SELECT %s, id FROM plain LIMIT 1 ON CONFLICT DO NOTHING", (b,)),
                (KINDS + VALUES, (a, pick((True, False, None)))),
                ("UPDATE kinds SET big = repeat(%s::text, 3000), exact = 'Infinity' WHERE id = %s", (word[0], a)),
                ("UPDATE kinds SET yes = NOT yes, doc = 'null' WHERE id = %s", (a,)),
                ("UPDATE kinds SET id = id + 100, single = '-0', numbers = '[0:1]={1,2}' WHERE id = %s", (a,)),
                ("DELETE FROM kinds WHERE id = %s", (a,)),
                ("MERGE INTO whole w USING (SELECT %s::int AS a, 'k'::text AS b) s ON (w.a, w.b) = (s.a, s.b)"
                 " WHEN MATCHED AND w.note = 'old' THEN DELETE WHEN MATCHED THEN UPDATE SET note = 'old'"
                 " WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b, %s)", (a, word)),
                ("UPDATE whole SET a = a + 100 WHERE a < %s", (a,)),
                ("INSERT INTO keyless SELECT n %% 3, %s FROM generate_series(1, %s) n", (word, a)),
                ("UPDATE keyless SET a = a + 1 WHERE a = %s", (a % 5,)),
                ("DELETE FROM keyless WHERE a = %s", (a % 5,)),
                ("INSERT INTO parts VALUES (%s, 'east', 0) ON CONFLICT DO NOTHING", (a,)),
                ("UPDATE parts SET n = n + 1 WHERE id < %s", (a,)),
                ("UPDATE parts SET region = CASE region WHEN 'east' THEN 'west' ELSE 'east' END, n = 7 WHERE id = %s", (a,)),
                ("DELETE FROM parts WHERE id = %s", (a,)),
                *((("TRUNCATE " + pick(("keyless", "plain, child", "kinds", "parts")), ()),) if number(1, 12) == 1 else ()),
            )
        )  # fmt: skip
        connection.execute(statement.encode(), values)


@pytest.mark.parametrize("seed", [1, 2])
async def test_both_feeds_tell_the_same_under_concurrent_traffic(database: str, seed: int) -> None:
    """The window opens and closes while writers are in the middle of it."""
    writers = [asyncio.create_task(asyncio.to_thread(Traffic(database, seed * 10 + n).run, 120)) for n in range(3)]
    async with asyncio.timeout(60), open_window(database) as opened:
        await asyncio.wait(writers[:1])
        report = await opened.close()
    await asyncio.gather(*writers)
    assert [*report.differences] == []
    assert report.equal
    assert report.changes > 300
    assert report.transactions > 30
    assert report.logged > 0
