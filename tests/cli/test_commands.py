"""init, enable, disable, status, trim, config: what they do, and what they say."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from forge.changelog import partitions
from forge.postgres import leases
from forge.postgres.connection import Connection, connect
from tests.command import Forge

pytestmark = pytest.mark.command


def tracked(connection: Connection) -> dict[str, tuple[list[str], list[str], bool, str]]:
    rows = connection.execute(
        "SELECT table_name, excluded, masked, replica, on_failure FROM forge.tracked_table WHERE disabled_at IS NULL"
    )
    return {name: (excluded, masked, replica, failure) for name, excluded, masked, replica, failure in rows}


def test_init_installs_and_does_so_once(forge: Forge, empty_database: str) -> None:
    first = forge("init", "--json", url=empty_database)
    assert first.code == 0
    assert json.loads(first.out)["applied"]
    again = forge("init", url=empty_database)
    assert (again.code, again.err) == (0, "")
    assert "installed already" in again.out
    assert json.loads(forge("status", "--json", url=empty_database).out)["tables"] == []


def test_init_without_a_superuser_says_that_ddl_is_polled(forge: Forge, empty_database: str) -> None:
    name = empty_database.rsplit("/", 1)[1]
    with connect(empty_database) as connection:
        connection.execute("CREATE ROLE plain_owner LOGIN")
        connection.execute(f"ALTER DATABASE {name} OWNER TO plain_owner; ALTER SCHEMA public OWNER TO plain_owner")
        try:
            url = empty_database.replace("postgres@", "plain_owner@")
            result = forge("init", url=url)
            assert (result.code, result.err) == (0, "")
            assert "no event trigger" in result.out
            with connect(url) as owner:
                owner.execute("CREATE TABLE t (id int PRIMARY KEY)")
            assert forge("enable", "t", url=url).code == 0
            assert json.loads(forge("status", "--json", url=url).out)["ddl"] == "polled"
        finally:
            connection.execute("REASSIGN OWNED BY plain_owner TO postgres; DROP ROLE plain_owner")


@pytest.mark.parametrize(
    ("mode", "seen"), [("DISABLE", "polled"), ("ENABLE REPLICA", "polled"), ("ENABLE ALWAYS", "event_trigger")]
)
def test_status_knows_whether_ddl_is_seen(
    forge: Forge, connection: Connection, database: str, mode: str, seen: str
) -> None:
    connection.execute(f"ALTER EVENT TRIGGER forge_rewrite {mode}".encode())
    assert json.loads(forge("status", "--json", url=database).out)["ddl"] == seen
    assert json.loads(forge("init", "--json", url=database).out)["ddl"] == "event_trigger"
    assert json.loads(forge("status", "--json", url=database).out)["ddl"] == "event_trigger"


def test_enable_says_how_many_and_keeps_what_is_not_said(forge: Forge, connection: Connection, database: str) -> None:
    result = forge("enable", "orders", "public.customers", "--exclude", "secret", "--mask", "orders.note", url=database)
    assert (result.code, result.err) == (0, "")
    assert "2 tables tracked: orders, customers" in result.out
    expected = {
        "orders": (["secret"], ["note"], False, "fail"),
        "customers": (["secret"], [], False, "fail"),
    }
    assert tracked(connection) == expected
    assert forge("enable", "orders", url=database).code == 0
    assert tracked(connection) == expected
    assert forge("enable", "orders", "--replica", "--on-failure", "invalidate", url=database).code == 0
    assert tracked(connection)["orders"] == (["secret"], ["note"], True, "invalidate")


@pytest.mark.parametrize(
    ("meanwhile", "name"),
    [
        ("SELECT 1", "orders"),
        ("ALTER TABLE orders RENAME TO sales", "sales"),
        ("CREATE SCHEMA sales; ALTER TABLE orders SET SCHEMA sales", "sales.orders"),
        ("ALTER TABLE orders RENAME TO old; CREATE TABLE orders (LIKE old INCLUDING ALL)", "orders"),
    ],
    ids=["as it was", "renamed", "moved", "made again"],
)
def test_enable_after_disable_keeps_what_was_excluded(
    forge: Forge, connection: Connection, database: str, meanwhile: str, name: str
) -> None:
    forge("enable", "orders", "--exclude", "secret", "--mask", "note", "--on-failure", "invalidate", url=database)
    forge("disable", "orders", url=database)
    connection.execute(meanwhile.encode())
    assert forge("enable", name, url=database).code == 0
    connection.execute(f"INSERT INTO {name} VALUES (1, 'placed', 'for her', 'hush')".encode())
    settings = "SELECT excluded, masked, on_failure FROM forge.tracked_table WHERE disabled_at IS NULL"
    assert connection.execute(settings).fetchone() == (["secret"], ["note"], "invalidate")
    (logged,) = connection.execute("SELECT after::text FROM forge.forge_event_log WHERE op = 'I'").fetchone() or ("",)
    assert "hush" not in logged
    assert "her" not in logged


def test_enable_all_passes_over_what_cannot_be_tracked(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute(
        'CREATE UNLOGGED TABLE scratch (id int); CREATE SCHEMA sales;CREATE TABLE sales."Odd Name" (id int PRIMARY KEY)'
    )
    forge("enable", "orders", "--exclude", "secret", url=database)
    result = json.loads(forge("enable", "--all", "--json", url=database).out)
    assert result["enabled"] == ["customers", 'sales."Odd Name"']
    assert list(result["skipped"]) == ["scratch"]
    assert tracked(connection)["orders"][0] == ["secret"]
    assert "scratch is not tracked" in forge("enable", "--all", url=database).out


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.cli.tables.LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr("forge.cli.tables.ATTEMPTS", 3)
    monkeypatch.setattr("forge.cli.tables.PAUSE", 0.01)


@pytest.mark.usefixtures("hasty")
def test_a_busy_table_is_an_error_that_says_what_was_done_and_not_a_wait_for_ever(
    forge: Forge, connection: Connection, database: str
) -> None:
    with connect(database) as other, other.transaction():
        other.execute("INSERT INTO orders VALUES (1)")
        result = forge("enable", "customers", "orders", url=database)
        alone = forge("enable", "orders", url=database)
    assert (result.code, alone.code) == (1, 1)
    assert "orders is in use by a transaction that does not end; done by now: customers" in result.err
    assert "done by now" not in alone.err
    assert tracked(connection).keys() == {"customers"}
    assert forge("enable", "customers", "orders", url=database).code == 0
    with connect(database) as other, other.transaction():
        other.execute("INSERT INTO orders VALUES (2)")
        result = forge("disable", "customers", "orders", url=database)
    assert "orders is in use by a transaction that does not end; done by now: customers" in result.err
    assert tracked(connection).keys() == {"orders"}


def test_a_writer_that_uses_both_tables_ends_in_no_deadlock(
    start: Callable[..., "subprocess.Popen[str]"], connection: Connection, database: str
) -> None:
    """The writer holds the second table and, while it is waited for, asks for the first: each gets what it wants."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
    with connect(database) as writer, writer.transaction():
        writer.execute("SET LOCAL deadlock_timeout = '10ms'; INSERT INTO orders VALUES (1)")
        process = start("enable", "customers", "orders", "--json", url=database)
        while connection.execute(waiting).fetchone() == (0,):
            assert process.poll() is None
        writer.execute("INSERT INTO customers VALUES (1)")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["enabled"] == ["customers", "orders"]
    assert tracked(connection).keys() == {"customers", "orders"}
    assert connection.execute("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM customers)").fetchone() == (
        1,
        1,
    )


