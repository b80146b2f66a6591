"""Every type: the binary log and a snapshot give the same value, and it is the one that was written."""

import json
import math
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pytest

from forge.capture.source import SourceBatch
from forge.change import JSON_NULL, Change, Op, same
from forge.debezium import decode, encode
from forge.testing.mariadb import connect_mariadb, run
from tests.capture.mysql.reading import batches, changes, snapshot, source

pytestmark = pytest.mark.contract("W5")

Case = tuple[str, str, Any]

NUMBERS: list[Case] = [
    ("tinyint", "-128", -128),
    ("tinyint unsigned", "255", 255),
    ("smallint", "-32768", -32768),
    ("smallint unsigned", "65535", 65535),
    ("mediumint", "-8388608", -8388608),
    ("mediumint unsigned", "16777215", 16777215),
    ("int", "-2147483648", -2147483648),
    ("int unsigned", "4294967295", 4294967295),
    ("bigint", "-9223372036854775808", -9223372036854775808),
    ("bigint unsigned", "18446744073709551615", 18446744073709551615),
    ("int unsigned zerofill", "7", 7),
    ("boolean", "true", 1),
    ("decimal(10,2)", "-12345678.90", Decimal("-12345678.90")),
    ("decimal(65,30)", "'-" + "9" * 35 + "." + "8" * 30 + "'", Decimal("-" + "9" * 35 + "." + "8" * 30)),
    ("decimal(5,0)", "-1", Decimal("-1")),
    ("decimal(4,4)", "0.0001", Decimal("0.0001")),
    ("decimal(18,9) unsigned", "123456789.000000001", Decimal("123456789.000000001")),
    ("decimal(20,3)", "0", Decimal("0.000")),
    ("float", "0.1", 0.1),
    ("float", "16777217", 16777216.0),
    ("float", "-3.4028234e38", -3.4028235e38),
    ("double", "0.30000000000000004", 0.30000000000000004),
    ("double", "-1e-300", -1e-300),
    ("bit(1)", "b'1'", "1"),
    ("bit(10)", "b'1000000101'", "1000000101"),
    ("bit(64)", "b'" + "10" * 32 + "'", "10" * 32),
]
TIMES: list[Case] = [
    ("year", "2026", 2026),
    ("year", "0", 0),
    ("date", "'2026-01-31'", "2026-01-31"),
    ("date", "'0000-00-00'", "0000-00-00"),
    ("date", "'2026-00-00'", "2026-00-00"),
    ("date", "'9999-12-31'", "9999-12-31"),
    ("time", "'-838:59:59'", "-838:59:59"),
    ("time", "'838:59:59'", "838:59:59"),
    ("time(1)", "'-00:00:00.5'", "-00:00:00.5"),
    ("time(3)", "'12:34:56.700'", "12:34:56.7"),
    ("time(6)", "'-01:02:03.000004'", "-01:02:03.000004"),
    ("time", "'00:00:00'", "00:00:00"),
    ("datetime", "'2026-01-31 12:00:00'", "2026-01-31T12:00:00"),
    ("datetime", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00"),
    ("datetime(2)", "'1000-01-01 00:00:00.50'", "1000-01-01T00:00:00.5"),
    ("datetime(4)", "'2026-01-31 23:59:59.1234'", "2026-01-31T23:59:59.1234"),
    ("datetime(6)", "'9999-12-31 23:59:59.999999'", "9999-12-31T23:59:59.999999"),
    ("timestamp null", "'2026-01-31 12:00:00'", "2026-01-31T10:00:00+00:00"),
    ("timestamp(6) null", "'2026-07-31 12:00:00.000001'", "2026-07-31T10:00:00.000001+00:00"),
    ("timestamp(3) null", "'1970-01-01 02:00:01.25'", "1970-01-01T00:00:01.25+00:00"),
    ("timestamp null", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00+00:00"),
]
TEXTS: list[Case] = [
    ("char(5)", "'ab'", "ab"),
    ("char(255)", "'é€😀'", "é€😀"),
    ("varchar(10)", "''", ""),
    ("varchar(10)", "'ab  '", "ab  "),
    ("varchar(300)", "repeat('é', 300)", "é" * 300),
    ("varchar(5) character set latin1", "'é€'", "é€"),
    ("char(5) character set latin2", "'łż'", "łż"),
    ("varchar(5) character set ucs2", "'é€'", "é€"),
    ("varchar(5) character set utf16", "'é😀'", "é😀"),
    ("varchar(5) character set utf32", "'é😀'", "é😀"),
    ("varchar(5) character set cp1251", "'Жы'", "Жы"),
    ("varchar(5) character set koi8r", "'Жы'", "Жы"),
    ("varchar(5) character set sjis", "'日本'", "日本"),
    ("varchar(5) character set gbk", "'中文'", "中文"),
    ("varchar(5) character set big5", "'中文'", "中文"),
    ("varchar(5) character set euckr", "'한글'", "한글"),
    ("varchar(5) character set armscii8", "'Ա'", "Ա"),
    ("varchar(5) collate utf8mb4_bin", "'Aa'", "Aa"),
    ("tinytext", "'tiny'", "tiny"),
    ("text", "repeat('x', 65535)", "x" * 65535),
    ("mediumtext", "'é'", "é"),
    ("longtext", "'long'", "long"),
    ("enum('a','it''s','ß')", "'it''s'", "it's"),
    ("enum('a','b')", "''", ""),
    ("enum('ä','ö') character set latin1", "'ö'", "ö"),
    ("set('a','b','c')", "'c,a'", "a,c"),
    ("set('a','b','c')", "''", ""),
    ("set('" + "','".join(f"v{n}" for n in range(64)) + "')", "'v63,v0'", "v0,v63"),
]
BYTES: list[Case] = [
    ("binary(4)", "x'6100'", b"a\0\0\0"),
    ("binary(4)", "x''", b"\0\0\0\0"),
    ("varbinary(300)", "x'00ff'", b"\0\xff"),
    ("tinyblob", "x'00'", b"\0"),
    ("blob", "repeat(x'ff', 1000)", b"\xff" * 1000),
    ("longblob", "x''", b""),
    ("point", "st_geomfromtext('POINT(1 2)')", bytes(4) + bytes.fromhex("0101000000000000000000f03f0000000000000040")),
]
ENUM_OF_MANY = ("enum('" + "','".join(f"v{n}" for n in range(300)) + "')", "'v299'", "v299")
CASES = [*NUMBERS, *TIMES, *TEXTS, *BYTES, ENUM_OF_MANY]


def write(url: str, columns: list[str], values: list[str]) -> None:
    """Two rows: the values, and nothing but nulls; the writer's session is neither in UTC nor strict."""
    definition = ", ".join(f"c{number} {type}" for number, type in enumerate(columns))
    connection = connect_mariadb(url)
    with connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+02:00'")
        cursor.execute(f"CREATE TABLE t (id int PRIMARY KEY, {definition}) ROW_FORMAT=DYNAMIC")
        cursor.execute(f"INSERT INTO t VALUES (1, {', '.join(values)})")
        cursor.execute("INSERT INTO t (id) VALUES (2)")
        cursor.execute("DELETE FROM t WHERE id = 2")
        cursor.execute("INSERT INTO t (id) VALUES (2)")
    connection.close()


async def both(url: str, columns: list[str], values: list[str]) -> tuple[list[Change], list[SourceBatch]]:
    """What the stream says of it, and a snapshot."""
    reader = source(url)
    start = await reader.now()
    write(url, columns, values)
    return await changes(reader, start, 5), await snapshot(reader)


async def test_every_type(database: str) -> None:
    streamed, taken = await both(database, [case[0] for case in CASES], [case[1] for case in CASES])
    created, first, nulls, gone, _ = streamed
    assert (created.op, first.op, nulls.op, gone.op) == (Op.SCHEMA, Op.INSERT, Op.INSERT, Op.DELETE)
    assert first.after is not None
    assert nulls.after is not None
    read, read_nulls = taken[0].changes
    for number, (type, _, expected) in enumerate(CASES):
        name = f"c{number}"
        assert read.after is not None
        assert same(first.after[name], expected), f"{type} in the log: {first.after[name]!r}"
        assert same(read.after[name], expected), f"{type} in a snapshot: {read.after[name]!r}"
        assert nulls.after[name] is None, type
    assert gone.before == nulls.after == read_nulls.after


async def test_columns_of_a_batch_name_types_and_kinds(database: str) -> None:
    reader = source(database)
    start = await reader.now()
    run(database, "CREATE TABLE t (id bigint unsigned PRIMARY KEY, n decimal(8,3), f float, b blob, s varchar(7))")
    run(database, "INSERT INTO t VALUES (1, 2, 3, x'04', 'five')")
    found = await batches(reader, start, lambda seen: len(seen) == 2)
    shapes = [shape for batch in found for shape in batch.columns]
    assert shapes[0] == ()
    assert [(column.name, column.type.removesuffix("(20) unsigned"), column.kind) for column in shapes[1]] == [
        ("id", "bigint unsigned", "plain"),
        ("n", "decimal(8,3)", "numeric"),
        ("f", "float", "float"),
        ("b", "blob", "bytea"),
        ("s", "varchar(7)", "plain"),
    ]


JSON = (
    '{"a": [1, -7, 1.5, 18446744073709551615, true, false, null, "é"], "b": {"c": {}}, "d": [], "e": 70000,'
    ' "f": 5000000000, "g": "' + "x" * 300 + '"}'
)


async def test_json_is_text_on_mariadb_and_a_value_on_mysql(database: str) -> None:
    streamed, taken = await both(database, ["json", "json", "json"], [f"'{JSON}'", "'null'", "'[1, 2]'"])
    after = streamed[1].after
    assert after is not None
    assert same(after, taken[0].changes[0].after)
    if "json" in str(run(database, "SHOW CREATE TABLE t")).split("`c0`", 1)[1][:10]:
        assert after["c0"]["a"] == [1, -7, Decimal("1.5"), 18446744073709551615, True, False, None, "é"]
        assert (after["c0"]["b"], after["c0"]["d"], after["c0"]["e"]) == ({"c": {}}, [], 70000)
        assert (after["c1"], after["c2"]) == (JSON_NULL, [1, 2])
    else:
        assert after == {"id": 1, "c0": JSON, "c1": "null", "c2": "[1, 2]"}


async def test_types_of_mariadb_alone(maria_database: str) -> None:
    database = maria_database
    cases: list[Case] = [
        ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", "123e4567-e89b-12d3-a456-426655440000"),
        ("uuid", "'01890a5d-ac96-774b-bcce-b302099a8057'", "01890a5d-ac96-774b-bcce-b302099a8057"),
        ("inet6", "'2001:db8::ff00:42:8329'", "2001:db8::ff00:42:8329"),
        ("inet6", "'::'", "::"),
        ("inet6", "'::ffff:1.2.3.4'", "::ffff:1.2.3.4"),
        ("inet6", "'::1'", "::1"),
        ("inet4", "'1.2.0.0'", "1.2.0.0"),
        ("text compressed", "repeat('é', 5000)", "é" * 5000),
        ("varchar(500) compressed", "'short'", "short"),
        ("blob compressed", "repeat(x'00', 5000)", bytes(5000)),
        ("int as (id + 1) virtual", "default", 2),
        ("int as (id + 2) stored", "default", 3),
    ]
    streamed, taken = await both(database, [case[0] for case in cases], [case[1] for case in cases])
    after, read = streamed[1].after, taken[0].changes[0].after
    assert after is not None
    assert after == read
    for number, (type, _, expected) in enumerate(cases):
        assert same(after[f"c{number}"], expected), type


async def test_floats_that_print_badly(database: str) -> None:
    """The server prints a FLOAT with six digits; a snapshot must not lose the others."""
    values = [1 / 3, 123456.789, 1e-40, 16777216.0, -0.0]
    streamed, taken = await both(database, ["float"] * 5 + ["double"] * 5, [repr(value) for value in values * 2])
    after, read = streamed[1].after, taken[0].changes[0].after
    assert after is not None
    assert read is not None
    assert all(same(after[name], read[name]) for name in after)
    assert after["c1"] == 123456.79
    assert math.isclose(after["c0"], 1 / 3, rel_tol=1e-7)
    assert [after[f"c{number}"] for number in range(5, 10)] == values


async def test_compressed_events_are_read(maria_database: str) -> None:
    database = maria_database
    reader = source(database)
    start = await reader.now()
    run(database, "CREATE TABLE t (id int PRIMARY KEY, s text)")
    run(
        database,
        "SET GLOBAL log_bin_compress = ON",
        "SET GLOBAL log_bin_compress_min_len = 10",
        f"INSERT INTO t VALUES (1, '{'x' * 2000}'), (2, '{'y' * 2000}')",
        f"UPDATE t SET s = '{'z' * 2000}' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        f"ALTER TABLE t COMMENT '{'c' * 500}'",
        "SET GLOBAL log_bin_compress = OFF",
    )
    found = await changes(reader, start, 6)
    assert [change.op for change in found[1:]] == [Op.INSERT, Op.INSERT, Op.UPDATE, Op.DELETE, Op.SCHEMA]
    assert found[3].before == {"id": 1, "s": "x" * 2000}
    assert found[3].after == {"id": 1, "s": "z" * 2000}


@pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning")
async def test_the_same_values_as_the_library(database: str) -> None:
    """mysql-replication, another decoder of the same events, agrees wherever it keeps a value as it is."""
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-untyped]
    from pymysqlreplication.row_event import WriteRowsEvent  # type: ignore[import-untyped]

    cases = [case for case in NUMBERS if not case[0].startswith("float")]
    cases += [case for case in TEXTS + BYTES if not case[0].startswith(("enum", "set", "binary"))]
    cases = [case for case in cases if "character set" not in case[0] or "latin1" in case[0]]
    reader = source(database)
    start = await reader.now()
    place = start.split("_")[2].split(":")
    write(database, [case[0] for case in cases], [case[1] for case in cases])
    (_, ours, *_) = await changes(reader, start, 5)
    parts = urlsplit(database)
    library = BinLogStreamReader(
        connection_settings={
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "password": parts.password or "",
            "ssl_disabled": True,
        },
        server_id=4711,
        resume_stream=True,
        log_file=place[0],
        log_pos=int(place[1]),
        only_events=[WriteRowsEvent],
        enable_logging=False,
    )
    try:
        (theirs, *_) = (event.rows[0]["values"] for event in library if event.schema == parts.path.strip("/"))
    finally:
        library.close()
    assert ours.after is not None
    assert list(theirs) == list(ours.after)
    different = {
        cases[int(name[1:])][0]: (value, ours.after[name])
        for name, value in theirs.items()
        if name != "id" and value != ours.after[name]
    }
    assert different == {"longblob": ("", b"")}  # an empty blob is a text there, whatever its column


@pytest.mark.contract("W15")
async def test_values_survive_the_debezium_envelope(database: str) -> None:
    cases = [case for case in CASES if "0000-00-00" not in case[1] and "-00-00'" not in case[1]]
    reader = source(database)
    start = await reader.now()
    write(database, [case[0] for case in cases], [case[1] for case in cases])
    found = await batches(reader, start, lambda seen: len(seen) >= 5)
    pairs = [pair for batch in found for pair in zip(batch.changes, batch.columns, strict=True)]
    change, columns = pairs[1]
    raw = encode(change, columns=columns)
    assert raw is not None
    envelope = json.loads(raw)
    assert (envelope["op"], envelope["source"]["table"], envelope["before"]) == ("c", "t", None)
    again = decode(raw, columns)
    assert again.after is not None
    assert change.after is not None
    different = {
        columns[number].type: (value, again.after[name])
        for number, (name, value) in enumerate(change.after.items())
        if not same(value, again.after[name])
    }
    assert different == {}
    assert (again.id, again.op, again.key, again.source) == (change.id, change.op, change.key, change.source)
