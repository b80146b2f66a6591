"""The same writes through Debezium's PostgreSQL connector, the WAL source and the log: the same envelopes."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from forge.capture.log import LogSource
from forge.capture.wal import WalSource
from forge.changelog.install import install
from forge.debezium import PLACEHOLDER
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres
from tests.debezium.comparing import (
    END,
    EVERYWHERE,
    LOG,
    OF_ROWS,
    POSTGRES_ROWS,
    POSTGRES_VALUES,
    WAL,
    Envelope,
    by_table,
    differences,
    of_types,
    read,
)
from tests.servers.debezium import Engine, debezium_missing, postgres_properties

pytestmark = pytest.mark.contract("W15")

TYPES = {
    "b": ("boolean", "true"),
    "i2": ("smallint", "-32768"),
    "i8": ("bigint", "9007199254740993"),
    "n": ("numeric", "'12.30'"),
    "n2": ("numeric(10,2)", "-0.50"),
    "nan": ("numeric", "'NaN'"),
    "f4": ("real", "0.1"),
    "f8": ("double precision", "1e-300"),
    "inf": ("double precision", "'-Infinity'"),
    "t": ("text", "'é😀 \"\\'"),
    "c": ("char(5)", "'ab'"),
    "v": ("varchar(9)", "'varchar'"),
    "y": ("bytea", "'\\xdeadbeef'"),
    "j": ("json", "'{\"a\":  1.50}'"),
    "jb": ("jsonb", '\'{"b": [1, null, "x", 1.50], "a": {}}\''),
    "u": ("uuid", "'6f1e7c4e-9f43-4c50-9d7c-4a5f2f4a3c11'"),
    "d": ("date", "'2026-01-31'"),
    "d0": ("date", "'0044-03-15 BC'"),
    "dinf": ("date", "'infinity'"),
    "ts": ("timestamp", "'2026-01-31 12:00:00.123456'"),
    "ts3": ("timestamp(3)", "'1969-12-31 23:59:59.999'"),
    "tsinf": ("timestamp", "'infinity'"),
    "tz": ("timestamptz", "'2026-01-31 12:00:00.5+02'"),
    "tz0": ("timestamptz(0)", "'2026-01-31 12:00:00+02'"),
    "ti": ("time", "'23:59:59.000001'"),
    "ti2": ("time(2)", "'01:02:03.25'"),
    "ttz": ("timetz", "'01:02:03+02'"),
    "iv": ("interval", "'1 year 2 months 3 days 04:05:06.7'"),
    "e": ("mood", "'happy'"),
    "bi": ("bit(1)", "B'1'"),
    "bits": ("bit(10)", "B'1000000101'"),
    "m": ("money", "'12.34'"),
    "ip": ("inet", "'10.0.0.1/8'"),
    "r": ("int4range", "'[1,5)'"),
    "p": ("point", "'(1,2)'"),
    "ai": ("int[]", "'{1,NULL,3}'"),
    "at": ("text[]", "'{a,\"b,c\",NULL}'"),
    "an": ("numeric(5,2)[]", "'{1.50}'"),
    "ad": ("date[]", "'{2026-01-31}'"),
}
SETUP = f"""
    CREATE TYPE mood AS ENUM ('sad', 'happy');
    CREATE TABLE types (id int PRIMARY KEY, {", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())});
    CREATE TABLE pair (a int, b text, note text, PRIMARY KEY (a, b));
    CREATE TABLE loose (a int, b text);
    CREATE TABLE toast (id int PRIMARY KEY, big text, n int);
    CREATE TABLE {END} (id int PRIMARY KEY);
    ALTER TABLE types REPLICA IDENTITY FULL;
    ALTER TABLE pair REPLICA IDENTITY FULL;
    ALTER TABLE loose REPLICA IDENTITY FULL;
    ALTER TABLE toast ALTER big SET STORAGE EXTERNAL;
    INSERT INTO types VALUES (1, {", ".join(value for _, value in TYPES.values())});
    INSERT INTO pair VALUES (1, 'x', 'seed')
"""
TABLES = ("types", "pair", "loose", "toast")
WRITES = f"""
    INSERT INTO types VALUES (2, {", ".join(value for _, value in TYPES.values())});
    INSERT INTO types (id) VALUES (3);
    UPDATE types SET b = false, n = NULL, tz = 'infinity', ai = '{{}}' WHERE id = 2;
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
    INSERT INTO toast SELECT 1, string_agg(md5(g::text), ''), 0 FROM generate_series(1, 300) g;
    UPDATE toast SET n = 1;
    TRUNCATE pair;
    INSERT INTO {END} VALUES (1)
"""


def run(connection: Connection, script: str) -> None:
    for statement in script.strip().split(";\n"):
        connection.execute(statement.encode())


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Any]]:
    """What each of the three says: of the rows that are there first, then of the writes."""
    if missing := debezium_missing():
        pytest.skip(missing)
    with temporary_postgres() as server, fresh_database(server) as url, connect(url) as connection:
        install(connection)
        run(connection, SETUP)
        for table in (*TABLES[:-1], END):  # a log would fill in what the WAL lacks
            connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
        wal, log = WalSource(url), LogSource(url)
        found: dict[str, Any] = {}

        async def first() -> None:
            found["wal rows"], found["wal cursor"] = await read(wal, None, snapshot=True)
            found["log rows"], found["log cursor"] = await read(log, None, snapshot=True)

        async def then() -> None:
            found["wal"], _ = await read(wal, found["wal cursor"])
            found["log"], _ = await read(log, found["log cursor"])

        asyncio.run(first())
        with Engine(postgres_properties(url, *(f"public.{table}" for table in (*TABLES, END)))) as engine:
            engine.events(lambda event: event["source"]["snapshot"] == "last")
            run(connection, WRITES)
            events = [event.value for event in engine.events(lambda event: event["source"]["table"] == END)]
        asyncio.run(then())
        found["engine rows"] = [event for event in events if event["op"] == "r"]
        found["engine"] = [event for event in events if event["op"] != "r" and event["source"]["table"] != END]
        yield found


BOTH = of_types(POSTGRES_VALUES, "before", "after")


def operations(envelopes: list[Envelope]) -> list[tuple[str, str]]:
    return [(envelope["op"], envelope["source"]["table"]) for envelope in envelopes]


def test_the_writes_as_the_wal_tells_them(seen: dict[str, Any]) -> None:
    assert operations(seen["wal"]) == operations(seen["engine"])
    found = differences(seen["wal"], seen["engine"])
    assert found.keys() == {**EVERYWHERE, **BOTH, **WAL}.keys()
    unknown = {"id": 1, "big": PLACEHOLDER, "n": PLACEHOLDER}
    assert found["before"] == {(json.dumps(unknown), "null")}


def test_a_value_out_of_line_is_unavailable_to_both(seen: dict[str, Any]) -> None:
    images = [
        event["after"]["big"] for event in seen["wal"] if (event["op"], event["source"]["table"]) == ("u", "toast")
    ]
    assert images == [PLACEHOLDER]


def test_the_writes_as_the_log_tells_them(seen: dict[str, Any]) -> None:
    theirs = [event for event in seen["engine"] if event["source"]["table"] != "toast"]
    assert operations(seen["log"]) == operations(theirs)
    assert differences(seen["log"], theirs).keys() == {**EVERYWHERE, **BOTH, **LOG}.keys()


@pytest.mark.parametrize(("feed", "more"), [("wal", {}), ("log", LOG)])
def test_the_rows_of_a_snapshot(seen: dict[str, Any], feed: str, more: dict[str, str]) -> None:
    ours, theirs = by_table(seen[f"{feed} rows"]), by_table(seen["engine rows"])
    known = {**EVERYWHERE, **OF_ROWS, **of_types(POSTGRES_VALUES, "after"), **POSTGRES_ROWS, **more}
    assert differences(ours, theirs).keys() == known.keys()