def test_disable_ends_tracking_and_keeps_the_log(forge: Forge, connection: Connection, database: str) -> None:
    forge("enable", "orders", url=database)
    connection.execute("INSERT INTO orders VALUES (1)")
    assert "orders is no longer tracked" in forge("disable", "orders", url=database).out
    assert tracked(connection) == {}
    connection.execute("INSERT INTO orders VALUES (2)")
    assert connection.execute("SELECT count(*) FROM forge_events WHERE operation = 'INSERT'").fetchone() == (1,)
    again = forge("disable", "orders", url=database)
    assert again.code == 0
    assert "was not tracked" in again.out


def test_status_counts_what_happened(forge: Forge, connection: Connection, database: str) -> None:
    forge("enable", "orders", "--mask", "secret", url=database)
    connection.execute("INSERT INTO orders SELECT n FROM generate_series(1, 119) n")
    found = json.loads(forge("status", "--json", url=database).out)
    [table] = found["tables"]
    assert (table["table"], table["changes"], table["masked"]) == ("public.orders", 120, ["secret"])
    assert table["changes_per_second"] == found["changes_per_second"] == 2.0
    assert found["log_bytes"] > 0
    assert found["partitions"] == 8
    assert (found["overflow"], found["lag_seconds"], found["ddl"]) == (False, 0.0, "event_trigger")
    text = forge("status", url=database).out
    for part in ("orders", "2.0", "120", "mask secret", "seen at once"):
        assert part in text


