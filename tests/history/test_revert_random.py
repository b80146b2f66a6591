"""Random histories: what is reverted is as it was, and reverting the revert brings everything back.

Tables with composite keys, self references, references in a circle, cascades, identity and generated columns; writes of
many rows, changes of keys, deletes that cascade. Whatever is chosen, the answer is either right or refused, and a
refusal changes nothing.
"""

import random

import psycopg
import pytest

from forge.errors import RevertRefused
from forge.history.revert import Choice, revert
from forge.postgres.connection import Connection
from tests.changelog.log import enable

SCHEMA = """
CREATE TABLE region (country text, code int, name text, boss int, PRIMARY KEY (country, code));
CREATE TABLE person (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent int REFERENCES person ON DELETE CASCADE,
    country text, code int, name text NOT NULL, loud text GENERATED ALWAYS AS (upper(name)) STORED,
    prices numeric[], data jsonb, ratio float8,
    FOREIGN KEY (country, code) REFERENCES region ON UPDATE CASCADE ON DELETE SET NULL);
ALTER TABLE region ADD FOREIGN KEY (boss) REFERENCES person ON DELETE SET NULL;
CREATE TABLE item (
    owner int REFERENCES person ON DELETE CASCADE, number int, word text UNIQUE, at timestamptz,
    PRIMARY KEY (owner, number));
"""
TABLES = ("region", "person", "item")


class Traffic:
    """Random writes; those that the database refuses are no part of the history."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self.random = random.Random(seed)
        self.word = 0
        connection.execute("SELECT setseed(%s)", (seed / 1000,))

    def run(self, trace: str) -> None:
        """One transaction."""
        with self.connection.transaction():
            self.connection.execute("SELECT forge_context('ada', 'test', %s)", (trace,))
            for _ in range(self.random.randint(1, 6)):
                try:
                    with self.connection.transaction():
                        self.connection.execute(self.statement().encode())
                except (psycopg.errors.IntegrityError, psycopg.errors.TriggeredDataChangeViolation):
                    continue

    def statement(self) -> str:
        pick = self.random
        person = "(SELECT id FROM person ORDER BY random() LIMIT 1)"
        region = f"'{pick.choice('ab')}', {pick.randint(1, 4)}"
        self.word += 1
        values = (
            "ARRAY[1.50, NULL], '{\"a\": [1, null], \"$json\": 1}', 'NaN'"
            if pick.random() < 0.5
            else "NULL, 'null', -0.0"
        )
        return pick.choice(
            [
                f"INSERT INTO region VALUES ({region}, 'r{self.word}', {person}) ON CONFLICT DO NOTHING",
                f"INSERT INTO person (parent, country, code, name, prices, data, ratio)"
                f" SELECT {person}, r.country, r.code, 'p{self.word}', {values} FROM (VALUES ({region})) v (a, b)"
                " LEFT JOIN region r ON (r.country, r.code) = (v.a, v.b)",
                f"INSERT INTO item SELECT id, {pick.randint(1, 3)}, 'w{self.word}' || id, clock_timestamp()"
                f" FROM person WHERE id % 3 = {pick.randint(0, 2)} ON CONFLICT DO NOTHING",
                f"UPDATE person SET name = name || 'x', ratio = {pick.random()} WHERE id % 2 = {pick.randint(0, 1)}",
                f"UPDATE person SET parent = {person} WHERE id = {person}",
                f"UPDATE region SET code = code + {pick.choice([-3, 5])} WHERE code = {pick.randint(1, 9)}",
                f"UPDATE region SET boss = {person} WHERE country = 'a'",
                f"UPDATE item SET number = number + {pick.randint(3, 9)} WHERE number = {pick.randint(1, 9)}",
                f"UPDATE item SET owner = {person} WHERE number = {pick.randint(1, 3)}",
                f"DELETE FROM person WHERE id = {person}",
                f"DELETE FROM region WHERE code = {pick.randint(1, 9)}",
                f"DELETE FROM item WHERE number = {pick.randint(1, 6)}",
            ]
        )  # fmt: skip


def logged(connection: Connection, trace: str) -> bool:
    row = connection.execute("SELECT count(*) FROM forge_events WHERE trace_id = %s", (trace,)).fetchone()
    return row != (0,)


def state(connection: Connection) -> dict[str, list[str]]:
    return {
        table: [row for (row,) in connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1".encode())]
        for table in TABLES
    }


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute(SCHEMA.encode())
    for table in TABLES:
        enable(connection, table)
    return connection


@pytest.mark.contract("X7")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_undoing_the_newest_and_undoing_that(shop: Connection, seed: int) -> None:
    traffic = Traffic(shop, seed)
    for number in range(8):
        traffic.run(f"old{number}")
    for number in range(5):
        before = state(shop)
        trace = f"new{number}"
        for _ in range(traffic.random.randint(1, 4)):
            traffic.run(trace)
        after = state(shop)
        if not logged(shop, trace):
            assert before == after
            continue
        done = revert(shop, Choice(trace=trace), by="eve")
        assert state(shop) == before
        if done.transaction is None:
            assert before == after
            continue
        again = revert(shop, Choice(transaction=done.transaction))
        assert again.transaction is not None
        assert state(shop) == after


@pytest.mark.every_version
@pytest.mark.contract("X7")
@pytest.mark.parametrize("seed", [101])
def test_undoing_any_is_right_or_refused(shop: Connection, seed: int) -> None:
    traffic = Traffic(shop, seed)
    for number in range(14):
        traffic.run(f"t{number}")
    undone = 0
    for number in traffic.random.sample(range(14), 8):
        before = state(shop)
        try:
            done = revert(shop, Choice(trace=f"t{number}"))
        except RevertRefused:
            assert state(shop) == before
            continue
        if done.transaction is not None:
            undone += 1
            revert(shop, Choice(transaction=done.transaction))
        assert state(shop) == before
    assert undone
