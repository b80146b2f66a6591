"""A value that does not fit never keeps an older version of its row current."""

import pytest
from pyspark.sql import SparkSession

from forge.pipeline.compare import compare
from forge.pipeline.lake import Lake
from forge.pipeline.run import pipeline
from forge.pipeline.silver.replay import replay
from forge.pipeline.tables import load
from forge.postgres.connection import Connection

TABLE = "public.price"


@pytest.mark.timeout(900)
@pytest.mark.contract("T11")
def test_the_keys_of_misfits_are_applied(
    spark: SparkSession, connection: Connection, database: str, lake: Lake
) -> None:
    def once() -> None:
        with pipeline(spark, database, lake) as running:
            running.once()

    def current() -> dict[int, tuple[object, ...]]:
        rows = load(spark, lake.current(TABLE)).select("id", "price", "note", "_unfit").collect()
        return {row[0]: tuple(row[1:]) for row in rows}

    connection.execute("SELECT forge.current_identity()")
    connection.execute(
        "CREATE TABLE price (id int PRIMARY KEY, price numeric(6, 2), at timestamptz, day date, note text)"
    )
    connection.execute("SELECT forge_enable_reactivity('price')")
    connection.execute("INSERT INTO price SELECT i, 1, '2026-01-01', '2026-01-01', 'old' FROM generate_series(1, 6) i")
    once()
    assert set(current()) == {1, 2, 3, 4, 5, 6}

    connection.execute("UPDATE price SET at = 'infinity', note = 'new' WHERE id = 1")
    connection.execute("UPDATE price SET day = '0044-03-15 BC', at = '-infinity' WHERE id = 2")
    connection.execute("DELETE FROM price WHERE id = 2")
    connection.execute("UPDATE price SET price = 'NaN' WHERE id = 3")
    connection.execute("UPDATE price SET price = 7 WHERE id = 3")
    connection.execute("UPDATE price SET price = 'NaN', day = 'infinity', note = 'both' WHERE id = 4")
    connection.execute("DELETE FROM price WHERE id = 5")
    once()
    found = current()
    assert set(found) == {1, 3, 4, 6}, "deleted rows are gone, though their images do not fit"
    assert found[1] == (1, "new", ["at"])
    assert (float(str(found[3][0])), *found[3][1:]) == (7.0, "old", None)
    assert found[4] == (None, "both", ["day", "price"])
    ends = load(spark, lake.history(TABLE)).where("id = 2").orderBy("_seq").select("_op", "_is_current").collect()
    assert [tuple(row) for row in ends] == [("insert", False), ("update", False), ("delete", False)]

    report = compare(spark, lake, database)
    (table,) = report.tables
    assert (table.database, table.lake, table.differing, table.quarantined) == (4, 4, 0, 2)
    assert table.summary == "2 rows with values that do not fit: 4 rows in the database, 4 in the lake"
    told = sorted(map(str, table.differences))
    assert told[0].startswith("public.price: row 1 has values that do not fit and are in quarantine: at (time out of")
    assert told[1].startswith("public.price: row 4 has values that do not fit and are in quarantine: price, day (")

    before = sorted(map(str, load(spark, lake.history(TABLE)).collect()))
    replay(spark, lake, TABLE)
    assert sorted(map(str, load(spark, lake.history(TABLE)).collect())) == before
    assert current() == found


@pytest.mark.timeout(900)
def test_keys_are_shown_as_people_write_them(
    spark: SparkSession, connection: Connection, database: str, lake: Lake
) -> None:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE price (at timestamptz, id int, note text, PRIMARY KEY (at, id))")
    connection.execute("SELECT forge_enable_reactivity('price')")
    connection.execute("INSERT INTO price VALUES ('2026-01-31 12:00:00.5+00', 7, 'a')")
    with pipeline(spark, database, lake) as running:
        running.once()
    spark.sql(f"UPDATE delta.`{lake.current(TABLE)}` SET note = 'b'")
    (table,) = compare(spark, lake, database).tables
    assert table.summary == "1 row differs: 1 row in the database, 1 in the lake"
    assert [str(each) for each in table.differences] == [
        'public.price: row ["2026-01-31 12:00:00.500000+00:00", "7"] has other values in the lake: note'
    ]