COMMANDS = (
    "init", "enable", "disable", "status", "tail", "crosscheck", "trim", "maintain", "doctor", "config", "demo",
)  # fmt: skip
STATUS_TIMES = ("at", "newest_change", "maintenance_last_ran", "first_day", "last_day")
STATUS_WORDS = {
    "readers": {"awake", "asleep", "none"},
    "wakeup": {"auto", "notify", "poll"},
    "ddl": {"event_trigger", "polled"},
}


def test_status_for_programs_holds_numbers_times_and_words_of_a_set(
    forge: Forge, connection: Connection, database: str
) -> None:
    fresh = json.loads(forge("status", "--json", url=database).out)
    assert (fresh["newest_change"], fresh["maintenance_last_ran"], fresh["log_size_limit"]) == (None, None, None)
    forge("enable", "orders", url=database)
    forge("trim", url=database)
    connection.execute("INSERT INTO orders VALUES (1)")
    found = json.loads(forge("status", "--json", url=database, FORGE_LOG_SIZE_LIMIT="1GB").out)
    assert found.keys() == fresh.keys()
    for name in STATUS_TIMES:
        datetime.fromisoformat(found[name])
    assert all(found[name].endswith("Z") for name in STATUS_TIMES[:3])
    assert found["tables"][0]["newest_change"].endswith("Z")
    for name, words in STATUS_WORDS.items():
        assert found[name] in words
    assert (found["maintenance_running"], found["readers"], found["log_size_limit"]) == (False, "none", 1024**3)
    assert found["server_version_num"] // 10000 == int(found["server_version"].split(".")[0])
    assert not [name for name, value in found.items() if isinstance(value, str) and (" " in value or value == "")]
    assert leases.take(connection, leases.MAINTENANCE)
    found = json.loads(forge("status", "--json", url=database).out)
    assert found["maintenance_running"] is True
    assert [(held["name"], held["pid"]) for held in found["leases"]] == [("maintenance", connection.info.backend_pid)]
    assert f"running (pid {connection.info.backend_pid}" in " ".join(forge("status", url=database).out.split())


def test_trim_drops_old_days_and_says_so_first(forge: Forge, connection: Connection, database: str) -> None:
    old = date.today() - timedelta(days=9)
    partitions.make(connection, old)
    dry = forge("trim", "--older-than", "7d", "--dry-run", url=database)
    assert partitions.partition_name(old) in dry.out
    assert old in partitions.attached(connection)
    result = forge("trim", "--older-than", "7d", "--json", url=database)
    assert json.loads(result.out)["dropped"] == [partitions.partition_name(old)]
    assert old not in partitions.attached(connection)
    assert "nothing to drop" in forge("trim", url=database).out


def test_a_dry_run_foretells_what_the_size_limit_takes(forge: Forge, connection: Connection, database: str) -> None:
    for number in (5, 4):
        partitions.make(connection, datetime.now(UTC).date() - timedelta(days=number))
    for limit, expected in (("1 kB", 2), ("1 GB", 0)):
        foretold = json.loads(forge("trim", "--dry-run", "--json", url=database, FORGE_LOG_SIZE_LIMIT=limit).out)
        told = forge("trim", "--dry-run", url=database, FORGE_LOG_SIZE_LIMIT=limit).out
        done = json.loads(forge("trim", "--json", url=database, FORGE_LOG_SIZE_LIMIT=limit).out)
        assert foretold["would_drop"] == done["dropped"]
        assert len(done["dropped"]) == expected
        assert ("2 days would go" in told, "over the size limit" in told) == (expected > 0, expected > 0)
    assert "1 day)" in forge("trim", "--dry-run", "--older-than", "1d", url=database).out


def test_trim_does_not_overrule_whoever_maintains(forge: Forge, connection: Connection, database: str) -> None:
    assert leases.take(connection, leases.MAINTENANCE)
    assert "another process maintains" in forge("trim", url=database).out
    assert forge("trim", "--older-than", "7d", url=database).code == 1


