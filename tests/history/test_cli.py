"""`forge history`, `forge audit` and `forge as-of` as people and programs use them."""

import csv
import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from forge.cli import main
from forge.postgres.connection import Connection
from tests.history.moments import begin, record

pytestmark = pytest.mark.command


class Done(NamedTuple):
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def forge(database: str, connection: Connection) -> Run:
    """A shop with a short history, and the command on it."""
    begin(connection)
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric, secret text)")
    connection.execute("CREATE TABLE line (region text, number int, PRIMARY KEY (region, number))")
    connection.execute(
        "SELECT forge_enable_reactivity('orders', exclude => '{secret}'), forge_enable_reactivity('line')"
    )
    for user, statement in (
        ("ada", "INSERT INTO orders VALUES (1, 'placed', 10.50, 'pin'), (2, E'\\x1b[31mred', 20, 'pin')"),
        ("bob", "UPDATE orders SET status = 'paid', secret = 'new' WHERE id = 1"),
        ("bob", "INSERT INTO line VALUES ('eu', 7)"),
    ):
        with connection.transaction():
            connection.execute("SELECT forge_context(user_id => %s, function_name => 'checkout')", (user,))
            connection.execute(statement.encode())
        record(connection, ["orders"])
    connection.execute("DELETE FROM orders WHERE id = 1")

    def run(*words: str, fails: bool = False) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(["--database-url", database, *words])
        assert ended.value.code == (1 if fails else 0), err.getvalue()
        return Done(out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def recorded(forge: Run, connection: Connection) -> str:
    """The last recorded instant: before the row was deleted."""
    row = connection.execute("SELECT max(at) FROM forge.instant").fetchone()
    assert row is not None
    return str(row[0].isoformat())


def lines(done: Done) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_history(forge: Run, recorded: str) -> None:
    shown = forge("history", "orders", "1").stdout.splitlines()
    assert [line.split()[2] for line in shown] == ["DELETE", "UPDATE", "INSERT", "SCHEMA"]
    assert "status: placed → paid, secret: (hidden)  bob · checkout" in shown[1]
    differences = forge("history", "orders", "1", "--diff", "--limit", "2").stdout
    assert "    status: placed → paid\n" in differences
    assert "there are more: --before" in differences
    found = lines(forge("history", "orders", "1", "--json"))
    assert [entry["op"] for entry in found[:-1]] == ["DELETE", "UPDATE", "INSERT", "SCHEMA"]
    assert found[-1] == {"next": None}
    assert lines(forge("history", "line", "region=eu,number=7", "--json", "--limit", "1"))[0]["key"] == {
        "region": "eu",
        "number": 7,
    }
    assert "\x1b" not in forge("history", "orders", "2").stdout
    then = forge("history", "orders", "1", "--at", recorded)
    assert "(unknown)" in then.stdout
    assert "public.orders as of" in then.stderr
    row, told = lines(forge("history", "orders", "1", "--at", recorded, "--json"))
    assert (row["id"], told["as_of"]["table"], told["as_of"]["gap_seconds"]) == (1, "public.orders", 0)
    assert "there was no such row" in forge("history", "orders", "1", "--at", "now").stdout
    never = forge("history", "orders", "99999")
    assert "the log has no change of such a row" in never.stdout + never.stderr


def test_audit(forge: Run) -> None:
    listed = lines(forge("audit", "--user", "bob", "--json"))
    assert [(line["table"], line["op"]) for line in listed[:-1]] == [
        ("public.line", "INSERT"),
        ("public.orders", "UPDATE"),
    ]
    counted = lines(forge("audit", "--by", "user", "--op", "insert", "--json"))
    assert {line["user"]: line["changes"] for line in counted} == {"ada": 2, "bob": 1}
    assert "changes" in forge("audit", "--by", "user,table,op", "--since", "1d").stdout
    assert "status, secret" in forge("audit", "--op", "UPDATE", "--table", "orders").stdout
    for options in (["--trace", "never"], ["--trace", "never", "--by", "user"]):
        nothing = forge("audit", *options)
        assert "no change in the log matches" in nothing.stdout + nothing.stderr


def test_as_of(forge: Run, recorded: str) -> None:
    *found, told = lines(forge("as-of", "orders", "--at", recorded, "--where", "total < 15", "--json"))
    assert found == [{"id": 1, "status": "paid", "total": {"$numeric": "10.50"}, "secret": {"$unavailable": True}}]
    assert told["as_of"].keys() == {
        "table",
        "asked",
        "at",
        "gap_seconds",
        "changes_between",
        "changes_unsure",
        "changes_capped",
    }
    rows = list(csv.DictReader(io.StringIO(forge("as-of", "orders", "--at", recorded, "--csv").stdout)))
    assert {(row["id"], row["total"], row["secret"]) for row in rows} == {("1", "10.50", ""), ("2", "20", "")}
    shown = forge("as-of", "orders", "--at", recorded, "--key", "1")
    assert shown.stdout.split()[:4] == ["id", "status", "total", "secret"]
    assert "public.orders as of" in shown.stderr
    assert [line for line in shown.stdout.splitlines() if line != line.rstrip()] == []
    both = lines(forge("as-of", "orders", "line", "--at", "now", "--json"))
    assert {(line["table"], len(line["row"])) for line in both if "row" in line} == {("orders", 4), ("line", 2)}
    assert {line["as_of"]["at"] for line in both if "as_of" in line} == {both[-1]["as_of"]["asked"]}


def test_as_of_says_how_old_the_answer_is(forge: Run, recorded: str, connection: Connection) -> None:
    at = datetime.fromisoformat(recorded)
    connection.execute("INSERT INTO orders SELECT n, 'new', 1, NULL FROM generate_series(10, 12) n")
    written = connection.execute("SELECT clock_timestamp()").fetchone()
    assert written is not None
    record(connection, ["orders"])
    asked = written[0].isoformat()
    *found, told = lines(forge("as-of", "orders", "--at", asked, "--json"))
    assert len(found) == 2
    assert told["as_of"]["gap_seconds"] == (written[0] - at).total_seconds()
    assert told["as_of"]["changes_between"] == 4
    assert " s before; 4 changes lie between)" in forge("as-of", "orders", "--at", asked).stderr
    assert " s before; no change lies between)" in forge("as-of", "line", "--at", asked).stderr
    assert "before" not in forge("as-of", "orders", "--at", "now").stderr
    assert len(lines(forge("as-of", "orders", "--at", "now", "--json"))[:-1]) == 4


@pytest.mark.parametrize(
    ("words", "error", "fix"),
    [
        (("history", "orders", "1", "--at", "2026-11-10 09:00"), "no time zone", "2026-11-10 09:00+00"),
        (("as-of", "orders", "--at", "2020-01-01T00:00Z"), "before the first recorded instant", "the oldest"),
        (("as-of", "order", "--at", "now"), "there is no table order", "did you mean orders?"),
        (("as-of", "orders", "--at", "now", "--where", "x = 1"), "cannot be asked", "could stand behind WHERE"),
        (("history", "line", "7"), "the key of line is region, number", "region=…,number=…"),
        (("history", "orders", '{"id": '), "not JSON", "a=1,b=2"),
        (("audit", "--since", "yesterday"), "not an instant", "1h ago"),
        (("audit", "--by", "colour"), "counted by", "table, user, op"),
        (("history", "orders", "1", "--before", "x"), "no place", "page"),
    ],
)
def test_errors_say_what_to_do(forge: Run, words: tuple[str, ...], error: str, fix: str) -> None:
    told = forge(*words, fails=True).stderr.splitlines()
    assert len(told) == 2
    assert error in told[0]
    assert fix in told[1]
