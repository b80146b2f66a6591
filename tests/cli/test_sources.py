"""tail, status and doctor on any source: a SQLite file here, and what is alike for all of them on the log."""

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forge import debezium, wire
from forge.capture.sqlite import enable
from forge.change import Op
from forge.doctor.sources import LOST
from forge.postgres.connection import Connection
from tests.command import Forge

pytestmark = pytest.mark.command

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, status text, total real)")
        connection.execute("CREATE TABLE customers (id integer PRIMARY KEY, name text)")
        enable(f"sqlite:///{path}", ["orders", "customers"])
        yield connection


@pytest.fixture
def url(shop: sqlite3.Connection, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def write(shop: sqlite3.Connection) -> None:
    shop.execute("INSERT INTO orders VALUES (1, 'placed', 12.5), (2, 'placed', 3)")
    shop.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
    shop.execute("INSERT INTO customers VALUES (7, 'Grace')")
    shop.execute("DELETE FROM orders WHERE id = 2")


def rows(out: str) -> list[tuple[str, str]]:
    return [
        (change.op.value, change.row_id)
        for line in out.splitlines()
        if (change := wire.decode(line)).op not in (Op.SCHEMA, Op.INVALIDATE)
    ]


def test_a_file_is_tailed_as_the_log_is(forge: Forge, shop: sqlite3.Connection, url: str) -> None:
    write(shop)
    result = forge("tail", url, "--once", "--format", "json")
    assert (result.code, result.err) == (0, "")
    assert rows(result.out) == [("insert", "1"), ("insert", "2"), ("update", "1"), ("insert", "7"), ("delete", "2")]
    last = json.loads(result.out.splitlines()[-1])["cursor"]
    shop.execute("INSERT INTO orders VALUES (3, 'placed', 1)")
    rest = forge("tail", url, "--from", last, "--once", "--json")
    assert rows(rest.out) == [("insert", "3")]


def test_it_prints_for_people(forge: Forge, shop: sqlite3.Connection, url: str) -> None:
    write(shop)
    result = forge("tail", url, "--once", "--table", "orders")
    update = next(line for line in result.out.splitlines() if "UPDATE" in line)
    for part in ("orders", "UPDATE 1", "status: placed → paid"):
        assert part in update
    assert "main.orders" not in result.out


@pytest.mark.contract("W15")
def test_it_prints_envelopes(forge: Forge, shop: sqlite3.Connection, url: str) -> None:
    write(shop)
    result = forge("tail", url, "--once", "--format", "debezium")
    events = [json.loads(line) for line in result.out.splitlines()]
    assert [event["op"] for event in events] == ["c", "c", "u", "c", "d"]
    assert {event["source"]["connector"] for event in events} == {"sqlite"}
    assert [debezium.decode(line).table for line in result.out.splitlines()].count("orders") == 4


def test_rows_first_then_what_comes(start: Start, shop: sqlite3.Connection, url: str) -> None:
    write(shop)
    tail = start("tail", url, "--snapshot", "--json", "--limit", "3")
    assert tail.stdout is not None
    first = [json.loads(tail.stdout.readline()) for _ in range(2)]
    assert [(line["table"], line["operation"]) for line in first] == [("customers", "READ"), ("orders", "READ")]
    shop.execute("UPDATE customers SET name = 'Ada'")
    assert json.loads(tail.stdout.readline())["operation"] == "UPDATE"
    assert tail.wait(30) == 0


@pytest.mark.parametrize("kind", ["sqlite", "wal"])
def test_the_last_cursor_that_a_snapshot_printed_loses_no_row(
    forge: Forge, shop: sqlite3.Connection, url: str, connection: Connection, database: str, kind: str
) -> None:
    if kind == "wal":
        url = f"{database}?feed=wal"
        connection.execute("INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 40) n")
    else:
        shop.execute("BEGIN")
        shop.executemany("INSERT INTO orders VALUES (?, 'new', 1)", [(n,) for n in range(1, 41)])
        shop.execute("COMMIT")
    whole = forge("tail", url, "--table", "orders", "--snapshot", "--json", "--limit", "40")
    assert (whole.code, whole.err) == (0, "")
    lines = [json.loads(line) for line in whole.out.splitlines()]
    assert {line["id"] for line in lines} == {str(n) for n in range(1, 41)}
    assert "cursor" in lines[-1]
    cut = forge("tail", url, "--table", "orders", "--snapshot", "--json", "--limit", "25")
    seen = [json.loads(line) for line in cut.out.splitlines()]
    saved = [line["cursor"] for line in seen if "cursor" in line]
    handled = seen[: 1 + max(place for place, line in enumerate(seen) if "cursor" in line)] if saved else []
    again = ["--from", saved[-1]] if saved else ["--snapshot"]
    rest = forge("tail", url, "--table", "orders", *again, "--json", "--limit", str(40 - len(handled)))
    ids = [line["id"] for line in handled] + [json.loads(line)["id"] for line in rest.out.splitlines()]
    assert sorted(ids, key=int) == [str(n) for n in range(1, 41)]


@pytest.mark.contract("W9")
@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--table", "orders"], ["insert 1", "insert 2", "update 1", "delete 2"]),
        (["--table", "cust*"], ["insert 7"]),
        (["--op", "insert", "--op", "delete"], ["insert 1", "insert 2", "insert 7", "delete 2"]),
        (["--columns", "status", "--table", "orders"], ["insert 1", "insert 2", "update 1", "delete 2"]),
        (["--columns", "total", "--table", "orders"], ["insert 1", "insert 2", "delete 2"]),
        (["--table", "orders", "--where", "total > 10"], ["insert 1", "update 1"]),
        (["--table", "orders", "--where", "status = 'paid'", "--op", "update"], ["update 1"]),
    ],
)
def test_filters_mean_the_same_on_the_log_and_on_a_file(
    forge: Forge,
    shop: sqlite3.Connection,
    url: str,
    connection: Connection,
    database: str,
    words: list[str],
    kept: list[str],
) -> None:
    write(shop)
    connection.execute("DROP TABLE orders, customers")
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, total float8)")
    connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    connection.execute("SELECT forge_enable_reactivity('orders'), forge_enable_reactivity('customers')")
    write(connection)  # type: ignore[arg-type]
    for source in (url, database, f"{database}?feed=log"):
        result = forge("tail", source, "--once", "--json", *words)
        assert result.err == ""
        assert [" ".join(row) for row in rows(result.out)] == kept, source


