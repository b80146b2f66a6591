"""Bad input: exit code, one line of what, one line of fix, and nothing half done."""

import json
from pathlib import Path

import pytest

from forge.postgres.connection import Connection, connect
from tests.command import Forge, Result

pytestmark = pytest.mark.command

LONG = "t" * 51


def refused(result: Result, what: str, fix: str, code: int = 1) -> None:
    lines = result.err.splitlines()
    assert result.code == code, result
    assert len(lines) == 2, result.err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("fix: ")
    assert what in lines[0]
    assert fix in lines[1]
    assert "Traceback" not in result.err + result.out


def untouched(connection: Connection) -> bool:
    """Whether no table is tracked and no trigger was made."""
    tracked = connection.execute("SELECT count(*) FROM forge.tracked_table").fetchone()
    made = connection.execute("SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%forge%'").fetchone()
    return (tracked, made) == ((0,), (0,))


@pytest.fixture
def odd(connection: Connection) -> Connection:
    """Things that cannot be tracked, the temporary table in a session that goes on."""
    connection.execute(
        f"CREATE VIEW a_view AS SELECT 1 AS x; CREATE TEMP TABLE a_temp (id int); CREATE TABLE {LONG} (id int);"
        "CREATE UNLOGGED TABLE an_unlogged (id int); CREATE TABLE a_root (id int) PARTITION BY LIST (id);"
        "CREATE TABLE a_part PARTITION OF a_root DEFAULT"
    )
    return connection


@pytest.mark.parametrize(
    ("tables", "what", "fix"),
    [
        (["nowhere"], "no table nowhere", "spelling"),
        (["orders", "no.where"], "no table no.where", "spelling"),
        (["orders", "a_view"], "is a view", "tables it reads"),
        (["pg_temp.a_temp"], "temporary", "permanent"),
        ([LONG], "50 is the most", "RENAME"),
        (["an_unlogged"], "unlogged", "SET LOGGED"),
        (["a_part"], "is a partition", "a_root"),
        (["orders", "--exclude", "secrte"], "no table here has a column secrte", "--exclude secret"),
        (["orders", "--mask", "customers.secret"], "customers.secret", "--mask"),
        (["orders", "--exclude", "id"], "needs its key columns", "do not exclude"),
        (["pg_catalog.pg_class"], "system table", "your own"),
        (["'; DROP TABLE orders; --"], "no table", "spelling"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, list) else "",
)
def test_a_table_that_cannot_be_tracked(
    forge: Forge, odd: Connection, database: str, tables: list[str], what: str, fix: str
) -> None:
    row = odd.execute("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()").fetchone()
    assert row is not None
    named = [table.replace("pg_temp", row[0]) for table in tables]
    refused(forge("enable", *named, url=database), what, fix)
    assert untouched(odd)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("ordrs", "orders"),
        ("Ordesr", "orders"),
        ("public.order", "public.orders"),
        ("invoices", "sales.invoices"),
        ("sale.invoices", "sales.invoices"),
        ("odd name", '"Odd Name"'),
    ],
)
def test_a_misspelt_table_and_the_one_that_was_meant(
    forge: Forge, connection: Connection, database: str, asked: str, meant: str
) -> None:
    connection.execute('CREATE SCHEMA sales; CREATE TABLE sales.invoices (id int); CREATE TABLE "Odd Name" (id int)')
    for command in ("enable", "disable"):
        refused(forge(command, "customers", asked, url=database), f"no table {asked}", f"did you mean {meant}?")
    assert untouched(connection)


def test_a_misspelt_table_leaves_the_others_tracked(forge: Forge, connection: Connection, database: str) -> None:
    assert forge("enable", "orders", "customers", url=database).code == 0
    refused(forge("disable", "orders", "custommers", url=database), "no table custommers", "did you mean customers?")
    still = connection.execute("SELECT count(*) FROM forge.tracked_table WHERE disabled_at IS NULL").fetchone()
    assert still == (2,)


