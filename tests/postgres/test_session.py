"""Databases and roles whose settings are not Forge's: everything gives the same answers, or says what is wrong."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

import forge
from forge.capture.wal import WalSource
from forge.change import Change, Op
from forge.changelog.install import install
from forge.changelog.maintenance import run_once
from forge.changelog.reader import Reader
from forge.deliver.consumers import ConsumerContext, Consumers
from forge.doctor import examine
from forge.doctor.finding import Level
from forge.embedded import PostgresServer
from forge.errors import ServerError
from forge.history.asof import table_as_of
from forge.history.audit import audit
from forge.history.revert import Choice as Chosen
from forge.history.revert import revert
from forge.history.timeline import timeline
from forge.postgres.connection import Connection, connect
from forge.postgres.session import ANALYSIS, OWN, USERS
from forge.react import past
from forge.react.registry import ANYONE as ANYBODY
from forge.testing import fresh_database
from forge.versions.documents import put
from forge.versions.install import install as install_versions
from forge.versions.reading import changes as version_changes
from forge.versions.resources import declare
from tests.capture.wal.reading import rows as wal_rows
from tests.checkers.session_settings import ANYONE, HOSTILE, set_defaults, shown, with_settings
from tests.deliver.consumers.working import until, working
from tests.deliver.outbox.draining import collecting, draining
from tests.react.live import live
from tests.versions.journals import STUDENTS

pytestmark = [pytest.mark.contract("X22")]

KEPT = {
    "search_path",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "default_transaction_deferrable",
    "statement_timeout",
    "lock_timeout",
    "transaction_timeout",
    "restrict_nonsystem_relation_kind",
}
"""What users' own statements keep of their role's settings."""
IMPOSED = {name: value for name, value in HOSTILE.items() if name not in KEPT}
TABLE = (
    "CREATE TABLE public.t (id int PRIMARY KEY, f float8, b bytea, at timestamptz, span interval, m money, x text,"
    " words text[], n numeric, d date)"
)
ROWS = [
    "(1, 0.1::float8 + 0.2::float8, '\\x00ff', '2026-03-01 12:00:00+02', '1 day 02:03:04', '1.50', 'a<b/>c',"
    " ARRAY['x', NULL, 'NULL'], 1.10, '2026-02-03')",
    "(2, 1e-300, '\\x5c', '2026-11-01 05:30:00+00', '-1 mons', '-0.05', '<a/>', '{}', 0, '0044-03-15 BC')",
]


@pytest.fixture(params=["plain", "hostile"])
def any_database(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty database, once as the server makes it and once with every setting against us."""
    with fresh_database(server) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            set_defaults(admin, HOSTILE if request.param == "hostile" else {})
        yield url


@pytest.fixture
def imposed(server: PostgresServer) -> Iterator[str]:
    """A database with Forge, a tracked table, and every setting against us that users' statements do not keep."""
    with fresh_database(server) as url:
        with connect(url) as admin:
            set_defaults(admin, IMPOSED)
            prepared(admin)
        yield url


def prepared(connection: Connection) -> None:
    install(connection)
    connection.execute(TABLE)
    connection.execute("SELECT public.forge_enable_reactivity('public.t')")


def fill(connection: Connection) -> None:
    for row in ROWS:
        connection.execute(f"INSERT INTO public.t VALUES {row}".encode())
    connection.execute("UPDATE public.t SET f = f / 3, span = span * 2 WHERE id = 1")


EXPECTED: dict[str, Any] = {
    "id": 1,
    "f": (0.1 + 0.2) / 3,
    "b": b"\x00\xff",
    "at": "2026-03-01T10:00:00+00:00",
    "span": "P2DT4H6M8S",
    "m": "$1.50",
    "x": "a<b/>c",
    "words": ["x", None, "NULL"],
    "d": "2026-02-03",
}


def said(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in EXPECTED}


@pytest.mark.every_version
@pytest.mark.parametrize("settings", [OWN, USERS], ids=["own", "users"])
def test_a_session_has_its_settings_whatever_its_database_sets(any_database: str, settings: dict[str, str]) -> None:
    with connect(any_database, settings=settings) as connection:
        found: dict[str, str] = dict(
            connection.execute("SELECT lower(name), setting FROM pg_catalog.pg_settings").fetchall()
        )
    for name, value in settings.items():
        if name == "DateStyle":
            assert found["datestyle"].startswith("ISO, ")
        elif name.lower() in found:
            assert found[name.lower()] == value, name


