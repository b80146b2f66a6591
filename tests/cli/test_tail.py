"""`forge tail`: what it prints, from where, and how it ends."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from forge import debezium, wire
from forge.change import Change, Op
from forge.changelog.reader import Reader
from forge.cursor import Cursor
from forge.postgres.connection import Connection
from tests.command import Forge

pytestmark = pytest.mark.command

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tracked(connection: Connection) -> Connection:
    connection.execute(
        "SELECT forge_enable_reactivity('orders', exclude => '{secret}'), forge_enable_reactivity('customers')"
    )
    return connection


def write(connection: Connection) -> None:
    """Five changes in three transactions, the second with a context."""
    connection.execute("INSERT INTO orders VALUES (1, 'placed', 'a', 's3cret'), (2, 'placed', 'b', 's3cret')")
    with connection.transaction():
        connection.execute("SELECT forge_context('ada', 'checkout', '3f2a9c0e51d74b6a')")
        connection.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
        connection.execute("INSERT INTO customers VALUES (7, 'Grace', NULL)")
    connection.execute("DELETE FROM orders WHERE id = 2")


def read(url: str, after: Cursor | None = None) -> list[Change]:
    async def all_of_it() -> list[Change]:
        async with Reader.open(url) as reader:
            return [change async for batch in reader.read(after or reader.start()) for change in batch.changes]

    return asyncio.run(all_of_it())


def rows(lines: str) -> list[str]:
    """The row changes among lines of JSON."""
    return [line for line in lines.splitlines() if '"operation":"SCHEMA"' not in line]


def test_every_line_of_json_is_a_change_and_its_cursor_continues_with_the_next(
    forge: Forge, tracked: Connection, database: str
) -> None:
    write(tracked)
    result = forge("tail", "--once", "--format", "json", url=database)
    assert (result.code, result.err) == (0, "")
    everything = read(database)
    changes = [wire.decode(line) for line in result.out.splitlines()]
    assert changes == everything
    cursors = [Cursor.parse(json.loads(line)["cursor"]) for line in result.out.splitlines()]
    for place, cursor in enumerate(cursors, 1):
        assert read(database, cursor) == everything[place:]
    tracked.execute("UPDATE orders SET note = 'later'")
    rest = forge("tail", "--once", "--json", "--from", str(cursors[3]), url=database)
    later = read(database)
    assert [wire.decode(line) for line in rest.out.splitlines()] == later[4:]
    assert len(later) == len(everything) + 1


@pytest.mark.parametrize(
    "words", [[], ["--where", "id <> 4"], ["--columns", "status"]], ids=["all", "where", "columns"]
)
def test_every_line_of_a_snapshot_has_a_cursor_that_continues_with_the_next(
    forge: Forge, connection: Connection, database: str, words: list[str]
) -> None:
    connection.execute("CREATE TABLE pairs (a int, b text, status text, id int, PRIMARY KEY (b, a))")
    connection.execute("CREATE TABLE keyless (id int, status text)")
    for table in ("orders", "pairs", "keyless"):
        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    connection.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 4) n")
    connection.execute("INSERT INTO pairs SELECT n, 'a:b', 'new', n FROM generate_series(1, 4) n")
    connection.execute("INSERT INTO keyless SELECT n, 'new' FROM generate_series(1, 4) n")
    whole = forge("tail", "--snapshot", "--once", "--json", *words, url=database)
    assert (whole.code, whole.err) == (0, "")
    lines = [json.loads(line) for line in whole.out.splitlines()]
    assert len(lines) == (9 if words[:1] == ["--where"] else 12)
    connection.execute("UPDATE orders SET status = 'paid' WHERE id < 4")
    for place, line in enumerate(lines):
        rest = forge("tail", "--from", line["cursor"], "--once", "--json", *words, url=database)
        assert (rest.code, rest.err) == (0, "")
        found = [json.loads(text) for text in rest.out.splitlines()]
        assert found[:-3] == lines[place + 1 :]
        assert [change["operation"] for change in found[-3:]] == ["UPDATE"] * 3
        assert all(change["cursor"] for change in found)
    streamed = forge("tail", "--from", found[-3]["cursor"], "--once", "--json", *words, url=database)
    assert [json.loads(text) for text in streamed.out.splitlines()] == found[-2:]


def test_pretty_lines_say_what_who_and_how_late(forge: Forge, tracked: Connection, database: str) -> None:
    write(tracked)
    result = forge("tail", "--once", url=database)
    assert (result.code, result.err) == (0, "")
    update = next(line for line in result.out.splitlines() if "UPDATE" in line)
    for part in ("orders", "UPDATE 1", "status: placed → paid", "ada · checkout · 3f2a…"):
        assert part in update
    assert "s3cret" not in result.out
    assert "\x1b" not in result.out


def test_debezium_lines_are_envelopes(forge: Forge, tracked: Connection, database: str) -> None:
    write(tracked)
    result = forge("tail", "--once", "--format", "debezium", url=database)
    changes = [debezium.decode(line) for line in result.out.splitlines()]
    assert [change.op for change in changes] == [Op.INSERT, Op.INSERT, Op.UPDATE, Op.INSERT, Op.DELETE]
    assert json.loads(result.out.splitlines()[2])["op"] == "u"


def test_only_the_tables_and_as_many_as_asked_for(forge: Forge, tracked: Connection, database: str) -> None:
    write(tracked)
    only = forge("tail", "--once", "--json", "--table", "customers", url=database).out
    assert {json.loads(line)["table"] for line in only.splitlines()} == {"customers"}
    assert len(rows(only)) == 1
    qualified = forge("tail", "--once", "--json", "-t", "public.customers", "-t", "orders", url=database).out
    assert len(rows(qualified)) == 5
    assert len(forge("tail", "--once", "--json", "--limit", "3", url=database).out.splitlines()) == 3


def test_from_now_on_there_is_nothing_yet(forge: Forge, tracked: Connection, database: str) -> None:
    write(tracked)
    result = forge("tail", "--once", "--from", "now", url=database)
    assert (result.code, result.out) == (0, "")


def test_a_value_cannot_steer_the_terminal(forge: Forge, tracked: Connection, database: str) -> None:
    tracked.execute("INSERT INTO customers VALUES (1, %s, NULL)", ("\x1b[2J\r\nfake line",))
    result = forge("tail", "--once", "--table", "customers", url=database)
    assert "\x1b" not in result.out
    assert "\\x1b[2J" in result.out
    assert not any(line.startswith("fake") for line in result.out.splitlines())


def test_it_follows_what_is_committed_and_ends_at_the_limit(start: Start, tracked: Connection, database: str) -> None:
    tail = start("tail", "--from", "start", "--json", "--table", "orders", "--limit", "3", url=database)
    assert tail.stdout is not None
    assert json.loads(tail.stdout.readline())["operation"] == "SCHEMA"
    began = datetime.now(UTC)
    tracked.execute("INSERT INTO orders VALUES (1, 'placed')")
    tracked.execute("UPDATE orders SET status = 'paid'")
    lines = [json.loads(line) for line in tail.stdout]
    assert [line["operation"] for line in lines] == ["INSERT", "UPDATE"]
    assert datetime.now(UTC) - began < timedelta(seconds=30)
    assert tail.wait(30) == 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(start: Start, tracked: Connection, database: str, end: signal.Signals) -> None:
    tail = start("tail", "--from", "start", "--json", url=database)
    assert tail.stdout is not None
    assert tail.stdout.readline()
    tail.send_signal(end)
    _, err = tail.communicate(timeout=30)
    assert tail.returncode == (0 if end is signal.SIGINT else 128 + end)
    assert err == ""


def test_nobody_reads_any_more(start: Start, tracked: Connection, database: str) -> None:
    tail = start("tail", "--from", "start", "--json", url=database)
    assert tail.stdout is not None
    assert tail.stderr is not None
    assert tail.stdout.readline()
    tail.stdout.close()
    tracked.execute("INSERT INTO orders VALUES (1, 'placed')")
    assert tail.wait(30) == 0
    assert tail.stderr.read() == ""


@pytest.mark.parametrize("form", ["pretty", "json", "debezium"])
def test_a_deep_value_stops_nobody(forge: Forge, connection: Connection, database: str, form: str) -> None:
    connection.execute("CREATE TABLE docs (id int PRIMARY KEY, doc jsonb); SELECT forge_enable_reactivity('docs')")
    for number, levels in enumerate((200, 201, 900, 3000)):
        connection.execute("INSERT INTO docs VALUES (%s, %s)", (number, "[" * levels + "]" * levels))
    connection.execute("UPDATE docs SET doc = jsonb_build_array(doc)")
    result = forge("tail", "--once", "--table", "docs", "--format", form, url=database)
    assert (result.code, result.err) == (0, "")
    assert len(rows(result.out)) == (9 if form == "pretty" else 8)
