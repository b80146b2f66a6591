"""Lake and database compared: equal when they are, whatever types and traffic, and every difference named."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.errors import HistoryUnavailable, LakeError
from forge.pipeline import bronze
from forge.pipeline.changes import CHANGES
from forge.pipeline.definitions import Definition
from forge.pipeline.lake import Lake
from forge.pipeline.silver import quarantine
from forge.pipeline.silver.rows import quoted, rows
from forge.pipeline.silver.types import Types
from forge.pipeline.tables import load
from forge.pipeline.verify import RowDifference, TableReport, VerifyReport, verify
from forge.pipeline.verify.slices import ByHash, ByRange
from forge.postgres.connection import Connection, connect

pytestmark = pytest.mark.long

ALL_TYPES = """
    create type mood as enum ('sad', 'ok, "fine"');
    create domain positive as integer check (value > 0);
    create type point3 as (x int, y text);
    create table every (
        id bigint primary key, small smallint, whole integer, flag boolean, words text, code uuid, price numeric(12, 2),
        widest numeric(38, 18), tiny numeric(12, 10), free numeric, ratio double precision, single real, bytes bytea,
        doc jsonb, raw json, day date, local timestamp, at timestamptz, clock time, span interval, r int4range,
        feeling mood, n positive, place point3, "ID" integer, "odd ""name"" 100%, s" text, masked text, secret text,
        wholes int[], texts text[], prices numeric(12, 2)[], numbers numeric[], ratios float8[], singles real[],
        blobs bytea[], times timestamptz[], locals timestamp[], days date[], flags boolean[], feelings mood[]
    );
    select forge_enable_reactivity('every', exclude => '{secret}', mask => '{masked}');