@pytest.mark.contract("X22")
@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("elsewhere, pg_catalog, public", "elsewhere, public"),
        ('"$user", pg_catalog', '"$user"'),
        ("pg_catalog", "pg_catalog"),
        ("elsewhere, public", "elsewhere, public"),
    ],
)
async def test_what_is_built_in_comes_first_in_sessions_of_forges_own(database: str, given: str, path: str) -> None:
    with connect(database) as connection:
        connection.execute("SELECT forge.current_identity()")  # a copied database is another log, from here on
        connection.execute("CREATE SCHEMA elsewhere; CREATE TABLE public.item (id int PRIMARY KEY)")
        connection.execute("SELECT public.forge_enable_reactivity('public.item')")
        connection.execute("INSERT INTO public.item VALUES (1), (2)")
        for head, body in {
            "octet_length(text) RETURNS int": "SELECT 99999999",
            "pg_current_snapshot() RETURNS pg_snapshot": "SELECT '1:1:'::pg_snapshot",
            "clock_timestamp() RETURNS timestamptz": "SELECT timestamptz '2001-01-01'",
            "lower(text) RETURNS text": "SELECT 'other'::text",
            "same(text, text) RETURNS boolean": "SELECT false",
        }.items():
            connection.execute(f"CREATE FUNCTION elsewhere.{head} LANGUAGE sql IMMUTABLE AS $${body}$$".encode())
        connection.execute("CREATE OPERATOR elsewhere.= (LEFTARG = text, RIGHTARG = text, FUNCTION = elsewhere.same)")
        set_defaults(connection, {"search_path": given})
    assert [change.row_id for change in await read(database)] == ["1", "2"]
    for settings, wanted in ((OWN, path), (ANALYSIS, given)):
        with connect(database, settings=settings) as connection:
            assert connection.execute("SHOW search_path").fetchone() == (wanted,)
            assert connection.execute("SHOW TimeZone").fetchone() == ("UTC",)


@pytest.mark.parametrize("level", ["local", "on", "remote_apply"])
def test_a_stronger_synchronous_commit_stays(empty_database: str, level: str) -> None:
    with connect(with_settings(empty_database, {"synchronous_commit": level})) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == (level,)


def test_an_ordinary_role_connects_and_one_that_may_not_be_logged_is_told_why(database: str) -> None:
    with connect(database) as admin:
        name = f"plain_{admin.info.dbname}"
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        url = psycopg.conninfo.make_conninfo(database, user=name)
        try:
            with connect(url) as connection:
                assert connection.execute("SHOW session_replication_role").fetchone() == ("origin",)
            admin.execute(f"ALTER ROLE {name} SET session_replication_role = replica".encode())
            with pytest.raises(ServerError, match="session_replication_role") as caught:
                connect(url)
            assert f'ALTER ROLE "{name}" SET session_replication_role = origin' in caught.value.fix
            assert any("session_replication_role" in str(finding) for finding in examine(url))
            admin.execute(f"GRANT SET ON PARAMETER session_replication_role TO {name}".encode())
            with connect(url) as connection:
                assert connection.execute("SHOW session_replication_role").fetchone() == ("origin",)
        finally:
            admin.execute(f"REVOKE SET ON PARAMETER session_replication_role FROM {name}; DROP ROLE {name}".encode())


async def read(url: str) -> list[Change]:
    found: list[Change] = []
    async with Reader.open(url) as reader:
        async for batch in reader.read(reader.start()):
            found += [change for change in batch.changes if change.op in (Op.INSERT, Op.UPDATE, Op.DELETE)]
    return found


@pytest.mark.every_version
async def test_the_log_and_its_past_are_the_same(any_database: str) -> None:
    with connect(any_database) as connection:
        prepared(connection)
        fill(connection)
        run_once(any_database)
        at = datetime.now(UTC)
        connection.execute("DELETE FROM public.t WHERE id = 2")
        found = await read(any_database)
        assert [(change.op, change.row_id) for change in found] == [
            (Op.INSERT, "1"), (Op.INSERT, "2"), (Op.UPDATE, "1"), (Op.DELETE, "2"),
        ]  # fmt: skip
        assert said(found[2].after) == EXPECTED
        the_past_is_known(connection, at, found[3])
        findings = {finding.check: finding for finding in examine(any_database, patience=1)}
        assert findings["installation"].level is Level.OK
        assert not [finding for finding in findings.values() if "could not be checked" in str(finding)]


