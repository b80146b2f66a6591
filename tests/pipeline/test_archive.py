"""Archives on Spark: files of every kind become the rows that the stream gives, and no line stops the others."""

import asyncio
import gzip
import json
import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from forge import debezium, transaction, wire
from forge.change import Change, same
from forge.changelog.reader import Batch, Reader
from forge.cli.tail import as_json
from forge.cursor import Snapshot
from forge.errors import DecodeError
from forge.pipeline import archive
from forge.pipeline.archive import Archive
from forge.pipeline.archive.images import document
from forge.pipeline.changes import BRONZE, CHANGES
from forge.pipeline.definitions import Definition, decode
from forge.pipeline.lake import Lake
from forge.pipeline.source.options import StreamOptions
from forge.pipeline.source.planner import Planner
from forge.pipeline.source.reading import StreamScope, read
from forge.pipeline.tables import append_once, load
from forge.postgres.connection import Connection
from forge.values import Column, Images
from tests.changelog.log import enable
from tests.pipeline.test_archive_lines import POSTGRES, change, event, field, wrapped

WIDE = """
create table wide (
    id bigint primary key, b boolean, s smallint, n numeric, p numeric(10, 2), f double precision, r real, t text,
    raw bytea, doc jsonb, old json, d date, ts timestamp, tz timestamptz, tm time, i interval, u uuid,
    ia int[], na numeric[], ra real[], fa double precision[], ba bytea[], ta text[], ja jsonb[], rg int4range,
    secret text, card text, dom age, dop price, o oid, bp char(3), vc varchar(9), m money, bt bit(3), ip inet
)"""
VALUES = r"""
insert into wide values
 (9007199254740993, true, 7, 12.30, 12.30, 0, 16777216, E'a"b\\c\n\x1f\x7fé,"p":', '\xdeadbeef',
  '{"b": [1, 2.50, {"a": null}], "$x": "y"}', '{"a":1,"a":2}', '2026-01-31', '2026-01-31 12:00:00.5',
  '2026-01-31 12:00:00.5+02', '12:00:00.25', '1 mon 2 days', '6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11',
  '{{1,2},{3,null}}', '{1.10,NaN}', '{1234567,-0,0.1}', '{1e15,Infinity,0}', '{"\\xde"}', '{a,null,"b,\"c"}',
  '{"{\"a\": 1}"}', '[1,5)', 'top', '4242', 7, 1.5, 4294967295, 'a', 'b', 1.5, '101', '::1');
insert into wide values
 (2, false, -1, 'NaN', null, 'NaN', '-0', '', '', 'null', 'null', 'infinity', '-infinity', '0044-03-15 BC', '24:00:00',
  '-1 sec', null, '[0:1]={7,8}', '{}', null, '{}', null, '{}', null, 'empty');
insert into wide values
 (3, null, null, 123456789012345678901234567890.123456789, 0.01, 1e-7, 1e-5, '12', null, '{"$json": 1}', '7',
  null)"""


@pytest.fixture
def shop(connection: Connection) -> Connection:
    """Changes of every kind, by writers who say who they are and by others."""
    connection.execute("select forge.current_identity()")
    connection.execute("create table tally (n int, what text)")
    connection.execute("create domain age as int; create domain price as numeric(4, 1)")
    connection.execute(WIDE)
    enable(connection, "wide", exclude=["secret"], mask=["card"])
    enable(connection, "tally")
    connection.execute(VALUES.encode())
    with transaction(connection, user_id="ada", function_name="checkout", trace_id="3f2a", order=118):
        connection.execute("update wide set p = p + 1, secret = 'other', fa = '{2.5}' where id > 2")
        connection.execute("insert into tally values (1, 'a'), (1, 'a'), (2, null)")
        connection.execute("update tally set what = 'b' where n = 2")
    connection.execute("delete from wide where id = 2")
    connection.execute("delete from tally where n = 1")
    connection.execute("update wide set id = 4 where id = 3")
    connection.execute("truncate tally")
    connection.execute("alter table tally add more date")
    connection.execute("insert into tally values (5, 'e', '2026-01-31')")
    return connection