def test_config_says_where_each_value_came_from(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "forge.toml").write_text(
        'retention_days = 7\nhold_days = 9\ndatabase_url = "postgresql://weaker/x"\n'
        '[realtime]\nmax_sessions_per_user = 4\ndebounce = "20ms"\n'
    )
    url = "postgresql://ada:hunter2@db/shop?sslpassword=hunter2"
    result = forge(
        "config",
        "--json",
        "--database-url",
        url,
        FORGE_WAKEUP="poll",
        FORGE_RETENTION_DAYS="3",
        FORGE_REALTIME_MAX_SESSIONS_PER_USER="1",
    )
    found = json.loads(result.out)
    assert found["database_url"]["origin"] == "--database-url"
    assert found["retention_days"] == {"value": 3, "origin": "FORGE_RETENTION_DAYS"}
    assert found["hold_days"] == {"value": 9, "origin": "forge.toml"}
    assert found["realtime.debounce"] == {"value": "20ms", "origin": "forge.toml"}
    assert found["realtime.max_sessions_per_user"] == {"value": 1, "origin": "FORGE_REALTIME_MAX_SESSIONS_PER_USER"}
    assert found["pipeline.lake"] == {"value": None, "origin": "default"}
    assert found["wakeup"] == {"value": "poll", "origin": "FORGE_WAKEUP"}
    assert found["data"] == {"value": ".forge", "origin": "default"}
    text = forge("config", "-d", url).out
    assert "realtime.debounce                    20ms " in text
    assert "(all tracked tables)" in text
    assert "hunter2" not in result.out + text
    assert "postgresql://ada:***@db/shop" in text


def test_every_command_has_examples(forge: Forge) -> None:
    listed = forge("--help").out
    for command in (*COMMANDS, "slot"):
        assert command in listed
        shown = forge(command, "--help")
        assert shown.code == 0
        assert f"forge {command}" in shown.out.split("Example", 1)[1]


def test_every_commands_help_lists_the_flags_that_every_command_takes(forge: Forge) -> None:
    assert "before or after a command" in forge("--help").out
    for command in (*COMMANDS, "slot list", "slot create", "slot drop", "slot advance"):
        before, panel, after = forge(*command.split(), "--help").out.partition("Options of every command")
        assert panel
        for flag in ("--database-url", "-d", "--config", "--data", "--json", "--no-color", "--debug"):
            assert flag in after
        assert "--version" not in before + after


@pytest.mark.parametrize(
    "words",
    [
        ["-d", "postgresql://db/x", "--json", "config"],
        ["config", "-d", "postgresql://db/x", "--json"],
        ["config", "--json", "-dpostgresql://db/x"],
        ["--json", "config", "--database-url=postgresql://db/x", "--no-color", "--debug"],
    ],
    ids=" ".join,
)
def test_those_flags_stand_before_or_after_the_command(forge: Forge, words: list[str]) -> None:
    result = forge(*words)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["database_url"] == {"value": "postgresql://db/x", "origin": "--database-url"}


def test_the_version(process: Forge) -> None:
    result = process("--version")
    assert result.code == 0
    assert re.fullmatch(r"forge \d+\.\d+\.\d+\S*\n", result.out)


def test_a_ctrl_c_while_waiting_is_quiet(
    start: Callable[..., "subprocess.Popen[str]"], connection: Connection, database: str
) -> None:
    with connect(database) as other, other.transaction():
        other.execute("INSERT INTO orders VALUES (1)")
        process = start("enable", "orders", url=database)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'orders'::regclass"
        while connection.execute(waiting).fetchone() == (0,):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert tracked(connection) == {}


@pytest.mark.contract("X9")
def test_doctor_fails_on_a_problem_and_says_the_fix(forge: Forge, database: str) -> None:
    result = forge("doctor", "--json", url=database)
    found = json.loads(result.out)
    assert (result.code, found["healthy"]) == (1, False)
    [problem] = [finding for finding in found["findings"] if finding["level"] == "problem"]
    assert "fsync" in problem["what"]
    text = forge("doctor", database).out
    assert f"✗ {problem['what']}\n  fix: {problem['fix']}\n" in text


@pytest.mark.contract("X9")
def test_doctor_does_not_fail_on_warnings(forge: Forge, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.doctor.ON_A_PRIMARY", ())
    result = forge("doctor", url=database)
    assert result.code == 0
    assert "! no table is tracked" in result.out