@pytest.mark.every_version
@pytest.mark.parametrize("which", range(max(map(len, ANYONE.values()))))
async def test_the_past_is_the_same_in_a_session_of_the_users_own(database: str, which: int) -> None:
    settings = {name: values[which % len(values)] for name, values in ANYONE.items()}
    with psycopg.connect(with_settings(database, settings), autocommit=True) as connection:
        connection.execute("SELECT forge.current_identity()")  # a copied database is another log, from here on
        connection.execute(TABLE)
        connection.execute("SELECT public.forge_enable_reactivity('public.t')")
        with connect(database) as writer:
            fill(writer)
        run_once(database)
        at = datetime.now(UTC)
        connection.execute("DELETE FROM public.t WHERE id = 2")
        the_past_is_known(connection, at, (await read(database))[3])


@pytest.mark.contract("X22")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"transform_null_equals": "on"},
        {"standard_conforming_strings": "off", "escape_string_warning": "off"},
        {"search_path": "elsewhere, pg_catalog, public"},
    ],
    ids=shown,
)
def test_a_condition_on_the_past_means_the_same(connection: Connection, settings: dict[str, str]) -> None:
    connection.execute("CREATE SCHEMA elsewhere")
    for name in ("format(text, VARIADIC text[])", "md5(text)", "lower(text)"):
        connection.execute(f"CREATE FUNCTION elsewhere.{name} RETURNS text LANGUAGE sql AS $$SELECT 'bad'$$".encode())
    connection.execute("CREATE TABLE public.item (id int PRIMARY KEY, n int, name text)")
    connection.execute("SELECT public.forge_enable_reactivity('public.item')")
    connection.execute("INSERT INTO public.item VALUES (1, NULL, %s), (2, 2, 'B')", (r"a\nb",))
    with psycopg.connect(with_settings(connection.info.dsn, settings), autocommit=True) as own:
        for condition, ids in {"n = NULL": [], r"name = 'a\nb'": [1], "lower(name) = 'b'": [2]}.items():
            assert [row["id"] for row in table_as_of(own, "item", None, where=condition).rows] == ids, condition


def the_past_is_known(connection: Connection, at: datetime, deletion: Change) -> None:
    """As-of, the history of a row, the audit and a revert of the deletion say what was."""
    past = {row["id"]: row for row in table_as_of(connection, "public.t", at).rows}
    assert said(past[1]) == EXPECTED
    assert len(past) == 2
    written = [entry.op for entry in audit(connection).entries if entry.op is not Op.SCHEMA]
    assert written == [Op.DELETE, Op.UPDATE, Op.INSERT, Op.INSERT]
    lived = [entry.change.op for entry in timeline(connection, "public.t", {"id": 2}).entries]
    assert [op for op in lived if op is not Op.SCHEMA] == [Op.DELETE, Op.INSERT]
    revert(connection, Chosen(transaction=deletion.source.transaction))
    with connect(connection.info.dsn) as reading:
        now = reading.execute("SELECT f, b, at, span, m, x, words, n, d::text FROM public.t WHERE id = 2")
        assert now.fetchone() == (
            1e-300, b"\\", datetime(2026, 11, 1, 5, 30, tzinfo=UTC), timedelta(days=-30), "-$0.05", "<a/>", [],
            Decimal(0), "0044-03-15 BC",
        )  # fmt: skip


async def test_following_goes_on(any_database: str) -> None:
    with connect(any_database) as connection:
        prepared(connection)
        async with Reader.open(any_database) as reader:
            begin = reader.start()
        fill(connection)
        async with asyncio.timeout(30):
            async with aclosing(forge.follow(any_database, after=begin)) as batches:
                found: list[Change] = []
                async for batch in batches:
                    found += [change for change in batch.changes if change.op in (Op.INSERT, Op.UPDATE, Op.DELETE)]
                    if len(found) == 3:
                        connection.execute("UPDATE public.t SET n = 7 WHERE id = 2")
                    elif len(found) == 4:
                        break
    assert found[3].after is not None
    assert found[3].after["n"] == 7