def followed(url: str) -> list[Batch]:
    async def read() -> list[Batch]:
        async with Reader.open(url) as reader:
            return [batch async for batch in reader.read(reader.start())]

    return asyncio.run(read())


def streamed(url: str) -> tuple[list[dict[str, Any]], list[Snapshot]]:
    """The changes as the stream gives them, and the snapshots that it took."""
    planner = Planner(StreamOptions(url, start="history"))
    scope = StreamScope(url, planner.identity.uuid, planner.first_id, None)
    offset, rows, taken = planner.initial(), [], {}
    try:
        while (following := planner.next(offset, None)) != offset:
            offset = following
            for piece in offset.pieces:
                rows += [row for batch in read(scope, piece) for row in batch.to_pylist()]
                if not hasattr(piece, "since"):
                    taken[piece.generation] = Snapshot.parse(piece.snapshot)
    finally:
        planner.close()
    return [row for row in rows if row["op"] not in ("read", "snapshot")], [taken[each] for each in sorted(taken)]


def definitions(connection: Connection) -> list[Definition]:
    rows = connection.execute("select id, schema_name, table_name, columns::text, key_columns from forge.table_version")
    return [
        Definition(version, schema, table, decode(columns), tuple(key))
        for version, schema, table, columns, key in rows.fetchall()
    ]


def collected(found: Archive) -> dict[str, Row]:
    rows = found.changes.collect()
    assert found.changes.schema == CHANGES
    return {row["id"]: row for row in rows}


def refusals(found: Archive) -> list[tuple[str, str]]:
    return sorted((row["line"], row["reason"]) for row in found.refused.collect())


def test_an_archive_of_the_log_gives_what_the_stream_gives(
    spark: SparkSession, database: str, shop: Connection, tmp_path: Path
) -> None:
    batches = followed(database)
    pairs = [pair for batch in batches for pair in zip(batch.changes, batch.columns, strict=True)]
    cursor = batches[-1].cursor
    lines = [as_json(change, cursor, columns) for change, columns in pairs]
    (tmp_path / "a b[1].jsonl").write_text("\n".join(lines[:6]), "utf-8")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[6:9]).encode()))
    with pa.OSFile(str(tmp_path / "c.jsonl.zst"), "wb") as file, pa.CompressedOutputStream(file, "zstd") as packed:
        packed.write("\n".join([*lines[9:], lines[0]]).encode())
    stream, taken = streamed(database)
    known = definitions(shop)

    found = archive.read(spark, str(tmp_path), definitions=known, generations=taken)
    rows = found.changes.collect()
    assert found.changes.schema == CHANGES
    assert (found.definitions, refusals(found)) == ([], [])
    assert len(rows) == len(stream) + 1  # one line is there twice
    by_id = {row["id"]: row.asDict() for row in rows}
    assert found.days == (min(row["at"] for row in stream).date(), max(row["at"] for row in stream).date())
    assert len(taken) > 1  # the ALTER TABLE began a generation
    images = {each.version: Images(each.columns, each.key) for each in known}
    newest = {each.table: each.version for each in sorted(known, key=lambda each: each.version)}
    for expected in stream:
        row = by_id.pop(expected["id"])
        context, expected_context = row.pop("context"), expected.pop("context")
        before, expected_before = row.pop("before"), expected.pop("before")
        row["at"], expected["at"] = row["at"].timestamp(), expected["at"].timestamp()
        if row["op"] in ("truncate", "schema"):  # no row tells under which definition they were written
            expected["version"] = newest[row["table"]]
        assert row == expected
        assert json.loads(context or "null") == json.loads(expected_context or "null")
        assert (before is None) == (expected_before is None)
        if before is not None:
            read = images[row["version"]]
            whole = read.row(row["after"] or before) | read.partial(expected_before)
            assert same(read.row(before), whole)
    assert not by_id


