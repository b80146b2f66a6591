"""`forge crosscheck` as people run it: what it prints, how it ends, and what it leaves behind."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable

import pytest

from forge.postgres.connection import Connection, connect
from tests.command import Forge

pytestmark = [pytest.mark.command, pytest.mark.contract("X8")]
Start = Callable[..., "subprocess.Popen[str]"]
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
STREAMS = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"


@pytest.fixture
def shop(database: str, forge: Forge) -> str:
    assert forge("enable", "orders", "--mask", "secret", url=database).code == 0
    return database


def wait(connection: Connection, query: str, wanted: int, process: "subprocess.Popen[str] | None" = None) -> None:
    end = time.monotonic() + 30
    while connection.execute(query.encode()).fetchone() != (wanted,):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end


def test_equal_feeds_end_with_0(forge: Forge, shop: str) -> None:
    result = forge("crosscheck", "--for", "200ms", url=shop)
    assert (result.code, result.err) == (0, "")
    assert "log = WAL   1 table   0 transactions   0 changes" in result.out
    assert "public.customers is left out: it is not tracked" in result.out
    found = json.loads(forge("crosscheck", "--until-quiet", "--table", "orders", "--json", url=shop).out)
    assert (found["equal"], found["tables"], found["left_out"]) == (True, ["public.orders"], {})


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_write_past_the_triggers_ends_with_1(start: Start, shop: str, form: str) -> None:
    words = ["--json"] if form == "json" else []
    process = start("crosscheck", "--until-quiet", *words, url=shop)
    with connect(shop) as connection:
        wait(connection, STREAMS, 1, process)
        connection.execute("INSERT INTO orders VALUES (1, 'new'), (2, 'new')")
        connection.execute("SET session_replication_role = replica; UPDATE orders SET status = 'paid' WHERE id = 1")
        connection.execute('UPDATE forge.forge_event_log SET after = \'{"id":2,"status":"old"}\' WHERE row_id = \'2\'')
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (1, "")
        wait(connection, SLOTS, 0)
        wait(connection, "SELECT count(*) FROM pg_publication", 0)
    if form == "json":
        found = json.loads(out)
        assert (found["equal"], found["missing_in_log"], found["differing"], found["missing_in_wal"]) == (
            False,
            1,
            1,
            0,
        )
        other, missing = found["differences"]
        assert (missing["kind"], missing["table"], missing["key"], missing["op"]) == (
            "missing_in_log", "public.orders", "1", "update",
        )  # fmt: skip
        assert other["values"] == [{"column": "status", "image": "after", "log": "old", "wal": "new"}]
    else:
        assert re.search(
            r"! missing in the log: update of public.orders 1 in transaction \d+;"
            r" the WAL has it at [0-9A-F]+/[0-9A-F]+\n",
            out,
        )
        assert "a possible cause" not in out
        assert "why the log lacks changes of public.orders is not known: their triggers and trigger functions" in out
        assert "a session that set session_replication_role itself" in out
        assert "after status: 'old' in the log, 'new' in the WAL\n" in out
        assert "2 differences in 2 transactions   3 changes: 1 missing in the log, 0 missing in the WAL, 1 with" in out


@pytest.mark.parametrize(
    ("trap", "write", "cause"),
    [
        (
            "ALTER TABLE orders DISABLE TRIGGER forge_update_orders",
            "UPDATE orders SET status = 'paid'",
            "the trigger forge_update_orders on orders is disabled",
        ),
        (
            "ALTER TABLE orders DISABLE TRIGGER forge_update_orders; ALTER TABLE customers DISABLE TRIGGER USER",
            "UPDATE orders SET status = 'paid'",
            "the trigger forge_update_orders on orders is disabled",
        ),
        (
            "DO $$ BEGIN"
            " EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database());"
            " END $$; SET session_replication_role = replica",
            "UPDATE orders SET status = 'paid'",
            "session_replication_role is replica for every role",
        ),
    ],
    ids=["disabled", "of another table", "replica role"],
)
def test_a_cause_is_named_only_if_it_was_found(
    forge: Forge, start: Start, shop: str, trap: str, write: str, cause: str
) -> None:
    assert forge("enable", "customers", url=shop).code == 0
    with connect(shop) as connection:
        connection.execute("INSERT INTO orders VALUES (1, 'new')")
        connection.execute("ALTER EVENT TRIGGER forge_ddl DISABLE")
        connection.execute(trap.encode())
        process = start("crosscheck", "--until-quiet", url=shop)
        wait(connection, STREAMS, 1, process)
        connection.execute(write.encode())
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")
    [named] = (line for line in out.splitlines() if "a possible cause, found just now" in line)
    assert cause in named
    assert "; fix: " in named
    assert "is not known" not in out
    assert "customers" not in named or "replica" in cause


def test_a_kill_leaves_no_slot(start: Start, forge: Forge, shop: str) -> None:
    process = start("crosscheck", "--for", "10m", url=shop)
    with connect(shop) as connection:
        wait(connection, f"{SLOTS} AND temporary", 1, process)
        os.kill(process.pid, 9)
        process.wait(30)
        wait(connection, SLOTS, 0)
        assert forge("crosscheck", "--for", "0s", url=shop).code == 0
        wait(connection, "SELECT count(*) FROM pg_publication", 0)


def test_what_cannot_be_told_ends_with_2(forge: Forge, shop: str) -> None:
    for url, words, what, fix in (
        (shop, ["--table", "customers"], "no table can be compared", "forge enable"),
        (shop, ["--slot", "nobody"], "there is no publication nobody", "--publication"),
        (shop.rpartition("/")[0] + "/postgres", [], "not installed", "forge init"),
        (shop, ["--for", "soon"], "'soon'", "--help"),
        (shop, ["--for", "1s", "--until-quiet"], "--for or --until-quiet", "--help"),
    ):
        result = forge("crosscheck", *words, url=url)
        assert (result.code, result.out) == (2, "")
        error, told = result.err.splitlines()
        assert error.startswith("error: ")
        assert what in error
        assert told.startswith("fix: ")
        assert fix in told


def test_a_window_that_is_broken_off_ends_with_2(start: Start, shop: str) -> None:
    process = start("crosscheck", "--for", "10m", url=shop)
    with connect(shop) as connection:
        wait(connection, STREAMS, 1, process)
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "the window was broken off" in err
    assert "open another one" in err