async def test_the_wal_shows_the_same_rows(any_database: str) -> None:
    with connect(any_database) as connection:
        prepared(connection)
        fill(connection)
    async with WalSource(any_database) as source:
        rows, _ = await wal_rows(source)
    assert [said(row.after) for row in rows if row.table == "t" and row.row_id == "1"] == [EXPECTED]


async def test_change_versions_and_the_outbox_are_the_same(any_database: str) -> None:
    with connect(any_database) as connection:
        prepared(connection)
        install_versions(connection)
        declare(connection, STUDENTS)
        student = put(connection, STUDENTS, {"studentUniqueId": "604821"}, {"firstSurname": "Ada"}).document
        assert [item.id for item in version_changes(connection, STUDENTS, 0, student.content_version).items] == [
            student.id
        ]
        routes, got = collecting()
        async with draining(any_database, routes):
            with connection.transaction():
                forge.outbox(connection, "order.paid", {"id": 7}, key=7)
            await until(lambda: got)
    assert [message.topic for message in got] == ["order.paid"]


QUERY = "SELECT id, f, b, at, span::text AS span, m, words FROM t WHERE at < '2026-06-01' OR x = NULL"


async def test_live_queries_mutations_and_their_past_are_the_same(imposed: str) -> None:
    with connect(imposed) as connection:
        fill(connection)
    async with live(imposed) as node:
        node.sql("mine", QUERY)

        async def move(ctx: Any, id: int) -> None:
            await ctx.db.execute("UPDATE t SET at = at - interval '1 year' WHERE id = %(id)s")

        node.registry.mutation(move, name="move")
        watcher = node.watch("mine")
        await watcher.until(lambda watcher: watcher.pushes)
        (row,) = watcher.value
        assert (row["f"], row["at"], row["m"], row["words"]) == (
            (0.1 + 0.2) / 3, "2026-03-01T10:00:00Z", "$1.50", ["x", None, "NULL"],
        )  # fmt: skip
        assert row["span"] == "2 days 04:06:08"
        run_once(imposed)
        at = datetime.now(UTC)
        answer = await node.change("move", id=2)
        assert answer.xid is not None
        await watcher.until(lambda watcher: len(watcher.value) == 2)
        then = await past.ask(imposed, node.registry.call("mine", {}, ANYBODY), at)
    assert [row["id"] for row in then.value] == [1]


async def test_a_mutation_is_on_disk_when_it_is_answered(imposed: str) -> None:
    async with live(imposed) as node:

        async def level(ctx: Any) -> Any:
            return await ctx.db.fetch_value("SHOW synchronous_commit")

        node.registry.mutation(level, name="level")
        assert (await node.change("level")).value == "on"


async def test_users_statements_keep_where_they_look_and_how_long_they_may_take(imposed: str) -> None:
    with connect(imposed) as connection:
        set_defaults(connection, {"search_path": "elsewhere, public", "statement_timeout": "12s", "DateStyle": "DMY"})
    async with live(imposed) as node:

        async def settings(ctx: Any) -> Any:
            return await ctx.db.fetch_one(
                "SELECT current_setting('search_path') AS path, current_setting('statement_timeout') AS timeout,"
                " '03/02/2026'::date AS day"
            )

        node.registry.mutation(settings, name="settings")
        found = (await node.change("settings")).value
    assert found == {"path": "elsewhere, public", "timeout": "12s", "day": date(2026, 2, 3)}


async def test_a_consumer_gets_the_same_and_what_it_writes_is_logged(imposed: str) -> None:
    seen: list[Any] = []
    consumers = Consumers()

    @consumers.consumer("all", tables=["public.t"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        if change.after is not None and change.after["id"] < 10:
            seen.append(change.after)
            await ctx.tx.execute("INSERT INTO t (id, f) VALUES (%s, 0.1::float8 + 0.2::float8)", (10 + len(seen),))

    with connect(imposed) as connection:
        async with working(imposed, consumers):
            fill(connection)
            await until(lambda: len(seen) == 3)
    assert said(seen[2]) == EXPECTED
    assert [change.row_id for change in await read(imposed)][-1] == "13"