def test_without_definitions_they_are_inferred_alike_each_time(
    spark: SparkSession, database: str, shop: Connection, tmp_path: Path
) -> None:
    changes = [change for batch in followed(database) for change in batch.changes]
    half = len(changes) // 2
    for name, part in (("a", changes[:half]), ("b", changes[half:])):
        (tmp_path / name).write_bytes(b"\n".join(map(wire.encode, part)))
    found = archive.read(spark, [str(tmp_path / "a"), str(tmp_path / "b")])
    whole = tmp_path / "whole"
    whole.write_bytes(b"\n".join(map(wire.encode, reversed(changes))))
    assert archive.read(spark, str(whole)).definitions == found.definitions

    assert [(each.name, each.key) for each in found.definitions] == [("public.tally", ()), ("public.wide", ("id",))]
    types = {column.name: (column.type, column.kind) for column in found.definitions[1].columns}
    names = ("id", "b", "n", "f", "t", "raw", "doc", "secret", "fa")
    assert [types[name][0] for name in names] == [
        "bigint", "boolean", "numeric", "double precision", "text", "bytea", "json", "text", "double precision[]",
    ]  # fmt: skip
    assert types["secret"] == ("text", "hidden")
    assert [column.name for column in found.definitions[0].columns] == ["n", "what", "more"]
    rows = collected(found)
    readers = {each.version: Images(each.columns, each.key) for each in found.definitions}
    for each in changes:
        row = rows.pop(each.id)
        assert (row["op"], row["table"], row["version"] in readers) == (each.op.value, each.table, True)
        for image, original in ((row["before"], each.before), (row["after"], each.after)):
            assert (image is None) == (original is None)
            if original is not None:
                back = readers[row["version"]].row(image)
                texts = [column.name for column in readers[row["version"]].columns if column.type == "json"]
                expected = {
                    name: document(value) if name in texts and value is not None else value
                    for name, value in original.items()
                }
                assert same({name: back[name] for name in original}, expected)
    assert not rows


def test_debezium_and_hostile_lines_and_parquet_in_one_folder(spark: SparkSession, tmp_path: Path) -> None:
    columns = (Column("id", "bigint"), Column("p", "numeric(10,2)", "numeric"), Column("d", "date"))
    known = Definition(3, "public", "t", columns, ("id",))
    by_forge = debezium.encode(change(after={"id": 1, "p": 1, "d": "2026-01-31"}), columns=columns)
    assert by_forge is not None
    fields = [field("id", "int64"), field("at", "int64", "io.debezium.time.MicroTimestamp")]
    good = [
        by_forge.decode(),
        "",
        "null",
        json.dumps(event("u", POSTGRES | {"lsn": 7}, before=None, after={"id": 1, "p": "BM4=", "d": 0})),
        json.dumps({"key": {"id": 1}, "value": None}),
        json.dumps(
            {
                "key": {"id": 5},
                "value": wrapped(fields, event(source=POSTGRES | {"table": "w"}, after={"id": 5, "at": 1})),
            }
        ),
    ]
    bad = [b"{", b"\xff\xfe", b"[" * 100_000, json.dumps(event("m")).encode(), b'"' + b"x" * 300_000 + b'"']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*(line.encode() for line in good), *bad]))
    message = event("d", POSTGRES | {"lsn": 9}, before={"id": 1, "p": None, "d": None})
    frame = spark.createDataFrame([('{"id":1}', json.dumps(message)), ('{"id":1}', None)], "key string, value string")
    frame.coalesce(1).write.parquet(str(tmp_path / "messages"))

    found = archive.read(spark, str(tmp_path), definitions=[known], longest=200_000)
    rows = sorted(found.changes.collect(), key=lambda row: row["seq"])
    assert [(row["table"], row["op"], row["row_id"], row["after"]) for row in rows] == [
        ("t", "insert", "1", '{"id":1,"p":1,"d":"2026-01-31"}'),
        ("t", "update", "1", '{"id":1,"p":12.30,"d":"1970-01-01"}'),
        ("t", "delete", "1", None),
        ("w", "insert", "5", '{"id":5,"at":"1970-01-01T00:00:00.000001"}'),
    ]
    assert [row["version"] for row in rows[:3]] == [3, 3, 3]
    [inferred] = found.definitions
    assert (inferred.version, inferred.key) == (rows[3]["version"], ("id",))
    assert inferred.columns[1] == Column("at", "timestamp without time zone")
    reasons = refusals(found)
    assert len(reasons) == len(bad)
    assert all(len(line) <= 1000 for line, _ in reasons)
    assert sum("too long" in reason for _, reason in reasons) == 1
    with pytest.raises(DecodeError, match=r"^file:.*a\.jsonl, line 7: "):
        archive.read(spark, str(tmp_path), definitions=[known], strict=True)
    assert found.days == (date(2026, 1, 31), date(2026, 1, 31))


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    def write(*changes: Change, name: str = "a.jsonl") -> str:
        path = tmp_path / "archive" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\n".join(map(wire.encode, changes)))
        return str(path.parent)

    return write


