"""docs/reference/log.md is true: its columns are the catalog's, and its example reads what Forge's own reader does."""

import asyncio
import importlib.util
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forge import wire
from forge.change import Change, Op
from forge.changelog import partitions
from forge.changelog.decode import OPS
from forge.changelog.maintenance import Policy, run_once
from forge.changelog.reader import Reader
from forge.embedded import PostgresServer
from forge.history.redact import redact
from forge.postgres.connection import Connection
from forge.values import _FIXES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "log.md").read_text()
TABLES = """
    CREATE TYPE mood AS ENUM ('calm', 'busy');
    CREATE TABLE kinds (
        id bigint PRIMARY KEY, yes boolean, exact numeric, single real, double double precision, raw bytea, doc jsonb,
        doc_text json, day date, at_zone timestamptz, span interval, fixed char(5), feeling mood, numbers int[],
        exacts numeric[], floats float8[], raws bytea[], moods mood[], grid int[],
        twice bigint GENERATED ALWAYS AS (id * 2) STORED);
    CREATE TABLE pairs (b text, a int, note text, secret text, card text, PRIMARY KEY (b, a));
    CREATE TABLE keyless (x int, y text);
    CREATE TABLE orders (id int PRIMARY KEY, total int);
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN UPDATE orders SET total = 12 WHERE id = NEW.id; RETURN NULL; END';
    CREATE TRIGGER fill AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION fill();
"""
WRITES = r"""
    INSERT INTO kinds VALUES (9007199254740993, true, 12.30, 0.1, 'NaN', '\x00ff', '{"a": [1, 2.50, null]}',
        '{ "b" : 1 }', '2026-02-03', '2026-02-03 01:02:03+05', '1 year 2 days', 'ab', 'busy', '{1,NULL,3}',
        '{1.10,NaN}', '{1.5,NaN,-0}', '{"\\x00ff"}', '{busy}', '{{1,2},{3,4}}');
    INSERT INTO kinds (id, doc, double, exact, at_zone, raw, numbers) VALUES
        (2, 'null', '-0', 'Infinity', 'infinity', '', '[0:1]={7,8}'),
        (3, '{"$json": 1}', '-Infinity', -5e-3, NULL, NULL, '{}');
    UPDATE kinds SET exact = 1.0 WHERE id = 2;
    UPDATE kinds SET exact = 1.00 WHERE id = 2;
    UPDATE kinds SET exact = 1.00 WHERE id = 2;
    INSERT INTO pairs VALUES ('x y', 1, 'n', 's', '4711'), ('q"\', 2, NULL, NULL, NULL);
    UPDATE pairs SET note = 'm', secret = 'z', card = '1' WHERE a = 1;
    UPDATE pairs SET a = 3, note = 'moved' WHERE a = 2;
    INSERT INTO keyless VALUES (1, 'a'), (1, 'a');
    UPDATE keyless SET y = 'b';
    DELETE FROM keyless;
    INSERT INTO orders VALUES (1, 0), (2, 0);
    INSERT INTO kinds (id, doc) SELECT n, (repeat('[', n) || '1.50, "[{"' || repeat(']', n))::jsonb
        FROM unnest('{199,200,201,3000}'::int[]) n;
    INSERT INTO kinds (id, doc) VALUES (4, repeat('9', 5000)::jsonb), (5, '{"$x": 9007199254740993}');
    TRUNCATE keyless;
    ALTER TABLE pairs RENAME note TO remark;
    INSERT INTO pairs VALUES ('later', 9, 'n', 's', NULL);
    ALTER TABLE pairs RENAME TO couples;
    DELETE FROM couples WHERE b = 'later';
"""


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute(TABLES)
    for table in ("kinds", "keyless", "orders"):
        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    connection.execute("SELECT forge_enable_reactivity('pairs', exclude => '{secret}', mask => '{card}')")
    return connection


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """examples/own_reader.py as a module."""
    spec = importlib.util.spec_from_file_location("own_reader", ROOT / "examples" / "own_reader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_reader"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["own_reader"]


@pytest.mark.parametrize(
    ("table", "heading"),
    [
        ("forge_event_log", "# The log"),
        ("table_version", "## Table versions"),
        ("log_identity", "## Identity"),
        ("trimmed", "## Partitions, retention, trimming"),
        ("instant", "## Instants"),
    ],
)
def test_the_documented_columns_are_those_of_the_catalog(connection: Connection, table: str, heading: str) -> None:
    where = PAGE.index(f"{heading}\n")
    section = PAGE[where : PAGE.index("\n## ", where)]
    stated = [
        (name, kind)
        for names, kind in re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| ([^|]+?) \|", section, re.M)
        for name in re.findall(r"`([a-z_]+)`", names)
    ]
    rows = connection.execute(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (f"forge.{table}",),
    ).fetchall()
    assert stated == [(name, kind.replace("timestamp with time zone", "timestamptz")) for name, kind in rows]


def test_the_documented_kinds_and_operations_are_all_there_are() -> None:
    images = PAGE[PAGE.index("\n## Images") : PAGE.index("\n## Table versions")]
    first = re.findall(r"^\| ((?:`[a-z\[\]]+`(?:, )?)+) \|", images, re.M)
    assert {name for cell in first for name in re.findall(r"`([^`]+)`", cell)} - {"kind"} == _FIXES.keys()
    operations = PAGE[PAGE.index("\n## Operations") : PAGE.index("\n## Keys")]
    assert set(re.findall(r"^\| `([A-Z])` \|", operations, re.M)) == OPS.keys()


def own(url: str) -> list[dict[str, Any]]:
    """What Forge's own reader reads, as the example prints it."""

    async def read() -> list[Change]:
        async with Reader.open(url) as reader:
            return [change async for batch in reader.read(reader.start()) for change in batch.changes]

    return [printed(change) for change in asyncio.run(read())]


def printed(change: Change) -> dict[str, Any]:
    told = json.loads(wire.encode(change))
    whole_table = change.op in (Op.SCHEMA, Op.INVALIDATE, Op.REDACT)
    return {
        "op": change.op.value,
        "schema": change.schema,
        "table": change.table,
        "key": told["key"],
        "before": told["before"],
        "after": told["after"],
        "changed": list(change.changed),
        "at": told["timestamp"],
        "user": change.context.user_id,
        "id": change.id,
        "position": change.source.position,
        "note": told["context"]["more"] or None if whole_table else None,
    }


@contextmanager
def reading(example: Any, url: str, cursor: Any, limit: int = 500) -> Iterator[Any]:
    with example.connect(url) as db, example.connect(url) as listener:
        yield example.LogReader(db, listener, cursor, limit)


def pages(reader: Any) -> Iterator[tuple[list[dict[str, Any]], Any]]:
    """The pages up to the end of a batch, each with the cursor after it."""
    while True:
        changes, reader.cursor = reader.page()
        yield json.loads(json.dumps(changes)), reader.cursor
        if reader.cursor.until is None:
            return


def everything(reader: Any) -> list[dict[str, Any]]:
    return [change for changes, _ in pages(reader) for change in changes]


@pytest.mark.contract("T11")
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_example_reads_what_forge_reads(
    shop: Connection, database: str, server: PostgresServer, example: Any, limit: int
) -> None:
    shop.execute(WRITES)
    role = f"reader_{shop.info.dbname}"
    grants = re.findall(r"^GRANT .*;$", PAGE, re.M)
    assert len(grants) == 2
    shop.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        for grant in grants:
            shop.execute(grant.replace("TO reader", f"TO {role}").encode())
        with reading(example, server.url(shop.info.dbname, role), None, limit) as reader:
            read = list(pages(reader))
            changes = [change for page, _ in read for change in page]
            assert changes == own(database)
            assert {change["op"] for change in changes} == {"insert", "update", "delete", "truncate", "schema"}
            count = 0
            for page, cursor in read:
                count += len(page)
                reader.cursor = cursor
                assert everything(reader) == changes[count:]
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_the_example_has_redacted_values_as_unavailable(shop: Connection, database: str, example: Any) -> None:
    shop.execute("INSERT INTO pairs VALUES ('x', 1, 'n', 's', 'c')")
    redact(shop, "pairs", {"b": "x", "a": 1}, ["note"], reason="asked for")
    with reading(example, database, None) as reader:
        changes = everything(reader)
    assert changes == own(database)
    unavailable = {"$unavailable": True}
    [insert] = (change for change in changes if change["op"] == "insert")
    assert insert["after"] == {"b": "x", "a": 1, "note": unavailable, "secret": unavailable, "card": "***"}
    [redaction] = (change for change in changes if change["op"] == "redact")
    assert (redaction["key"], redaction["before"]) == ({"b": "x", "a": 1}, None)
    assert redaction["note"]["columns"] == ["note"]


@pytest.mark.contract("R8")
def test_the_example_refuses_to_go_on_where_changes_are_gone(shop: Connection, database: str, example: Any) -> None:
    shop.execute("INSERT INTO orders VALUES (1, 0)")
    with reading(example, database, None) as reader:
        everything(reader)
        before = reader.cursor
    old = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(shop, old)
    shop.execute("INSERT INTO keyless SELECT n, 'x' FROM generate_series(1, 5) n")
    shop.execute("UPDATE forge.forge_event_log SET day = %s WHERE version = (SELECT max(id) FROM forge.table_version"
                 " WHERE table_name = 'keyless') AND op = 'I'", (old,))  # fmt: skip
    inside = []
    for cursor in (before, None):  # the second is from the start on, and stands before what goes
        with reading(example, database, cursor, 6 if cursor is None else 2) as reader:
            inside.append(next(pages(reader))[1])
    assert all(cursor.until for cursor in inside)
    run_once(database, Policy(retention_days=1, hold_days=0))
    for cursor in (before, *inside):
        with (
            reading(example, database, cursor) as reader,
            pytest.raises(example.Refused, match="trimmed"),
        ):
            everything(reader)
    with reading(example, database, None) as reader:
        left = everything(reader)
    assert [change["op"] for change in left if change["op"] != "schema"] == ["insert", "update"]
    for snapshots in ({"old": "1:90000000:"}, {"until": "1:90000000:", "place": 1, "id": 1}):
        with (
            pytest.raises(example.Refused, match="lost transactions"),
            reading(example, database, replace(before, **snapshots)),
        ):
            pass
    with (
        pytest.raises(example.Refused, match="another log"),
        reading(example, database, replace(before, timeline=before.timeline + 1)),
    ):
        pass


def test_the_example_is_woken_by_a_commit(shop: Connection, database: str, example: Any) -> None:
    with reading(example, database, None) as reader:
        everything(reader)
        began = time.monotonic()
        shop.execute("INSERT INTO orders VALUES (1, 0)")
        reader.wait(100)
        assert time.monotonic() - began < 50
        assert [change["op"] for change in everything(reader)] == ["insert", "update"]


def test_the_example_has_what_it_prints_flushed(shop: Connection, database: str, example: Any) -> None:
    shop.execute("SET synchronous_commit = off")
    with reading(example, database, None) as reader:
        for number in range(20):
            shop.execute("INSERT INTO kinds (id) VALUES (%s)", (number,))
            (lsn,) = shop.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ()
            assert everything(reader)[-1]["key"] == {"id": number}
            assert shop.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", (lsn,)).fetchone() == (True,)
