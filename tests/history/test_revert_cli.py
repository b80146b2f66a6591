"""`forge revert`, `forge redact` and `forge verify-log` as people and programs use them; upgrading an older log."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from forge.changelog.install import install, migrations
from forge.changelog.maintenance import run_once
from forge.cli import main
from forge.history import chain
from forge.postgres.connection import Connection
from tests.changelog.log import enable

pytestmark = pytest.mark.command

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def forge(database: str, connection: Connection, capsys: pytest.CaptureFixture[str]) -> Run:
    """A table with a short history, and the command on it."""
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric, email text)")
    enable(connection, "orders")
    connection.execute("INSERT INTO orders VALUES (1, 'placed', 10.50, 'a@x'), (2, 'placed', 20, NULL)")
    with connection.transaction():
        connection.execute("SELECT forge_context('mallory', 'checkout', '3f2a')")
        connection.execute("UPDATE orders SET status = E'\\x1b[31mred', total = total + 1")
        connection.execute("INSERT INTO orders VALUES (3, 'new')")

    def run(*words: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["--database-url", database, *words])
        said = capsys.readouterr()
        assert caught.value.code == code, said
        return said.out, said.err

    return run


def statuses(connection: Connection) -> list[Any]:
    return connection.execute("SELECT id, status FROM orders ORDER BY id").fetchall()


def test_a_value_nested_too_deep_to_be_decoded_is_shown_as_its_text(forge: Run, connection: Connection) -> None:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body jsonb)")
    enable(connection, "document")
    with connection.transaction():
        connection.execute("SELECT forge_context('mallory', 'checkout', 'deep')")
        connection.execute("INSERT INTO document VALUES (1, (repeat('[', 3000) || repeat(']', 3000))::jsonb)")
    out, _ = forge("revert", "--trace", "deep", "--dry-run")
    assert "[[[[" in out
    assert "1 row would be written" in out
    out, _ = forge("revert", "--trace", "deep", "--dry-run", "--json")
    assert '"body":' + "[" * 3000 + "]" * 3000 in out
    forge("revert", "--trace", "deep")
    assert connection.execute("SELECT count(*) FROM document").fetchone() == (0,)


@pytest.mark.contract("X7")
def test_revert(forge: Run, connection: Connection) -> None:
    out, _ = forge("revert", "--trace", "3f2a", "--dry-run")
    assert "\\x1b[31mred  placed" in out
    assert "3 rows would be written, for 3 changes of trace 3f2a" in out
    assert "\x1b" not in out
    plan = json.loads(forge("revert", "--user", "mallory", "--since", "1h", "--dry-run", "--json")[0])
    assert plan["conflicts"] == []
    assert {"op": "delete", "table": "orders", "key": "3", "then": {}}.items() <= plan["rows"][0].items()
    assert plan["rows"][-1]["then"] == {"status": "placed", "total": 10.5}
    assert len(statuses(connection)) == 3
    connection.execute("UPDATE orders SET status = 'sent' WHERE id = 2")
    out, err = forge("revert", "--trace", "3f2a", code=1)
    assert "✗ orders 2: status changed since" in err
    assert "error: 1 row cannot be reverted, so nothing was\nfix: " in err
    assert "it would be refused" in forge("revert", "--trace", "3f2a", "--dry-run", code=1)[0]
    connection.execute("UPDATE orders SET status = E'\\x1b[31mred' WHERE id = 2")
    done = json.loads(forge("revert", "--trace", "3f2a", "--as", "ada", "--json")[0])
    assert done["rows"] == {"orders": 3}
    assert statuses(connection) == [(1, "placed"), (2, "placed")]
    out, _ = forge("revert", "--transaction", done["transaction"])
    assert "3 changes reverted in transaction" in out
    assert len(statuses(connection)) == 3


def test_revert_asks_for_what_it_needs(forge: Run) -> None:
    assert "give one of a trace, a transaction, a user" in forge("revert", code=1)[1]
    assert "has no time zone" in forge("revert", "--user", "a", "--since", "2026-11-10 09:00", code=1)[1]
    assert "the log knows no table oders" in forge("revert", "--trace", "3f2a", "--table", "oders", code=1)[1]


def test_redact(forge: Run, connection: Connection) -> None:
    out, _ = forge("redact", "orders", "1", "--columns", "email,total", "--dry-run")
    assert "✓ email, total of public.orders 1 would be redacted in 2 changes" in out
    assert "! the row itself still has email, total: update it" in out
    connection.execute("UPDATE orders SET email = NULL, total = NULL WHERE id = 1")
    done = json.loads(forge("redact", "orders", "id=1", "--columns", "email, total", "--reason", "asked", "--json")[0])
    assert (done["changes"], done["current"], done["keys"]) == (3, [], ["1"])
    events = connection.execute("SELECT count(*) FROM forge_events WHERE new_data::text LIKE '%%a@x%%'").fetchone()
    assert events == (0,)
    out, _ = forge("tail", "--from", "start", "--once", "--no-color")
    assert "REDACT" in out
    assert "orders has no column mail" in forge("redact", "orders", "1", "--columns", "mail", code=1)[1]
    assert "invalid input syntax" in forge("redact", "orders", "one", "--columns", "email", code=1)[1]


def test_verify_log(forge: Run, connection: Connection, database: str) -> None:
    assert "fix: forge verify-log --start" in forge("verify-log", code=1)[1]
    assert "sealed from now on" in forge("verify-log", "--start")[0]
    run_once(database)
    out, _ = forge("verify-log")
    [head] = json.loads(forge("verify-log", "--heads", "--json")[0])
    assert "✓ 6 rows as sealed in 2 seals" in out
    assert f"head {head['head']}" in out
    assert head["head"] in forge("verify-log", "--heads")[0]
    connection.execute("DELETE FROM forge.forge_event_log WHERE row_id = '3'")
    out, _ = forge("verify-log", "--day", head["day"], "--head", head["head"].upper(), code=1)
    assert out.startswith("✗ row ")
    assert "is gone" in out
    report = json.loads(forge("verify-log", "--json", code=1)[0])
    assert [finding["what"] for finding in report["broken"]] == ["removed"]
    assert "--day cannot be 'today'" in forge("verify-log", "--day", "today", code=2)[1]
    assert "by themselves" in forge("verify-log", "--start", "--heads", code=2)[1]


def test_a_log_from_before_seals_is_upgraded_in_place(connection: Connection) -> None:
    """What an older program installed, with its changes, gets the tables and functions of seals and keeps all else."""
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    enable(connection, "t")
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    connection.execute("DROP TABLE forge.sealing, forge.log_seal, forge.redaction CASCADE")
    connection.execute("DELETE FROM forge.schema_version WHERE version >= 3")
    before = connection.execute("SELECT * FROM forge_events ORDER BY id").fetchall()
    seals = [step for step in migrations() if step.name in ("seals", "sealed_definitions")]
    assert install(connection, seals) == seals
    assert connection.execute("SELECT * FROM forge_events ORDER BY id").fetchall() == before
    connection.execute("UPDATE t SET name = 'b'")
    chain.start(connection)
    while chain.seal(connection):
        pass
    report = chain.verify(connection)
    assert (report.broken, report.rows, report.unsealed) == ([], 3, 0)
