"""The same writes through Debezium's MariaDB connector and the MySQL source: the same envelopes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from forge.capture.mysql import MysqlSource
from forge.errors import SparkUnavailable
from forge.testing.mariadb import MariadbServer, connect_mariadb, fresh_mariadb
from tests.debezium.comparing import (
    BINLOG,
    END,
    EVERYWHERE,
    MARIADB_ROWS,
    MARIADB_VALUES,
    OF_ROWS,
    by_table,
    differences,
    of_types,
    read,
)
from tests.servers.debezium import Engine, central_missing, debezium_missing, mariadb_jars, mariadb_properties

pytestmark = pytest.mark.contract("W15")

TYPES = {
    "i1": ("tinyint", "-128"),
    "u1": ("tinyint unsigned", "255"),
    "u2": ("smallint unsigned", "65535"),
    "u3": ("mediumint unsigned", "16777215"),
    "u4": ("int unsigned", "4294967295"),
    "zf": ("int(6) unsigned zerofill", "7"),
    "i8": ("bigint", "-9223372036854775808"),
    "u8": ("bigint unsigned", "18446744073709551615"),
    "bo": ("boolean", "true"),
    "n": ("decimal(10,2)", "-12345678.90"),
    "n0": ("decimal(5,0)", "-1"),
    "f": ("float", "0.1"),
    "g": ("double", "0.30000000000000004"),
    "b1": ("bit(1)", "b'1'"),
    "b10": ("bit(10)", "b'1000000101'"),
    "y": ("year", "2026"),
    "d": ("date", "'2026-01-31'"),
    "dz": ("date", "'0000-00-00'"),
    "dm": ("date", "'2026-00-00'"),
    "t": ("time", "'-838:59:59'"),
    "t3": ("time(3)", "'12:34:56.700'"),
    "t6": ("time(6)", "'01:02:03.000004'"),
    "dt": ("datetime", "'2026-01-31 12:00:00'"),
    "dtz": ("datetime", "'0000-00-00 00:00:00'"),
    "dt6": ("datetime(6)", "'9999-12-31 23:59:59.999999'"),
    "ts": ("timestamp null", "'2026-01-31 12:00:00'"),
    "ts3": ("timestamp(3) null", "'2026-01-31 12:00:00.25'"),
    "ts6": ("timestamp(6) null", "'2026-07-31 12:00:00.000001'"),
    "tsz": ("timestamp null", "'0000-00-00 00:00:00'"),
    "c": ("char(5)", "'ab'"),
    "v": ("varchar(20)", "'é€😀  '"),
    "l1": ("varchar(5) character set latin1", "'é€'"),
    "tx": ("text", "repeat('x', 300)"),
    "e": ("enum('a','it''s','ß')", "'it''s'"),
    "e0": ("enum('a','b')", "''"),
    "s": ("set('a','b','c')", "'c,a'"),
    "s0": ("set('a','b','c')", "''"),
    "bin": ("binary(4)", "x'6100'"),
    "vb": ("varbinary(30)", "x'00ff'"),
    "bl": ("blob", "x'deadbeef'"),
    "j": ("json", '\'{"b":  [1, null, 1.50], "a": {}}\''),
    "p": ("point", "st_geomfromtext('POINT(1 2)')"),
    "un": ("uuid", "'6f1e7c4e-9f43-4c50-9d7c-4a5f2f4a3c11'"),
}
VALUES = ", ".join(value for _, value in TYPES.values())
TABLES = ("types", "pair", "loose")
SETUP = f"""
    SET sql_mode = '', time_zone = '+02:00';
    CREATE TABLE types (id int PRIMARY KEY, {", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())});
    CREATE TABLE pair (a int, b varchar(20), note text, PRIMARY KEY (a, b));
    CREATE TABLE loose (a int, b text);
    CREATE TABLE {END} (id int PRIMARY KEY);
    INSERT INTO types VALUES (1, {VALUES});
    INSERT INTO pair VALUES (1, 'x', 'seed')
"""
WRITES = f"""
    SET sql_mode = '', time_zone = '+02:00';
    INSERT INTO types VALUES (2, {VALUES});
    INSERT INTO types (id) VALUES (3);
    UPDATE types SET n = NULL, u8 = 1, e = 'a', s = 'b', b10 = b'1' WHERE id = 2;
    DELETE FROM types WHERE id = 2;
    BEGIN;
    INSERT INTO pair VALUES (2, 'y', NULL), (3, 'z', 'note');
    UPDATE pair SET note = 'new' WHERE a = 2;
    UPDATE pair SET b = 'key' WHERE a = 3;
    DELETE FROM pair WHERE a = 2;
    COMMIT;
    BEGIN;
    INSERT INTO pair VALUES (9, 'rolled', 'back');
    ROLLBACK;
    INSERT INTO loose VALUES (1, 'same'), (1, 'same');
    UPDATE loose SET b = 'other';
    DELETE FROM loose;
    TRUNCATE pair;
    INSERT INTO {END} VALUES (1)
"""


def write(url: str, script: str) -> None:
    connection = connect_mariadb(url)
    with connection.cursor() as cursor:
        for statement in script.strip().split(";\n"):
            cursor.execute(statement)
    connection.close()


@pytest.fixture(scope="module")
def seen(maria: MariadbServer) -> Iterator[dict[str, Any]]:
    """What both say: of the rows that are there first, then of the writes."""
    if missing := debezium_missing():
        pytest.skip(missing)
    try:
        mariadb_jars()
    except SparkUnavailable as unavailable:
        if central_missing() is None:
            raise
        pytest.skip(str(unavailable))
    with fresh_mariadb(maria) as url:
        database = url.rsplit("/", 1)[1]
        write(url, SETUP)
        source = MysqlSource(url)
        rows, cursor = asyncio.run(read(source, None, snapshot=True))
        with Engine(mariadb_properties(url, *(f"{database}.{table}" for table in (*TABLES, END)))) as engine:
            engine.events(lambda event: event["source"]["snapshot"] == "last")
            write(url, WRITES)
            events = [event.value for event in engine.events(lambda event: event["source"]["table"] == END)]
        stream, _ = asyncio.run(read(source, cursor))
        yield {
            "rows": rows,
            "engine rows": [event for event in events if event["op"] == "r"],
            "stream": stream,
            "engine": [event for event in events if event["op"] != "r" and event["source"]["table"] != END],
        }


def test_the_writes_as_the_binary_log_tells_them(seen: dict[str, Any]) -> None:
    ours, theirs = ([(event["op"], event["source"]["table"]) for event in seen[name]] for name in ("stream", "engine"))
    assert ours == theirs
    known = {**EVERYWHERE, **of_types(MARIADB_VALUES, "before", "after"), **BINLOG}
    assert differences(seen["stream"], seen["engine"]).keys() == known.keys()
    pairs = zip(seen["stream"], seen["engine"], strict=True)
    assert [one["op"] for one, other in pairs if one["source"]["row"] != other["source"]["row"]] == ["t"]


def test_the_rows_of_a_snapshot(seen: dict[str, Any]) -> None:
    known = {**EVERYWHERE, **OF_ROWS, **of_types(MARIADB_VALUES, "after"), **MARIADB_ROWS}
    assert differences(by_table(seen["rows"]), by_table(seen["engine rows"])).keys() == known.keys()


def test_what_is_no_day_is_null(seen: dict[str, Any]) -> None:
    first = seen["stream"][0]["after"]
    assert [first[name] for name in ("dz", "dm", "dtz", "tsz")] == [None] * 4
