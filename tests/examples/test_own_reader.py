"""examples/own_reader.py loses no change: killed, disconnected, under writers, and from cursors that are of no use."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import forge
from forge import wire
from forge.change import Change
from forge.changelog import partitions
from forge.changelog.maintenance import Policy, run_once
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from tests.command import environment
from tests.conftest import TEMPLATE

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "own_reader.py"
SOON = 60.0
KILLS = 6
TABLES = """
    CREATE TABLE items (id int PRIMARY KEY, price numeric, name text);
    CREATE TABLE places (a text, b int, value jsonb, PRIMARY KEY (b, a));
    CREATE TABLE totals (id int PRIMARY KEY, total int);
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN UPDATE totals SET total = total + 1 WHERE id = NEW.id; RETURN NULL; END';
    CREATE TRIGGER fill AFTER INSERT ON totals FOR EACH ROW EXECUTE FUNCTION fill();
    SELECT forge_enable_reactivity(name) FROM unnest('{items,places,totals}'::text[]) name;
"""
KEYS = {"items": ("id",), "places": ("b", "a"), "totals": ("id",)}
WRITES = (
    "INSERT INTO items SELECT n, n / 10.0, 'x' FROM generate_series(%(k)s, %(k)s + 5) n"
    " ON CONFLICT (id) DO UPDATE SET price = excluded.price, name = items.name || 'y'",
    "INSERT INTO items SELECT n, 1.50, repeat('z', 40) FROM generate_series(1000 * %(k)s, 1000 * %(k)s + 900) n"
    " ON CONFLICT DO NOTHING",
    "UPDATE items SET price = price * 1.10, name = NULL WHERE id %% 7 = %(k)s %% 7",
    "UPDATE items SET id = id + 1 WHERE id BETWEEN %(k)s AND %(k)s + 9",
    "DELETE FROM items WHERE id %% 11 = %(k)s %% 11",
    "INSERT INTO places VALUES ('x y', %(k)s, '{\"$json\": [1, \"q\"]}'), ('\"', %(k)s, '[null]')"
    " ON CONFLICT (b, a) DO UPDATE SET value = jsonb_build_array(places.value)",
    "UPDATE places SET a = a || '''', b = b + 50 WHERE b = %(k)s",
    "DELETE FROM places WHERE b > 40",
    "INSERT INTO totals VALUES (%(k)s, 0), (%(k)s + 1, 0)",
    "DELETE FROM totals WHERE id <= %(k)s",
    "UPDATE totals SET total = total",
)
RARE = (
    "TRUNCATE items",
    "TRUNCATE places, totals",
    "ALTER TABLE items ADD COLUMN note_{n} text",
    "ALTER TABLE places ADD COLUMN IF NOT EXISTS more int",
    "ALTER TABLE totals ALTER COLUMN total TYPE bigint",
)
EXPECTED_FAILURES = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable)


class Program:
    """The program with its cursor and its lines in files, run again and again."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.cursor, self.lines, self.errors = url, folder / "cursor", folder / "lines", folder / "errors"
        self.lines.touch()
        self.starts: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        self.starts.append(self.lines.stat().st_size)
        with self.lines.open("ab") as out, self.errors.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), self.url, "--cursor", str(self.cursor), *options],
                stdout=out,
                stderr=err,
                env=environment(PGAPPNAME="own_reader"),
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SOON
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, self.errors.read_text()
            time.sleep(0.01)

    def runs(self) -> list[list[dict[str, Any]]]:
        """The changes that each run printed. A line without an end was cut off, which only the last of a run can be."""
        written = self.lines.read_bytes()
        runs = []
        for start, end in zip(self.starts, [*self.starts[1:], len(written)], strict=True):
            *lines, _ = written[start:end].split(b"\n")
            runs.append([json.loads(line) for line in lines if line])
        return runs

    def printed(self) -> list[dict[str, Any]]:
        """Every change once, where it was printed first."""
        return list({line["id"]: line for run in reversed(self.runs()) for line in reversed(run)}.values())[::-1]