"""
VALUES: dict[str, list[str]] = {
    "small": ["-32768", "7"],
    "whole": ["2147483647", "0"],
    "flag": ["true", "false"],
    "words": ["", "a", "é 漢 🐘", "line\nline", 'q"\\,"price":7,{', "null"],
    "code": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "price": ["12.30", "-9999999999.99", "0"],
    "widest": ["0.000000000000000001", "-12345678901234567890.123456789012345678"],
    "tiny": ["0.0000000001", "0", "-1.5"],
    "free": ["NaN", "Infinity", "1.10", "1e40", "123456789012345678901234567890.1234567890123456789"],
    "ratio": ["0", "-0", "NaN", "-Infinity", "0.1", "1e300", "5e-324", "2.2250738585072014e-308", "-123.456", "2e23"],
    "single": ["0.1", "3.4028235e38", "1e-45", "-0", "NaN", "16777217"],
    "bytes": ["", r"\xdeadbeef"],
    "doc": ["null", '"text"', '"1"', "1.10", '{"a": [1, {"price": 12.300}], "id": null}', '{"$json": 1}', "[]", "{}"],
    "raw": ['{"a" :  1.0}', "null", "[1,2]"],
    "day": ["2026-01-31", "0001-01-01", "9999-12-31"],
    "local": ["2026-01-31 12:00:00.123456", "0001-01-01 00:00:00", "2026-03-29 02:30:00.5"],
    "at": ["2026-01-31 12:00:00.1+02", "1582-10-10 00:00:00+00", "9999-12-31 23:59:59.999999+00"],
    "clock": ["24:00:00", "12:00:00.5"],
    "span": ["1 year 2 mons 3 days 04:05:06.7", "-1 day"],
    "r": ["[1,5)", "empty"],
    "feeling": ["sad", 'ok, "fine"'],
    "n": ["5"],
    "place": ['(1,"a,b")'],
    "ID": ["5"],
    'odd "name" 100%, s': ["x", "%s"],
    "masked": ["hidden", "well"],
    "secret": ["s1", "s2"],
    "wholes": ["{}", "{1,null,3}"],
    "texts": ["{}", '{a,null,"[1]","x,\\"y\\"","",NULL}'],
    "prices": ["{1.10,null}", "{}"],
    "numbers": ["{1.10,NaN,1e30,null}", "{Infinity}"],
    "ratios": ["{0,-0,NaN,0.1,null,Infinity}", "{}"],
    "singles": ["{0.1,1e-45,null}"],
    "blobs": [r'{"\\xde","\\x",null}'],
    "times": ['{"2026-01-31 12:00:00.5+02",null}'],
    "locals": ['{"2026-01-31 12:00:00",null}'],
    "days": ["{2026-01-31,null}"],
    "flags": ["{t,f,null}"],
    "feelings": ["{sad,null}"],
}


class Kept:
    """A database, and a lake that is made of it by hand."""

    def __init__(self, spark: SparkSession, lake: Lake, url: str, connection: Connection) -> None:
        self.spark = spark
        self.lake = lake
        self.url = url
        self.connection = connection
        self.snapshot = ""

    def definition(self, table: str) -> Definition:
        ids = self.connection.execute(
            "SELECT array_agg(id) FROM forge.table_version WHERE table_name = %s", (table,)
        ).fetchone()
        assert ids is not None
        known = bronze.learn(self.spark, self.lake, self.connection, bronze.definitions(self.spark, self.lake), ids[0])
        return max((each for each in known.values() if each.table == table), key=lambda each: each.version)

    def fill(self, table: str, types: Types | None = None) -> None:
        """Make the lake what the table is now."""
        definition = self.definition(table)
        changes = self.connection.execute(
            "SELECT lpad(l.id::text, 20, '0'), l.op::text, l.before::text, l.after::text FROM forge.forge_event_log l"
            " JOIN forge.table_version v ON v.id = l.version"
            " WHERE v.table_name = %s AND l.op IN ('I', 'U', 'D') ORDER BY l.id",
            (table,),
        ).fetchall()
        self.snapshot = self._one("SELECT pg_current_snapshot()::text")
        ops = {"I": "insert", "U": "update", "D": "delete"}
        frame = self.spark.createDataFrame(
            [
                (
                    seq, f"log:{seq}", ops[op], "public", table, definition.version, None, before, after, None,
                    datetime(2026, 1, 31, tzinfo=UTC), 1, None, None, None, None, "app", "tests",
                )
                for seq, op, before, after in changes
            ],
            CHANGES,
        )  # fmt: skip
        read = rows(frame, {definition.version: definition}, definition, types)
        last = F.max_by("_op", "_seq")
        key = [quoted(name) for name in definition.key]
        kept = read.fitting
        if key:
            gone = (
                read.fitting.groupBy(*key)
                .agg(last.alias("last"), F.max("_seq").alias("_seq"))
                .where("last <> 'delete'")
            )
            kept = read.fitting.join(gone.select("_seq"), "_seq", "left_semi")
        self.write(table, kept)
        quarantine.append(self.spark, self.lake, read.misfits, "tests", 1)

    def write(self, table: str, frame: DataFrame) -> None:
        named = frame.drop("_missing").withColumnRenamed("_at", "_changed_at").coalesce(1)
        writer = named.write.format("delta").mode("overwrite").option("delta.columnMapping.mode", "name")
        writer.save(self.lake.current(f"public.{table}"))

    def current(self, table: str) -> DataFrame:
        frame = load(self.spark, self.lake.current(f"public.{table}"))
        return self.spark.createDataFrame(frame.collect(), frame.schema)

    def verify(self, *tables: str, slices: int = 8) -> VerifyReport:
        return verify(self.spark, self.lake, self.url, tables or None, snapshot=self.snapshot, slices=slices)

    def _one(self, statement: str) -> str:
        row = self.connection.execute(statement.encode()).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def kept(spark: SparkSession, lake: Lake, database: str, connection: Connection) -> Kept:
    connection.execute("SELECT forge.current_identity()")
    return Kept(spark, lake, database, connection)


def only(report: VerifyReport) -> TableReport:
    assert len(report.tables) == 1
    return report.tables[0]


def fill_every(connection: Connection) -> int:
    """A row for each value, one with all first values, and one with none."""
    connection.execute(ALL_TYPES.encode())
    number = 0
    for name, values in VALUES.items():
        for value in values:
            number += 1
            connection.execute(
                f'INSERT INTO every (id, "{name.replace(chr(34), 2 * chr(34))}") VALUES (%s, %s)'.replace(
                    "100%", "100%%"
                ).encode(),
                (number, value),
            )
    connection.execute("INSERT INTO every (id) VALUES (-9223372036854775808), (9223372036854775807)")
    return number + 2


@pytest.mark.contract("X8")
def test_values_of_all_types_are_equal_and_a_difference_in_any_column_is_named(kept: Kept) -> None:
    count = fill_every(kept.connection)
    kept.fill("every")
    report = only(kept.verify())
    assert report.equal, report
    assert (report.database, report.lake, report.left_out) == (count, count, ())
    # In the row of a column's last value the lake gets another one.
    ids = {}
    number = 0
    for name, values in VALUES.items():
        number += len(values)
        ids[name] = number
    frame = kept.current("every")
    other = {
        field.name: F.when(F.col("id") != id, F.col(quoted(field.name)))
        for field in frame.schema
        for name, id in ids.items()
        if field.name == {"ID": "ID_"}.get(name, name)
    }
    assert len(other) == len(VALUES) - 1, "all but the one that is excluded"
    kept.write("every", frame.withColumns(other))
    report = only(kept.verify())
    assert (report.differing, report.changed, report.missing, report.extra) == (len(other), len(other), 0, 0)
    assert all(difference.kind == "changed" for difference in report.differences)
    assert len(report.differences) == 20
    by_row = {id: name for name, id in ids.items()}
    for difference in report.differences:
        assert difference.columns == (by_row[int(difference.key)],)


@pytest.mark.contract("X8")
def test_rows_that_one_side_lacks_are_named_and_counted(kept: Kept) -> None:
    kept.connection.execute("CREATE TABLE line (code text, n numeric(6, 2), note text, primary key (n, code))")
    kept.connection.execute("SELECT forge_enable_reactivity('line')")
    kept.connection.execute("INSERT INTO line SELECT 'c\"' || i, i / 4.0, 'note' FROM generate_series(1, 60) i")
    kept.fill("line")
    assert kept.verify().equal
    frame = kept.current("line")
    less = frame.where("n > 10")
    more = frame.where("n = 1").withColumn("code", F.lit("new"))
    changed = less.withColumn("note", F.when(F.col("n") != 15, F.col("note")).otherwise("other"))
    kept.write("line", changed.unionByName(more))
    report = only(kept.verify("line"))
    assert not report.equal
    assert (report.database, report.lake) == (60, 21)
    assert (report.missing, report.extra, report.changed, report.differing) == (40, 1, 1, 42)
    assert len(report.differences) == 20
    wide = only(verify(kept.spark, kept.lake, kept.url, ["public.line"], snapshot=kept.snapshot, slices=1))
    assert (wide.missing, wide.extra, wide.changed) == (40, 1, 1)


def test_traffic_after_the_snapshot_makes_no_difference(kept: Kept) -> None:
    kept.connection.execute("CREATE TABLE account (id int primary key, balance bigint, at timestamptz default now())")
    kept.connection.execute("CREATE TABLE pile (what text, n int)")
    for table in ("account", "pile"):
        kept.connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    kept.connection.execute("INSERT INTO account SELECT i, 100 FROM generate_series(1, 200) i")
    kept.connection.execute("INSERT INTO pile SELECT 'same', i / 3 FROM generate_series(1, 30) i")
    kept.connection.execute("UPDATE pile SET what = 'new' WHERE n = 3")
    kept.connection.execute("DELETE FROM pile WHERE n = 4")
    kept.fill("account")
    first = kept.snapshot
    kept.connection.execute("UPDATE account SET balance = 1 WHERE id < 50")
    with writing(kept.url) as written:
        for _ in range(3):
            report = verify(kept.spark, kept.lake, kept.url, ["account"], snapshot=first)
            assert report.equal, report
    assert written[0] > 0
    assert not verify(
        kept.spark, kept.lake, kept.url, ["account"], snapshot=kept._one("SELECT pg_current_snapshot()")
    ).equal


@contextmanager
def writing(url: str) -> Iterator[list[int]]:
    """Somebody who changes, adds and removes rows all the time; how often they did."""
    over, done = threading.Event(), [0]

    def write() -> None:
        with connect(url) as connection:
            while not over.is_set():
                connection.execute("UPDATE account SET balance = balance + 1 WHERE mod(id, 7) = %s", (done[0] % 7,))
                connection.execute("INSERT INTO account VALUES (%s, 1)", (1000 + done[0],))
                connection.execute("DELETE FROM account WHERE id = %s", (done[0] % 200,))
                done[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def test_equal_rows_of_a_table_without_a_key_are_counted(kept: Kept) -> None:
    kept.connection.execute("CREATE TABLE pile (what text, n int)")
    kept.connection.execute("SELECT forge_enable_reactivity('pile')")
    kept.connection.execute("INSERT INTO pile SELECT 'same', i / 3 FROM generate_series(1, 30) i")
    kept.fill("pile")
    kept.connection.execute("INSERT INTO pile VALUES ('later', 1)")
    kept.connection.execute("DELETE FROM pile WHERE n = 5")
    assert kept.verify().equal
    frame = kept.current("pile")
    doubled = frame.where("n = 7")
    kept.write("pile", frame.where("n <> 2").unionByName(doubled))
    report = only(kept.verify())
    assert (report.missing, report.extra, report.changed) == (3, 3, 0)
    assert {difference.kind for difference in report.differences} == {"missing", "extra"}
    assert len({difference.key for difference in report.differences}) == 2


def test_rows_in_quarantine_are_said_to_be_there(kept: Kept) -> None:
    kept.connection.execute("CREATE TABLE price (id int primary key, price numeric(6, 2), at timestamptz)")
    kept.connection.execute("CREATE TABLE heap (price numeric(6, 2))")
    for table in ("price", "heap"):
        kept.connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    kept.connection.execute("INSERT INTO price VALUES (1, 1), (2, 2), (3, 3), (4, 'NaN'), (5, 5), (6, 'NaN')")
    kept.connection.execute("UPDATE price SET at = 'infinity' WHERE id = 2")
    kept.connection.execute("UPDATE price SET at = '0044-03-15 BC' WHERE id = 6")
    kept.connection.execute("UPDATE price SET price = 'NaN' WHERE id = 5")
    kept.connection.execute("UPDATE price SET price = 5 WHERE id = 5")
    kept.connection.execute("INSERT INTO heap VALUES (1), ('NaN'), ('NaN')")
    kept.fill("price")
    kept.fill("heap")
    report = {table.table: table for table in kept.verify().tables}
    prices = report["public.price"]
    assert (prices.differing, prices.quarantined) == (0, 3)
    assert not prices.equal
    assert [(each.key, each.kind) for each in sorted(prices.differences, key=lambda each: each.key)] == [
        ("2", "quarantined"),
        ("4", "quarantined"),
        ("6", "quarantined"),
    ]
    heap = report["public.heap"]
    assert (heap.database, heap.lake, heap.differing, heap.quarantined) == (3, 1, 0, 2)
    # A row that was in quarantine once is no excuse.
    kept.write("price", kept.current("price").where("id <> 5"))
    assert (only(kept.verify("price")).missing, only(kept.verify("price")).quarantined) == (1, 3)


def test_what_cannot_be_told_is_said(kept: Kept) -> None:
    kept.connection.execute("CREATE TABLE t (id int primary key)")
    kept.snapshot = kept._one("SELECT pg_current_snapshot()")
    with pytest.raises(LakeError, match="not tracked"):
        kept.verify("t")
    kept.connection.execute("SELECT forge_enable_reactivity('t')")
    kept.connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(LakeError, match="lake has no table"):
        kept.verify("t")
    kept.fill("t")
    assert kept.verify("t").equal
    kept.connection.execute("TRUNCATE t")
    with pytest.raises(HistoryUnavailable, match="truncated"):
        kept.verify("t")
    kept.connection.execute("INSERT INTO t VALUES (1)")
    kept.snapshot = kept._one("SELECT pg_current_snapshot()")
    assert kept.verify("t").equal
    kept.connection.execute("ALTER TABLE t ADD COLUMN more int")
    kept.connection.execute("INSERT INTO t VALUES (2, 2)")
    with pytest.raises(HistoryUnavailable, match="defined again"):
        kept.verify("t")


def test_slices_are_the_same_on_both_sides(spark: SparkSession, connection: Connection) -> None:
    keys = [-(2**63), -1, 0, 1, 63, 64, 1000, 2**63 - 1]
    frame = spark.createDataFrame([(key,) for key in keys], "key long")
    for division in (
        ByRange.over(-5, 1000, 10),
        ByRange.over(-(2**63), 2**63 - 1, 64),
        ByRange.over(7, 7, 64),
        ByHash(64),
    ):
        found = [
            row[0]
            for row in frame.orderBy("key")
            .select(division.slice(F.abs(F.hash("key")).cast("long"), F.col("key")))
            .collect()
        ]
        if isinstance(division, ByRange):
            statement = (
                f"SELECT {division.sql_slice('0', 'k')} FROM unnest(%s::bigint[]) WITH ORDINALITY u (k, n) ORDER BY n"
            )
            assert found == [row[0] for row in connection.execute(statement.encode(), (keys,))]
            for key, slice in zip(keys, found, strict=True):
                low, high = division.range([slice])
                assert low is None or low <= key
                assert high is None or key < high
        assert all(0 <= slice <= 64 for slice in found)


def test_a_difference_is_said_in_a_line() -> None:
    assert str(RowDifference("public.t", "7", "missing")) == "public.t: row 7 is in the database and not in the lake"
