"""As-of in the lake is as-of in the database, or a refusal, at every recorded instant."""

import random
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.changelog.maintenance import Policy, run_once
from forge.errors import HistoryUnavailable
from forge.history.asof import table_as_of as in_database
from forge.pipeline.asof import lake_as_of, table_as_of
from forge.pipeline.lake import Lake
from forge.pipeline.run import pipeline
from forge.postgres.connection import Connection


def recorded(url: str, connection: Connection) -> datetime:
    """Have an instant recorded, and return it."""
    run_once(url, Policy())
    row = connection.execute("SELECT max(at) FROM forge.instant").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def keys(rows: list[Any]) -> list[int]:
    return sorted(row["id"] for row in rows)


@pytest.mark.timeout(900)
@pytest.mark.contract("T9")
def test_rows_from_before_a_redefinition_are_known_or_refused(
    spark: SparkSession, connection: Connection, database: str, lake: Lake
) -> None:
    """Rows from before tracking, then changes of the whole tables, and only then the first run."""
    connection.execute("SELECT forge.current_identity()")
    for table in ("retyped", "emptied", "plain"):
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name varchar(20))".encode())
        connection.execute(f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 10) i".encode())
        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    dice = random.Random(20)
    instants = [recorded(database, connection)]

    def write(table: str) -> None:
        connection.execute(
            f"INSERT INTO {table} VALUES (%s, 'new') ON CONFLICT (id) DO UPDATE SET name = 'changed'".encode(),
            (dice.randrange(1, 20),),
        )
        connection.execute(f"DELETE FROM {table} WHERE id = %s".encode(), (dice.randrange(1, 40),))

    for number in range(4):
        for table in ("retyped", "emptied", "plain"):
            write(table)
        instants.append(recorded(database, connection))
        if number == 1:
            connection.execute("ALTER TABLE retyped ALTER COLUMN name TYPE text")
            connection.execute("TRUNCATE emptied")
            instants.append(recorded(database, connection))
    with pipeline(spark, database, lake) as running:
        running.once()
    for table in ("retyped", "emptied"):
        write(table)
    instants.append(recorded(database, connection))
    with pipeline(spark, database, lake) as running:
        running.once()

    answered = refused = 0
    for at in instants:
        for table in ("retyped", "emptied", "plain"):
            try:
                found = keys(table_as_of(spark, lake, table, at).collect())
            except HistoryUnavailable:
                refused += 1
                continue
            assert found == keys(in_database(connection, table, at).rows), (table, at)
            answered += 1
    assert answered >= len(instants) + 3, "the plain table at all of them"
    assert refused >= 4, "the others before they were read or emptied"
    early = lake_as_of(spark, lake, instants[1])
    assert set(early) == {"public.plain"}
    assert set(early.left_out) == {"public.retyped", "public.emptied"}
