"""docs/reference/log.md is true: its columns are the catalog's, and its reader reads what Forge's own does."""

import asyncio
import random
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forge.change import JSON_NULL, UNAVAILABLE, Change
from forge.changelog import partitions
from forge.changelog.connection import Connection, connect
from forge.changelog.decode import OPS
from forge.changelog.maintenance import Policy, run_once
from forge.changelog.reader import Reader
from forge.history.redact import redact
from forge.postgres import PostgresServer
from forge.values import _FIXES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "log.md").read_text()
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
    UPDATE kinds SET exact = 1.0 WHERE id = 2;
    INSERT INTO pairs VALUES ('x y', 1, 'n', 's', '4711'), ('q"\', 2, NULL, NULL, NULL);
    UPDATE pairs SET note = 'm', secret = 'z', card = '1' WHERE a = 1;
    UPDATE pairs SET a = 3, note = 'moved' WHERE a = 2;
    INSERT INTO keyless VALUES (1, 'a'), (1, 'a');
    UPDATE keyless SET y = 'b';
    DELETE FROM keyless;
    INSERT INTO orders VALUES (1, 0), (2, 0);
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
def reader_of_the_page() -> dict[str, Any]:
    """What the page's Python block defines."""
    [block] = re.findall(r"^```python\n(import json\n.*?)^```", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(block, "log.md", "exec"), names)
    return names


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


def own(url: str) -> list[Change]:
    async def read() -> list[Change]:
        async with Reader.open(url) as reader:
            return [change async for batch in reader.read(reader.start()) for change in batch.changes]

    return asyncio.run(read())


def known(image: Any) -> Any:
    """An image as a reader has it that leaves out what is not known."""
    if image is None:
        return None
    return {name: None if value is JSON_NULL else value for name, value in image.items() if value is not UNAVAILABLE}


def told(change: Change) -> dict[str, Any]:
    """A Change as the page's reader gives it. NaN is not equal to itself, so values are compared by their text."""
    return {
        "id": change.id,
        "op": next(letter for letter, op in OPS.items() if op is change.op),
        "schema": change.schema,
        "table": change.table,
        "transaction": change.source.transaction,
        "at": change.at,
        "row_id": None if change.row_id == "*" else change.row_id,
        "key": change.key,
        "before": known(change.before),
        "after": known(change.after),
        "hidden": list(change.hidden),
    }


@pytest.mark.contract("T11")
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_reader_of_the_page_reads_what_forge_reads(
    shop: Connection, database: str, server: PostgresServer, reader_of_the_page: dict[str, Any], limit: int
) -> None:
    shop.execute(WRITES)
    role = f"reader_{shop.info.dbname}"
    grants = re.findall(r"^GRANT .*;$", PAGE, re.M)
    assert len(grants) == 2
    shop.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        for grant in grants:
            shop.execute(grant.replace("TO reader", f"TO {role}").encode())
        reader = reader_of_the_page["Reader"](server.url(shop.info.dbname, role), limit)
        pages = list(reader.read(reader.start()))
        changes = [change for page, _ in pages for change in page]
        wanted = [told(change) for change in own(database)]
        assert [repr(change) for change in map(sorted_out, changes)] == [repr(sorted_out(each)) for each in wanted]
        assert {change["op"] for change in changes} == {"I", "U", "D", "T", "S"}
        read = 0
        for page, cursor in pages:
            read += len(page)
            rest = [change for found, _ in reader.read(cursor) for change in found]
            assert [change["id"] for change in rest] == [change["id"] for change in changes[read:]]
        reader.close()
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def sorted_out(change: dict[str, Any]) -> dict[str, Any]:
    return {
        name: dict(sorted(value.items())) if isinstance(value, dict) else value
        for name, value in sorted(change.items())
    }


def test_the_reader_of_the_page_leaves_redacted_values_out(
    shop: Connection, database: str, reader_of_the_page: dict[str, Any]
) -> None:
    shop.execute("INSERT INTO pairs VALUES ('x', 1, 'n', 's', 'c')")
    redact(shop, "pairs", {"b": "x", "a": 1}, ["note"], reason="asked for")
    reader = reader_of_the_page["Reader"](database)
    changes = [change for page, _ in reader.read(reader.start()) for change in page]
    assert [repr(sorted_out(change)) for change in changes] == [repr(sorted_out(told(each))) for each in own(database)]
    [insert] = (change for change in changes if change["op"] == "I")
    assert insert["after"] == {"b": "x", "a": 1, "card": "***"}
    [redaction] = (change for change in changes if change["op"] == "R")
    assert (redaction["key"], redaction["hidden"], redaction["before"]) == ({"b": "x", "a": 1}, ["note"], None)
    reader.close()


@pytest.mark.contract("T11")
def test_the_reader_of_the_page_loses_and_doubles_nothing_under_writers(
    shop: Connection, database: str, reader_of_the_page: dict[str, Any]
) -> None:
    ended = threading.Event()

    def write(number: int) -> None:
        chance = random.Random(number)
        with connect(database) as connection:
            for turn in range(60):
                with connection.transaction(force_rollback=chance.random() < 0.2):
                    first = number * 100_000 + turn * 100
                    connection.execute(
                        "INSERT INTO keyless SELECT n, 'x' FROM generate_series(%s::int, %s) n",
                        (first, first + chance.randrange(40)),
                    )
                    ended.wait(chance.random() / 50)

    reader = reader_of_the_page["Reader"](database, 7)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    cursor, seen = reader.start(), []
    while True:
        alive = any(thread.is_alive() for thread in threads)
        for place, (page, behind) in enumerate(reader.read(cursor)):
            seen += [change["id"] for change in page]
            cursor = behind
            if place == 3:
                break  # stands inside a batch, and goes on from there
        if not alive and cursor[2] is None and not page:
            break
    wanted = [change.id for change in own(database)]
    assert len(seen) == len(set(seen))
    assert set(seen) == set(wanted)
    reader.close()


@pytest.mark.contract("R8")
def test_the_reader_of_the_page_notices_what_it_cannot_go_on_from(
    shop: Connection, database: str, reader_of_the_page: dict[str, Any]
) -> None:
    resync = reader_of_the_page["Resync"]
    reader = reader_of_the_page["Reader"](database, 2)
    shop.execute("INSERT INTO orders VALUES (1, 0)")
    before = reader.now()
    old = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(shop, old)
    shop.execute("INSERT INTO keyless SELECT n, 'x' FROM generate_series(1, 5) n")
    shop.execute("UPDATE forge.forge_event_log SET day = %s WHERE version = (SELECT max(id) FROM forge.table_version"
                 " WHERE table_name = 'keyless') AND op = 'I'", (old,))  # fmt: skip
    pages = reader.read(before)
    _, inside = next(pages)
    pages.close()
    run_once(database, Policy(retention_days=1, hold_days=0))
    for cursor in (before, inside):
        with pytest.raises(resync, match="trimmed"):
            list(reader.read(cursor))
    whole = reader_of_the_page["Reader"](database)
    left = [change for page, _ in whole.read(whole.start()) for change in page]
    assert [change["op"] for change in left if change["op"] != "S"] == ["I", "U"]
    whole.close()
    identity, snapshot, *rest = reader.now()
    xmin, xmax, _ = snapshot.split(":")
    with pytest.raises(resync, match="ahead"):
        list(reader.read((identity, f"{xmin}:{int(xmax) + 1000}:", *rest)))
    with pytest.raises(resync, match="another log"):
        list(reader.read((("other", *identity[1:]), snapshot, *rest)))
    reader.close()


def test_the_reader_of_the_page_is_woken_and_saves_what_is_flushed(
    shop: Connection, database: str, reader_of_the_page: dict[str, Any]
) -> None:
    reader = reader_of_the_page["Reader"](database)
    cursor = reader.now()
    reader.close()
    seen: list[int] = []
    saved: list[Any] = []

    class Enough(Exception):
        pass

    def handle(change: dict[str, Any]) -> None:
        seen.append(change["after"]["id"])

    def save(cursor: Any) -> None:
        saved.append(cursor)
        number = len(seen)
        if number >= 3:
            raise Enough
        shop.execute("SET synchronous_commit = off")
        if len(saved) < 10:
            shop.execute("DELETE FROM orders WHERE false")
        shop.execute("INSERT INTO kinds (id) VALUES (%s)", (number,))

    with pytest.raises(Enough):
        reader_of_the_page["follow"](database, cursor, save, handle)
    assert seen[:3] == [0, 1, 2]