def test_a_snapshot_of_the_log(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute("SELECT forge_enable_reactivity('orders')")
    connection.execute("INSERT INTO orders VALUES (1, 'placed'), (2, 'paid')")
    result = forge("tail", database, "--snapshot", "--once", "--json", "--where", "status = 'paid'")
    [line] = result.out.splitlines()
    assert (json.loads(line)["operation"], json.loads(line)["id"]) == ("READ", "2")
    inside = json.loads(line)["cursor"]
    assert "+" in inside
    connection.execute("UPDATE orders SET note = 'x' WHERE id = 2")
    rest = forge("tail", database, "--from", inside, "--once", "--json")
    assert rows(rest.out) == [("update", "2")]


@pytest.mark.contract("W9")
def test_status_says_what_it_can_and_where_filters_run(forge: Forge, shop: sqlite3.Connection, url: str) -> None:
    found = json.loads(forge("status", url, "--json", "--table", "orders", "--where", "total > 1").out)
    assert (found["kind"], found["in_feed"], found["in_forge"]) == ("sqlite", ["tables"], ["rows"])
    assert found["capabilities"]["durable"] is True
    text = forge("status", url, "--table", "orders", "--where", "total > 1").out
    for part in ("sqlite", "retention", "tables in the feed; rows in Forge", "see other processes", "cannot"):
        assert part in text
    assert text.count("\nwaiting ") == 1
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_status_of_the_log_says_so_too(forge: Forge, connection: Connection, database: str) -> None:
    found = json.loads(forge("status", database, "--json", "--op", "insert").out)
    assert (found["in_feed"], found["in_forge"]) == ([], ["operations"])
    assert found["capabilities"]["before"] == "always"
    assert "operations in Forge" in forge("status", "--op", "insert", url=database).out


@pytest.mark.contract("W12")
def test_doctor_says_what_retention_loses(forge: Forge, shop: sqlite3.Connection, url: str, database: str) -> None:
    result = forge("doctor", url, "--json")
    findings = {finding["check"]: finding for finding in json.loads(result.out)["findings"]}
    assert LOST["sqlite"] in findings["cursors"]["what"]
    assert findings["source"]["level"] == "ok"
    assert result.code == 0
    log = json.loads(forge("doctor", database, "--json").out)["findings"]
    assert [LOST["log"] in finding["what"] for finding in log if finding["check"] == "cursors"] == [True]


def test_doctor_finds_what_is_wrong_with_a_source(forge: Forge, tmp_path: Path) -> None:
    gone = forge("doctor", f"sqlite:///{tmp_path / 'nothing.db'}", "--json")
    [finding] = json.loads(gone.out)["findings"]
    assert (gone.code, finding["level"]) == (1, "problem")
    assert finding["fix"]
    down = forge("doctor", "mysql://root@127.0.0.1:1/shop")
    assert down.code == 1
    assert "fix: " in down.out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["tail", "--where", "total >"], "is not a condition"),
        (["tail", "--snapshot", "--from", "now"], "--snapshot begins"),
        (["tail", "--from", "nonsense"], "not a cursor"),
        (["tail", "--from", "mysql1_a_b"], "cursor"),
    ],
)
def test_what_cannot_be_is_said_in_two_lines(forge: Forge, url: str, words: list[str], what: str) -> None:
    result = forge(words[0], url, *words[1:])
    assert result.code == 1
    assert what in result.err
    assert result.err.splitlines()[1].startswith("fix: ")