@pytest.fixture
def program(database: str, tmp_path: Path) -> Iterator[Program]:
    program = Program(database, tmp_path)
    yield program
    program.kill()


def once(url: str, cursor: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), url, "--once", "--cursor", str(cursor)],
        capture_output=True,
        text=True,
        timeout=SOON,
        env=environment(),
    )


def logged(url: str) -> list[Change]:
    """What Forge's own reader reads."""

    async def read() -> list[Change]:
        async with forge.Reader.open(url) as reader:
            return [change async for batch in reader.read(reader.start()) for change in batch.changes]

    return asyncio.run(read())


def write(url: str, number: int, failures: list[BaseException]) -> None:
    """Random transactions: several statements, some of them slow to commit, some rolled back."""
    chance = random.Random(number)
    pause = threading.Event()
    try:
        with connect(url) as connection:
            connection.execute("SET lock_timeout = '5s'")
            for turn in range(40):
                try:
                    with connection.transaction(force_rollback=chance.random() < 0.2):
                        if chance.random() < 0.1:
                            statement = chance.choice(RARE).format(n=f"{number}_{turn}")
                            connection.execute(statement.encode())
                        for _ in range(chance.randrange(1, 4)):
                            connection.execute(chance.choice(WRITES).encode(), {"k": chance.randrange(30)})
                            pause.wait(chance.choice((0, 0, 0.02, 0.3)))
                except EXPECTED_FAILURES:
                    continue
    except BaseException as error:
        failures.append(error)
        raise


def grown(file: Path, size: int, writers: list[threading.Thread]) -> Callable[[], bool]:
    return lambda: file.stat().st_size > size or not any(writer.is_alive() for writer in writers)


def by_key(lines: list[tuple[str, Any, str]]) -> dict[tuple[str, str], list[str]]:
    """The ids of the changes of each table and key, in order; the key of a whole table is null."""
    ids = defaultdict(list)
    for table, key, change in lines:
        ids[table, json.dumps(key, sort_keys=True)].append(change)
    return ids


def rebuilt(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The tables' rows by key, from the lines alone; each change must fit the row that those before it left."""
    tables: dict[str, dict[str, Any]] = {table: {} for table in KEYS}
    for line in lines:
        rows, key = tables[line["table"]], json.dumps(line["key"])
        if line["op"] in ("update", "delete"):
            assert known(rows.pop(key)) == known(line["before"]), line
        if line["op"] in ("insert", "update"):
            assert key not in rows, line
            rows[key] = line["after"]
        if line["op"] == "truncate":
            rows.clear()
    return tables


def known(row: dict[str, Any]) -> dict[str, Any]:
    """A row without NULLs, which is what a column has that was added since."""
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.contract("T7")
@pytest.mark.contract("T11")
def test_state_is_rebuilt_from_the_lines_of_a_reader_that_is_killed_again_and_again(
    program: Program, database: str, connection: Connection
) -> None:
    connection.execute(TABLES)
    failures: list[BaseException] = []
    writers = [threading.Thread(target=write, args=(database, number, failures)) for number in range(4)]
    for writer in writers:
        writer.start()
    chance = random.Random(0)
    for _ in range(KILLS):
        size = program.lines.stat().st_size + chance.randrange(1_500_000)
        program.start()
        program.wait(grown(program.lines, size, writers))
        program.kill()
    for writer in writers:
        writer.join()
    assert not failures
    program.start("--once")
    assert program.process is not None
    assert program.process.wait(SOON) == 0

    for run in program.runs():
        assert len({line["id"] for line in run}) == len(run)  # only a crash makes a change come again
    lines = program.printed()
    changes = logged(database)
    assert {line["id"] for line in lines} == {change.id for change in changes}
    assert by_key([(line["table"], line["key"], line["id"]) for line in lines]) == by_key(
        [(change.table, wire.encode_row(change.key), change.id) for change in changes]
    )
    assert {line["op"] for line in lines} == {"insert", "update", "delete", "truncate", "schema"}
    for table, rows in rebuilt(lines).items():
        cursor = connection.execute(f"SELECT * FROM {table}".encode())
        names = [column.name for column in cursor.description or ()]
        stored = [dict(zip(names, row, strict=True)) for row in cursor]
        expected = {json.dumps({name: row[name] for name in KEYS[table]}): known(row) for row in stored}
        assert {key: known(wire.decode_row(row) or {}) for key, row in rows.items()} == expected


@pytest.mark.contract("T7")
def test_it_goes_on_after_its_connections_were_ended(program: Program, connection: Connection) -> None:
    connection.execute(TABLES)
    program.start()
    for number in range(3):
        connection.execute("SET forge.wakeup = poll" if number == 1 else "RESET forge.wakeup")
        connection.execute("INSERT INTO items VALUES (%s)", (number,))
        program.wait(lambda: {"id": number} in [line["key"] for line in program.printed()])  # noqa: B023
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'own_reader'"
            " AND datname = current_database()"
        ).fetchone()
        assert ended is not None
        assert ended[0] >= 1
    program.wait(lambda: program.errors.read_text().count("next try in") >= 1)
    [run] = program.runs()
    assert [line["key"] for line in run if line["op"] == "insert"] == [{"id": 0}, {"id": 1}, {"id": 2}]


