"""What a SQL text writes."""

import logging

import pytest

from forge.tracking.statements import EVERYTHING, NOTHING, written

WRITES = [
    ("postgresql", "INSERT INTO orders (id) VALUES (%s)", ["insert orders"]),
    ("postgresql", "insert into Shop.Orders values (%(id)s, :x::jsonb)", ["insert shop.orders"]),
    ("postgresql", 'UPDATE "Orders" SET a = 1 FROM other o WHERE o.id = 1', ["update Orders"]),
    ("postgresql", "DELETE FROM ONLY orders USING other WHERE true", ["delete orders"]),
    ("postgresql", "DELETE FROM a; UPDATE b SET x = 1", ["delete a", "update b"]),
    ("postgresql", "BEGIN; DELETE FROM a; COMMIT", ["delete a"]),
    ("postgresql", "WITH d AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM d", ["insert b", "delete a"]),
    ("postgresql", "WITH u AS (UPDATE a SET x = 1 RETURNING *) SELECT * FROM u", ["update a"]),
    (
        "postgresql",
        "MERGE INTO a USING b ON a.id = b.id WHEN MATCHED THEN UPDATE SET x = 1"
        " WHEN NOT MATCHED THEN INSERT (id) VALUES (b.id)",
        ["merge a"],
    ),
    ("postgresql", "INSERT INTO a VALUES (1) ON CONFLICT (id) DO UPDATE SET x = 1", ["insert a"]),
    ("postgresql", "TRUNCATE a, b", ["truncate a", "truncate b"]),
    ("postgresql", "COPY a FROM STDIN", ["insert a"]),
    ("postgresql", "EXPLAIN (ANALYZE) UPDATE a SET x = 1", ["update a"]),
    ("postgresql", "ALTER TABLE a ADD COLUMN b int", ["schema a"]),
    ("postgresql", "DROP TABLE a, b", ["schema a", "schema b"]),
    ("mysql", "REPLACE INTO a VALUES (1)", ["insert a"]),
    ("mysql", "UPDATE a JOIN b ON a.id = b.id SET a.x = 1, b.y = 2", ["update a", "update b"]),
    ("mysql", "DELETE a FROM a JOIN b ON a.id = b.id", ["delete a", "delete b"]),
    ("mysql", "INSERT INTO `odd name`.`c` SET x = 1", ["insert odd name.c"]),
    ("sqlite", "INSERT OR REPLACE INTO a VALUES (?1)", ["insert a"]),
    ("sqlite", "UPDATE OR IGNORE a SET x = 1", ["update a"]),
]
READS = [
    "SELECT 1",
    "(SELECT 'update orders' AS a)",
    "-- update\nSELECT * FROM orders FOR UPDATE",
    "VALUES (1)",
    "SET x = 1",
    "SHOW ALL",
    "BEGIN",
    "SAVEPOINT a",
    "ROLLBACK TO SAVEPOINT a",
    "NOTIFY a, 'delete'",
    "PREPARE q AS DELETE FROM a",
    "COPY a TO STDOUT",
    "VACUUM a",
    "LOCK TABLE a",
    "",
]
OPAQUE = [
    "CALL month_end()",
    "DO $$ BEGIN DELETE FROM a; END $$",
    "EXECUTE q(1)",
    "TRUNCATE a CASCADE",
    "FROB a",
    "UPDATE",
]


@pytest.mark.contract("M5")
@pytest.mark.parametrize(("dialect", "sql", "expected"), WRITES)
def test_writes(dialect: str, sql: str, expected: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sqlglot"):
        found = written(sql, dialect)
    assert [f"{one.verb} {one.schema + '.' if one.schema else ''}{one.table}" for one in found.writes] == expected
    assert not found.everything
    assert not caplog.records


@pytest.mark.contract("M5")
@pytest.mark.parametrize("sql", READS)
def test_reads(sql: str) -> None:
    assert written(sql, "postgresql") == NOTHING


@pytest.mark.contract("M5")
@pytest.mark.parametrize("sql", OPAQUE)
def test_what_nobody_can_tell_writes_everything(sql: str, caplog: pytest.LogCaptureFixture) -> None:
    assert written(sql, "postgresql") == EVERYTHING
    assert not caplog.records


def test_a_count_of_rows_speaks_only_for_one_write() -> None:
    assert written("UPDATE a SET x = 1", "sqlite").countable
    assert not written("UPDATE a SET x = 1; DELETE FROM a", "sqlite").countable
    assert not written("WITH d AS (DELETE FROM a RETURNING *) INSERT INTO b SELECT * FROM d", "postgresql").countable