def test_the_same_files_are_imported_once_and_the_same_changes_too(
    spark: SparkSession, lake: Lake, lines: Callable[..., str]
) -> None:
    one, two, three = (change(id=f"log:{number}", after={"id": number}) for number in (1, 2, 3))

    def append(changes: DataFrame, id: str) -> None:
        rows = changes.withColumns({"day": F.to_date("at"), "batch": F.lit(0).cast("long")}).select(*BRONZE.names)
        append_once(rows, lake.changes, id, 0, "day")

    path = lines(one, two)
    first = archive.read(spark, path)
    for id in (first.id, archive.import_id(spark, path)):
        append(first.changes, id)
    lines(two, three, three, name="b.jsonl")
    second = archive.read(spark, path)
    append(second.unseen(load(spark, lake.changes)), second.id)
    assert sorted(row["id"] for row in load(spark, lake.changes).collect()) == ["log:1", "log:2", "log:3"]
    with pytest.raises(DecodeError, match="is a Delta table"):
        archive.read(spark, lake.changes)


def test_files_that_changed_are_another_import(spark: SparkSession, lines: Callable[..., str]) -> None:
    path = lines(change())
    before = archive.import_id(spark, path)
    assert archive.import_id(spark, [f"{path}/*.jsonl"]) == before
    os.utime(f"{path}/a.jsonl", (1, 1))
    assert archive.import_id(spark, path) != before
    with pytest.raises(DecodeError, match="there is nothing in"):
        archive.read(spark, f"{path}/nothing")


def test_a_copy_of_bronze_is_taken_as_it_is(spark: SparkSession, lines: Callable[..., str], tmp_path: Path) -> None:
    known = Definition(3, "public", "t", (Column("id", "bigint"),), ("id",))
    original = archive.read(spark, lines(change()), definitions=[known])
    row = original.changes.first()
    assert row is not None
    wrong: list[dict[str, Any]] = [
        {"version": 4},
        {"op": "upsert"},
        {"seq": "x"},
        {"op": "snapshot", "seq": "0002", "row_id": None},
    ]
    rows = [Row(**row.asDict() | changed) for changed in ({}, *wrong)]
    copy = str(tmp_path / "copy")
    spark.createDataFrame(rows, CHANGES).coalesce(1).write.parquet(copy)
    found = archive.read(spark, copy, definitions=[known])
    assert sorted(found.changes.collect(), key=lambda row: row["op"]) == [row, rows[-1]]
    assert found.changes.schema == CHANGES
    assert sorted(reason for _, reason in refusals(found)) == [
        "an unknown operation", "it names a definition that was not given", "its seq says no order",
    ]  # fmt: skip
    assert found.days == original.days
    with pytest.raises(DecodeError, match=r"part-.*\.parquet: "):
        archive.read(spark, copy, definitions=[known], strict=True)
    spark.range(1).write.parquet(str(tmp_path / "other"))
    with pytest.raises(DecodeError, match="columns id"):
        archive.read(spark, str(tmp_path / "other"))