@pytest.mark.contract("T7")
def test_a_cursor_goes_on_where_it_stands(connection: Connection, database: str, tmp_path: Path) -> None:
    connection.execute(TABLES)
    connection.execute("INSERT INTO items SELECT n FROM generate_series(1, 1200) n")
    cursor = tmp_path / "cursor"
    first = once(database, cursor)
    assert (first.returncode, len(first.stdout.splitlines())) == (0, 1203)
    connection.execute("UPDATE items SET id = 0, name = 'moved' WHERE id = 7")
    second = [json.loads(line) for line in once(database, cursor).stdout.splitlines()]
    assert [(line["op"], line["key"]) for line in second] == [("delete", {"id": 7}), ("insert", {"id": 0})]
    assert once(database, cursor).stdout == ""


def test_a_cursor_that_is_of_no_use_ends_it_with_one_line(
    connection: Connection, database: str, server: PostgresServer, tmp_path: Path
) -> None:
    connection.execute(TABLES)
    cursor = tmp_path / "cursor"
    assert once(database, cursor).returncode == 0
    saved = cursor.read_text()
    with fresh_database(server, template=TEMPLATE) as other:
        refused(once(other, cursor), "another log", cursor)
    old = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(connection, old)
    connection.execute("INSERT INTO items VALUES (1)")
    connection.execute("UPDATE forge.forge_event_log SET day = %s WHERE op = 'I'", (old,))
    run_once(database, Policy(retention_days=1, hold_days=0))
    refused(once(database, cursor), "trimmed", cursor)
    ahead = json.loads(saved) | {"old": "9000000:9000000:"}
    cursor.write_text(json.dumps(ahead))
    refused(once(database, cursor), "lost transactions", cursor)
    cursor.write_text(saved[: len(saved) // 2])
    refused(once(database, cursor), "not a cursor", cursor)
    cursor.unlink()
    assert once(database, cursor).returncode == 0  # as the line says


def refused(ended: subprocess.CompletedProcess[str], why: str, cursor: Path) -> None:
    [line] = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert why in line
    assert f"fix: delete {cursor}, read the tables again" in line


def test_a_wrong_url_ends_it_with_one_line(empty_database: str, tmp_path: Path) -> None:
    for url in (empty_database, f"{empty_database}_none"):
        ended = once(url, tmp_path / "cursor")
        [line] = ended.stderr.splitlines()
        assert ended.returncode == 1
        assert "does not exist; fix: " in line
        assert os.listdir(tmp_path) == []