def test_no_permission(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute("CREATE ROLE nobody_much LOGIN")
    try:
        url = database.replace("postgres@", "nobody_much@")
        for command in (["enable", "orders"], ["init"], ["tail", "--once"], ["status"]):
            refused(forge(*command, url=url), "refuses it: permission denied", "superuser")
        assert untouched(connection)
    finally:
        connection.execute("DROP ROLE nobody_much")


def test_not_the_owner(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute(
        "CREATE ROLE half_way LOGIN; GRANT USAGE ON SCHEMA forge TO half_way;"
        "GRANT ALL ON ALL TABLES IN SCHEMA forge TO half_way;"
        "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA forge, public TO half_way"
    )
    try:
        refused(forge("enable", "orders", url=database.replace("postgres@", "half_way@")), "belongs to", "superuser")
        assert untouched(connection)
    finally:
        connection.execute("DROP OWNED BY half_way; DROP ROLE half_way")


@pytest.mark.parametrize(
    ("url", "what", "fix"),
    [
        ("oracle://db/shop", "not the URL of a database", "postgresql://"),
        ("postgresql://[::1/shop", "malformed", "postgresql://"),
        ("postgresql://127.0.0.1:port/shop", "cannot reach", "correct FORGE_DATABASE_URL"),
        ("postgresql://postgres@127.0.0.1:1/shop", "cannot reach", "start the server"),
    ],
)
def test_a_wrong_url_or_a_server_that_is_down(forge: Forge, url: str, what: str, fix: str) -> None:
    for command in (["status"], ["tail"]):
        refused(forge(*command, url=url), what, fix)


DOWN = "postgresql://postgres@127.0.0.1:1/shop"


@pytest.mark.parametrize(
    ("words", "variables", "file", "source"),
    [
        (["--database-url", DOWN], {"FORGE_DATABASE_URL": "postgresql://x"}, "", "--database-url"),
        (["-d", DOWN], {}, 'database_url = "postgresql://x"', "--database-url"),
        ([], {"FORGE_DATABASE_URL": DOWN}, 'database_url = "postgresql://x"', "FORGE_DATABASE_URL"),
        ([], {"FORGE_WAKEUP": "poll"}, f'database_url = "{DOWN}"', "database_url in forge.toml"),
    ],
)
def test_a_failed_connection_names_where_its_url_came_from(
    forge: Forge, tmp_path: Path, words: list[str], variables: dict[str, str], file: str, source: str
) -> None:
    if file:
        (tmp_path / "forge.toml").write_text(file)
    for command in ("status", "init", "tail", "maintain"):
        refused(forge(command, *words, **variables), "cannot reach", f"start the server, or correct {source}")
    findings = json.loads(forge("doctor", "--json", *words, **variables).out)["findings"]
    assert [finding["fix"] for finding in findings] == [f"start the server, or correct {source}"]


def test_a_url_given_as_an_argument_is_named_as_that(forge: Forge, database: str) -> None:
    refused(forge("tail", DOWN, url=database), "cannot reach", "correct the argument URL")
    refused(forge("tail", "oracle://db", url=database), "no source for oracle:// URLs", "mysql://")
    refused(forge("tail", "postgresql://[::1/x", url=database), "malformed", "write the argument URL as postgresql://")
    assert "correct the argument URL" in forge("doctor", DOWN, url=database).out
    refused(forge("demo", "-d", DOWN, "--seconds", "1"), "cannot reach", "correct --database-url")


def test_a_database_that_does_not_exist(forge: Forge, database: str) -> None:
    url = database.rsplit("/", 1)[0] + "/no_such_database"
    refused(forge("status", url=url), "does not exist", "check the user, password and database in FORGE_DATABASE_URL")


def test_forge_is_not_installed(forge: Forge, empty_database: str) -> None:
    for command in (["enable", "orders"], ["status"], ["tail", "--once"], ["trim"], ["disable", "orders"]):
        refused(forge(*command, url=empty_database), "not installed", "forge init")


def test_half_an_installation(forge: Forge, empty_database: str) -> None:
    with connect(empty_database) as connection:
        connection.execute("CREATE SCHEMA forge; CREATE TABLE forge.leftover (id int)")
        for command in (["init"], ["status"], ["tail", "--once"]):
            refused(forge(*command, url=empty_database), "not as Forge made it", "DROP SCHEMA forge CASCADE")
        assert connection.execute("SELECT to_regclass('forge.schema_version')").fetchone() == (None,)


@pytest.mark.parametrize("lost", ["TABLE forge.forge_event_log", "TABLE forge.trimmed", "SEQUENCE forge.event_id"])
def test_a_lost_table_of_the_installation_and_the_fix_that_is_named(
    forge: Forge, connection: Connection, database: str, lost: str
) -> None:
    forge("enable", "orders", url=database)
    connection.execute(f"DROP {lost} CASCADE".encode())
    what, fix = (
        f"has lost {lost.split(' ')[1]}",
        "restore it from a backup, or DROP SCHEMA forge CASCADE, then forge init",
    )
    for command in (["init"], ["status"], ["tail", "--once"], ["trim"], ["enable", "orders"]):
        refused(forge(*command, url=database), what, fix)
    findings = json.loads(forge("doctor", "--json", url=database).out)["findings"]
    [finding] = [finding for finding in findings if finding["check"] == "installation"]
    assert what in finding["what"]
    assert finding["fix"] == fix
    connection.execute("DROP SCHEMA forge CASCADE")
    for command in (["init"], ["enable", "orders"], ["status"]):
        assert forge(*command, url=database).code == 0
    connection.execute("INSERT INTO orders VALUES (1)")
    assert "INSERT" in forge("tail", "--once", "--format", "json", url=database).out


@pytest.mark.parametrize("lost", ["VIEW forge_events", "FUNCTION forge.log_day", "FUNCTION forge.seal"])
def test_a_lost_function_is_made_anew_by_init(forge: Forge, connection: Connection, database: str, lost: str) -> None:
    connection.execute(f"DROP {lost} CASCADE".encode())
    for command, fixed in ((["doctor"], False), (["init"], True), (["doctor"], True)):
        result = forge(*command, url=database)
        assert ("only half installed" in result.out) is not fixed, result
    assert forge("enable", "orders", url=database).code == 0
    connection.execute("INSERT INTO orders VALUES (1)")


def test_a_newer_schema_is_refused(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute("INSERT INTO forge.schema_version (version, name) VALUES (9999, 'future')")
    for command in (["init"], ["tail", "--once"]):
        refused(forge(*command, url=database), "version 9999", "upgrade forge-changes")


@pytest.mark.parametrize("cursor", ["garbage", "forge1_x", "forge1_" + "9" * 500, "17"])
def test_a_garbage_cursor(forge: Forge, database: str, cursor: str) -> None:
    refused(forge("tail", "--from", cursor, url=database), "is not a cursor", "--from start")


def test_a_cursor_of_another_database(forge: Forge, database: str, empty_database: str) -> None:
    assert forge("init", url=empty_database).code == 0
    with connect(empty_database) as other:
        other.execute("CREATE TABLE t (id int PRIMARY KEY); SELECT forge_enable_reactivity('t')")
    line = forge("tail", "--once", "--format", "json", url=empty_database).out.splitlines()[0]
    cursor = line.rsplit('"cursor":"', 1)[1].removesuffix('"}')
    for more in ([], ["--once"]):
        refused(forge("tail", "--from", cursor, *more, url=database), "another log", "again")


def test_a_table_that_was_never_logged(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute("SELECT forge_enable_reactivity('orders')")
    refused(forge("tail", "--table", "order", url=database), "no change of order", "did you mean orders?")
    refused(forge("tail", "--table", "zzz", url=database), "no change of zzz", "forge enable zzz")


def test_a_column_that_no_table_has(forge: Forge, connection: Connection, database: str) -> None:
    connection.execute("SELECT forge_enable_reactivity('orders')")
    for option in (["--columns", "id,statsu"], ["--where", "statsu = 'paid'"]):
        refused(
            forge("tail", *option, url=database), "orders has no column statsu", "did you mean status? there are: id,"
        )


def test_an_unknown_setting(forge: Forge, tmp_path: Path) -> None:
    (tmp_path / "forge.toml").write_text("retention = 3")
    refused(forge("config"), "unknown setting 'retention'", "retention_days")
    refused(forge("config", "--config", "absent.toml"), "no file absent.toml", "--config")
    (tmp_path / "forge.toml").write_text("[realtime]\nmax_session_per_user = 3")
    refused(forge("config"), "[realtime] in forge.toml has an unknown setting", "did you mean max_sessions_per_user?")
    (tmp_path / "forge.toml").write_text("[realtme]")
    refused(forge("config"), "forge.toml has an unknown table 'realtme'", "did you mean [realtime]?")
    (tmp_path / "forge.toml").write_text("[serve]\nport = -1")
    refused(forge("serve", "shop:app"), "serve.port in forge.toml cannot be -1", "from 0 to 65535")
    (tmp_path / "forge.toml").unlink()
    refused(forge("config", FORGE_DATABASEURL="x"), "FORGE_DATABASEURL", "FORGE_DATABASE_URL")


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["enable"],
        ["enable", "orders", "--all"],
        ["tail", "--format", "xml"],
        ["tail", "--limit", "0"],
        ["trim", "--older-than", "1h"],
        ["status", "--wat"],
    ],
)
def test_a_wrong_command_line(forge: Forge, words: list[str]) -> None:
    refused(forge(*words), "", "--help", code=2)


def test_the_real_command_says_it_the_same_way(process: Forge, database: str) -> None:
    refused(process("enable", "nowhere", url=database), "no table nowhere", "spelling")
    refused(process("enable"), "name the tables", "forge enable --help", code=2)


def test_debug_shows_the_traceback(forge: Forge, database: str) -> None:
    result = forge("enable", "nowhere", "--debug", url=database)
    assert result.code == 1
    assert "Traceback" in result.err
    assert result.err.splitlines()[-2].startswith("error: ")


@pytest.mark.parametrize(
    "words",
    [
        ["enable", "orders"],
        ["enable", "--all"],
        ["disable", "orders"],
        ["status"],
        ["tail"],
        ["tail", "--once"],
        ["trim"],
        ["trim", "--dry-run"],
        ["maintain"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_only_init_and_demo_make_an_embedded_database(forge: Forge, tmp_path: Path, words: list[str]) -> None:
    fix = "forge init here, cd to where it is, or set FORGE_DATABASE_URL"
    refused(forge(*words), "there is no embedded database in ./.forge", fix)
    refused(forge(*words, "--data", str(tmp_path / "else")), f"no embedded database in {tmp_path / 'else'}", fix)
    assert not list(tmp_path.iterdir())
    (tmp_path / ".forge" / "postgres").mkdir(parents=True)
    refused(forge(*words), "there is no embedded database in ./.forge", fix)
    assert not list((tmp_path / ".forge" / "postgres").iterdir())


def test_config_needs_no_database(forge: Forge, tmp_path: Path) -> None:
    assert forge("config").code == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["--json"]], ids=str)
def test_no_command_is_no_error_and_prints_the_help(forge: Forge, tmp_path: Path, words: list[str]) -> None:
    asked, bare = forge("--help"), forge(*words)
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == asked.out
    assert "Usage: forge" in bare.out
    assert not list(tmp_path.iterdir())
