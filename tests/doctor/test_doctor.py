"""Each trap is set for real, found by `forge doctor`, removed by the fix it names, and then gone."""

import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from forge.changelog import partitions
from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.doctor import Finding, Level, examine, healthy
from forge.doctor.clock import skew
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres

pytestmark = pytest.mark.contract("X9")

Bad = (Level.WARNING, Level.PROBLEM)


def found(url: str, check: str, word: str = "", **measure: float) -> list[Finding]:
    """The warnings and problems of one check that contain a word; each of them names a fix."""
    findings = [
        finding
        for finding in examine(url, **measure)  # type: ignore[arg-type]
        if finding.check == check and finding.level in Bad and word in finding.what
    ]
    assert all(finding.fix for finding in findings)
    assert all("could not be checked" not in finding.what for finding in findings), findings
    return findings


@pytest.fixture
def tracked(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    connection.execute("SELECT forge_enable_reactivity('orders')")
    return connection


@pytest.fixture
def unwatched(tracked: Connection) -> Connection:
    """Where DDL goes unseen, so that traps can be set."""
    tracked.execute("ALTER EVENT TRIGGER forge_ddl DISABLE")
    tracked.execute("SELECT forge.refresh_all()")  # the fingerprint of a polled table holds more
    return tracked


def test_a_sound_set_up_has_no_problem(tracked: Connection, database: str) -> None:
    run_once(database, Policy())
    findings = [finding for finding in examine(database) if "fsync" not in finding.what]
    assert healthy(findings)
    assert [finding for finding in findings if finding.level is Level.WARNING] == []


def test_looking_changes_nothing(tracked: Connection, database: str) -> None:
    state = (
        "SELECT (SELECT count(*) FROM forge.log_identity), (SELECT count(*) FROM forge.forge_event_log),"
        " (SELECT string_agg(concat(oid, xmin, md5(prosrc)), ' ' ORDER BY oid) FROM pg_proc"
        "  WHERE pronamespace = 'forge'::regnamespace)"
    )
    before = tracked.execute(state).fetchone()
    list(examine(database))
    assert tracked.execute(state).fetchone() == before


def test_server_unreachable() -> None:
    [finding] = examine("postgresql://postgres@127.0.0.1:1/x")
    assert (finding.check, finding.level) == ("server", Level.PROBLEM)


def test_not_installed_then_half_installed(empty_database: str) -> None:
    [finding] = found(empty_database, "installation")
    assert finding.fix == "forge init"
    with connect(empty_database) as connection:
        install(connection)
        assert not found(empty_database, "installation")
        connection.execute("DROP VIEW public.forge_events")
        assert found(empty_database, "installation", "public.forge_events")
        install(connection)
        assert not found(empty_database, "installation")


@pytest.mark.parametrize(
    ("trap", "check", "word", "fix"),
    [
        ("ALTER EVENT TRIGGER forge_ddl DISABLE", "event_triggers", "disabled", None),
        ("ALTER EVENT TRIGGER forge_ddl ENABLE REPLICA", "event_triggers", "replica role only", None),
        ("DROP EVENT TRIGGER forge_rewrite", "event_triggers", "forge_rewrite", "install"),
        ("GRANT SELECT ON forge_events TO PUBLIC", "grants", "forge_events", None),
        ("ALTER TABLE orders DISABLE TRIGGER forge_update_orders", "triggers", "disabled", "enable"),
        ("ALTER TABLE orders ENABLE REPLICA TRIGGER forge_update_orders", "triggers", "replica role only", None),
        ("DROP TRIGGER forge_delete_orders ON orders", "triggers", "forge_delete_orders", "enable"),
        ("ALTER TABLE orders SET UNLOGGED", "unlogged", "orders", None),
        ("ALTER TABLE orders ADD COLUMN extra int", "definitions", "orders", "SELECT forge.refresh_all()"),
        ("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "keys", "orders", "ALTER TABLE orders ADD PRIMARY KEY (id)"),
    ],
    ids=lambda value: value.split(" ")[0] if value and " " in value else "",
)
def test_a_trap_is_found_and_its_fix_removes_it(
    unwatched: Connection, database: str, trap: str, check: str, word: str, fix: str | None
) -> None:
    if check == "event_triggers":
        unwatched.execute("ALTER EVENT TRIGGER forge_ddl ENABLE")
    assert not found(database, check, word)
    unwatched.execute(trap.encode())
    [finding] = found(database, check, word)
    assert finding.fix is not None
    if fix == "install":
        install(unwatched)
    elif fix == "enable":
        assert finding.fix == "forge enable public.orders"
        unwatched.execute("SELECT forge_enable_reactivity('orders')")
    else:
        unwatched.execute((fix or finding.fix).encode())
    assert not found(database, check, word)


def test_an_altered_trigger(unwatched: Connection, database: str) -> None:
    row = unwatched.execute("SELECT id FROM forge.tracked_table").fetchone()
    assert row is not None
    unwatched.execute(
        "CREATE OR REPLACE TRIGGER forge_notify_orders AFTER INSERT ON orders REFERENCING NEW TABLE AS forge_new_rows"
        f" FOR EACH STATEMENT WHEN (1 = 0) EXECUTE FUNCTION forge.log_{row[0]}_insert()".encode()
    )
    [finding] = found(database, "triggers", "altered")
    assert "the trigger forge_notify_orders on orders was altered, it has a condition:" in finding.what
    unwatched.execute("DROP TRIGGER forge_notify_orders ON orders")
    unwatched.execute("SELECT forge_enable_reactivity('orders')")
    assert not found(database, "triggers")


ALTERED = {
    "body": "CREATE OR REPLACE FUNCTION forge.log_{0}_insert() RETURNS trigger LANGUAGE plpgsql"
    " SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'",
    "settings": "ALTER FUNCTION forge.log_{0}_insert() SET DateStyle = 'German'",
    "rights": "ALTER FUNCTION forge.log_{0}_insert() SECURITY INVOKER",
}


@pytest.mark.parametrize("how", ALTERED)
def test_an_altered_trigger_function(tracked: Connection, database: str, how: str) -> None:
    tracked.execute(
        "CREATE TABLE part (id int, f float8, j jsonb, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE part_all PARTITION OF part DEFAULT; SELECT forge_enable_reactivity('part', replica => true);"
        "CREATE TABLE child (id int PRIMARY KEY, o int REFERENCES orders ON DELETE CASCADE);"
        "SELECT forge_enable_reactivity('child', mask => ARRAY['o'])"
    )
    row = tracked.execute("SELECT id FROM forge.tracked_table WHERE table_name = 'orders'").fetchone()
    assert row is not None
    assert not found(database, "functions")
    tracked.execute(ALTERED[how].format(row[0]).encode())
    [finding] = found(database, "functions", f"log_{row[0]}_insert")
    assert (finding.level, finding.fix) == (Level.PROBLEM, "forge init")
    install(tracked)
    assert not found(database, "functions")


def test_a_role_that_may_not_write_functions_is_told_so(
    server: PostgresServer, tracked: Connection, database: str
) -> None:
    role = f"looker_{tracked.info.dbname}"
    tracked.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA forge TO {role};"
        f"GRANT SELECT ON ALL TABLES IN SCHEMA forge TO {role};"
        f"GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA forge TO {role}".encode()
    )
    try:
        findings = list(examine(server.url(tracked.info.dbname, role)))
        assert [f.level for f in findings if f.check == "functions"] == [Level.INFO], findings
    finally:
        tracked.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_all_triggers_gone(unwatched: Connection, database: str) -> None:
    for (name,) in unwatched.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 'orders'::regclass").fetchall():
        unwatched.execute(f'DROP TRIGGER "{name}" ON orders'.encode())
    assert found(database, "tables", "triggers are gone")
    unwatched.execute("SELECT forge_enable_reactivity('orders')")
    assert not found(database, "tables")


def test_no_table_tracked(connection: Connection, database: str) -> None:
    assert found(database, "tables", "no table")


@pytest.mark.parametrize(
    ("root", "part"),
    [
        ("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE leaf PARTITION OF r DEFAULT"),
        ("CREATE TABLE r (id int PRIMARY KEY)", "CREATE TABLE leaf () INHERITS (r)"),
    ],
    ids=["partition", "child"],
)
def test_an_untracked_part(unwatched: Connection, database: str, root: str, part: str) -> None:
    unwatched.execute(root.encode())
    unwatched.execute("SELECT forge_enable_reactivity('r')")
    unwatched.execute(part.encode())
    assert found(database, "partitions", "leaf")
    unwatched.execute("SELECT forge_enable_reactivity('r')")
    assert not found(database, "partitions")


def test_lines_about_triggers_say_which_relations_they_are_about(unwatched: Connection, database: str) -> None:
    unwatched.execute("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    unwatched.execute("CREATE TABLE leaf PARTITION OF r DEFAULT")
    unwatched.execute("SELECT forge_enable_reactivity('r')")
    lines = [finding.what for finding in examine(database)]
    assert len(lines) == len(set(lines))
    own, parts = (line for line in lines if "triggers in place" in line)
    assert own.endswith("triggers in place on 2 tracked tables")
    assert parts.endswith("triggers in place on 1 partition or child table")
    rows = unwatched.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 'leaf'::regclass AND tgparentid = 0")
    names = [row[0] for row in rows]
    last, *others = sorted(name for name in names if name.startswith("forge"))
    assert others
    unwatched.execute(f'DROP TRIGGER "{last}" ON leaf'.encode())
    [finding] = found(database, "partitions")
    assert finding.what == f"leaf, a part of public.r, lacks the trigger {last}: changes are lost"
    for name in others:
        unwatched.execute(f'DROP TRIGGER "{name}" ON leaf'.encode())
    [finding] = found(database, "partitions")
    assert finding.what.startswith("leaf, a part of public.r, is not tracked")


def test_the_replica_role(tracked: Connection, database: str) -> None:
    name = tracked.info.dbname
    tracked.execute(f"ALTER DATABASE {name} SET session_replication_role = replica".encode())
    assert found(database, "replica_role", "replica")
    tracked.execute("SELECT forge_enable_reactivity('orders', replica => true)")
    assert not found(database, "replica_role")
    assert not found(database, "triggers")


def test_a_target_of_logical_replication(server: PostgresServer, tracked: Connection, database: str) -> None:
    with fresh_database(server) as source, connect(source) as publisher:
        publisher.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        publisher.execute("CREATE PUBLICATION doctor FOR TABLE orders")
        tracked.execute(
            f"CREATE SUBSCRIPTION doctor CONNECTION '{source}' PUBLICATION doctor"
            " WITH (create_slot = false, enabled = false, copy_data = false, slot_name = 'none_such')".encode()
        )
        try:
            [finding] = found(database, "replica_role", "logical replication")
            assert finding.fix == "forge enable public.orders --replica"
            tracked.execute("SELECT forge_enable_reactivity('orders', replica => true)")
            assert not found(database, "replica_role")
        finally:
            tracked.execute("ALTER SUBSCRIPTION doctor SET (slot_name = NONE)")
            tracked.execute("DROP SUBSCRIPTION doctor")


def test_writes_that_could_not_be_logged(tracked: Connection, database: str) -> None:
    tracked.execute("SELECT forge_enable_reactivity('orders', on_failure => 'invalidate')")
    tracked.execute("ALTER TABLE forge.forge_event_log ADD CONSTRAINT broken CHECK (op <> 'I') NOT VALID")
    tracked.execute("INSERT INTO orders VALUES (1)")
    assert found(database, "failures", "orders")


@pytest.mark.parametrize("name", ["idle_session_timeout", "statement_timeout"])
def test_a_timeout_that_cuts_sessions(tracked: Connection, database: str, name: str) -> None:
    tracked.execute(f"ALTER DATABASE {tracked.info.dbname} SET {name} = '10min'".encode())
    assert found(database, "timeouts", name)
    tracked.execute(f"ALTER DATABASE {tracked.info.dbname} RESET {name}".encode())
    assert not found(database, "timeouts")


def test_a_long_transaction(tracked: Connection, database: str) -> None:
    with connect(database, application_name="forgetful") as other, other.transaction():
        other.execute("INSERT INTO orders VALUES (1)")
        assert found(database, "long_transactions", "forgetful", patience=0)
        assert not found(database, "long_transactions")
    assert not found(database, "long_transactions", "forgetful", patience=0)


def test_a_forgotten_prepared_transaction(tracked: Connection, database: str) -> None:
    with connect(database) as other:
        other.execute("BEGIN; SET LOCAL forge.wakeup = 'poll'; INSERT INTO orders VALUES (1)")
        other.execute("PREPARE TRANSACTION 'it''s forgotten'")
    [finding] = found(database, "prepared_transactions", patience=0)
    assert found(database, "two_phase")
    assert finding.fix is not None
    tracked.execute(finding.fix.split(" or ")[1].encode())
    assert not found(database, "prepared_transactions", patience=0)
    assert not found(database, "two_phase")


def test_a_log_beyond_its_limit(tracked: Connection, database: str) -> None:
    assert found(database, "growth", log_size_limit=1)
    assert not found(database, "growth", log_size_limit=10**12)


def test_changes_in_the_overflow(tracked: Connection, database: str) -> None:
    tracked.execute(
        "INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op)"
        " SELECT pg_current_xact_id(), now() - interval '90 days', 'infinity', max(id), 'X' FROM forge.table_version"
    )
    assert found(database, "overflow")
    run_once(database, Policy())
    assert not found(database, "overflow")


def test_a_change_from_the_future(tracked: Connection, database: str) -> None:
    tracked.execute(
        "INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op)"
        " SELECT pg_current_xact_id(), now() + interval '1 hour', 'infinity', max(id), 'X' FROM forge.table_version"
    )
    assert found(database, "clock", "future")


def test_clocks_that_differ_are_told_from_a_slow_answer() -> None:
    now = datetime.now(UTC)
    later = now + timedelta(seconds=60)
    assert skew(now, now + timedelta(seconds=30), later) == 0
    assert skew(now, later + timedelta(seconds=5), later) == 5
    assert skew(now, now - timedelta(seconds=5), later) == -5


def test_no_partition_ahead_and_nobody_who_makes_them(tracked: Connection, database: str) -> None:
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    name = partitions.partition_name(tomorrow)
    tracked.execute(f"DROP TABLE forge.{name}".encode())
    assert found(database, "partitions_ahead", str(tomorrow))
    assert found(database, "maintenance", "never ran")
    run_once(database, Policy())
    assert not found(database, "partitions_ahead")
    assert not found(database, "maintenance")


@pytest.mark.parametrize(("hours", "level"), [(0, Level.OK), (1, Level.INFO), (23, Level.INFO), (25, Level.WARNING)])
def test_maintenance_from_cron_is_no_cause_to_warn(
    tracked: Connection, database: str, hours: int, level: Level
) -> None:
    tracked.execute(
        "INSERT INTO forge.instant SELECT now() - make_interval(hours => %s), pg_current_snapshot()", (hours,)
    )
    assert [finding.level for finding in examine(database) if finding.check == "maintenance"] == [level]


def test_days_past_retention_and_days_left_over(tracked: Connection, database: str) -> None:
    old = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(tracked, old)
    partitions.make(tracked, old - timedelta(days=1))
    left = f"forge.{partitions.partition_name(old - timedelta(days=1))}"
    tracked.execute(f"ALTER TABLE forge.forge_event_log DETACH PARTITION {left}".encode())
    assert found(database, "retention", "1 day of the log should be gone")
    assert found(database, "retention", "not dropped")
    run_once(database, Policy())
    [finding] = found(database, "retention")
    tracked.execute(str(finding.fix).encode())
    assert not found(database, "retention")


def test_a_detach_that_was_cut_short(tracked: Connection, database: str) -> None:
    old = datetime.now(UTC).date() - timedelta(days=3)
    partitions.make(tracked, old)
    with connect(database) as reader, reader.transaction():
        reader.execute("SELECT count(*) FROM forge.forge_event_log")
        tracked.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            tracked.execute(
                f"ALTER TABLE forge.forge_event_log DETACH PARTITION forge.{partitions.partition_name(old)}"
                " CONCURRENTLY".encode()
            )
    tracked.execute("RESET statement_timeout")
    assert found(database, "retention", "half detached")
    run_once(database, Policy())
    assert not found(database, "retention", "half detached")


@pytest.fixture(scope="module")
def weak() -> Iterator[str]:
    """A server with every bad setting."""
    settings = {
        "wal_level": "replica",
        "synchronous_commit": "off",
        "max_connections": "14",
        "max_notify_queue_pages": "64",
    }
    with temporary_postgres(settings=settings) as server:
        yield server.url()


def test_settings_that_lose_commits(weak: str) -> None:
    assert found(weak, "durability", "fsync")
    assert found(weak, "durability", "synchronous_commit")
    assert [f.level for f in examine(weak) if f.check == "wal_level"] == [Level.INFO]
    with connect(weak) as connection:
        connection.execute("ALTER SYSTEM SET fsync = on")
        connection.execute("ALTER SYSTEM SET synchronous_commit = on")
        connection.execute("SELECT pg_reload_conf()")
        deadline = datetime.now(UTC) + timedelta(seconds=20)
        while found(weak, "durability"):
            assert datetime.now(UTC) < deadline


def test_no_connection_to_spare(weak: str) -> None:
    assert not found(weak, "connections")
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(connect(weak))
        assert found(weak, "connections")


def test_a_notify_queue_that_fills(weak: str) -> None:
    with connect(weak) as listener, connect(weak) as sender:
        listener.execute("LISTEN anything")
        with listener.transaction():
            listener.execute("SELECT 1")
            for number in range(50):
                sender.execute("SELECT pg_notify('anything', rpad(%s::text, 7500, 'x'))", (number,))
            [finding] = found(weak, "notification_queue")
            assert finding.level is Level.PROBLEM


def test_a_standby_and_then_a_log_that_failed_over() -> None:
    directory = Path(tempfile.mkdtemp(prefix="forge-standby-"))
    directory.chmod(0o711)
    try:
        with temporary_postgres() as primary:
            with connect(primary.url()) as connection:
                install(connection)
            primary.stop()
            settings = {"fsync": "off", "max_prepared_transactions": "10", "wal_level": "logical"}
            standby = PostgresServer(directory / "server", settings=settings, tcp=True, durable=False)
            standby.init()
            shutil.rmtree(standby.cluster)
            shutil.copytree(primary.cluster, standby.cluster, ignore=shutil.ignore_patterns("forge.conf"))
            (standby.cluster / "standby.signal").touch()
            info = primary.cluster.stat()
            for path in (standby.cluster, *standby.cluster.rglob("*")):
                shutil.chown(path, info.st_uid, info.st_gid)
            standby.cluster.chmod(0o700)
        with standby:
            assert found(standby.url(), "standby", "standby")
            assert not [f for f in examine(standby.url()) if f.check == "tables"]
            with connect(standby.url()) as connection:
                connection.execute("SELECT pg_promote()")
                assert not found(standby.url(), "standby")
                assert found(standby.url(), "identity", "failed over")
                install(connection)
                assert not found(standby.url(), "identity")
    finally:
        shutil.rmtree(directory)


class TransactionPooler:
    """A pooler in transaction mode, as small as can be: a client has a backend only while in a transaction."""

    def __init__(self, host: str, port: int, user: str, database: str) -> None:
        self._target = host, port
        self._startup = f"user\0{user}\0database\0{database}\0\0".encode()
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._quietly, args=(client,), daemon=True).start()

    def _quietly(self, client: socket.socket) -> None:
        try:
            self._serve(client)
        except (OSError, ValueError, struct.error):
            client.close()

    def _serve(self, client: socket.socket) -> None:
        while True:
            (size,) = struct.unpack("!i", _exactly(client, 4))
            (code,) = struct.unpack("!i", _exactly(client, size - 4)[:4])
            if code == 196608:
                break
            client.sendall(b"N")
        backend, greeting = self._connect()
        self._give_back(backend)
        client.sendall(greeting)
        while True:
            self._transaction(client)

    def _transaction(self, client: socket.socket) -> None:
        message = _message(client)
        if message[:1] == b"X":
            raise ValueError("the client left")
        backend = self._take()
        backend.sendall(message)
        waiting = message[:1] in b"QS"
        while True:
            while not waiting:
                message = _message(client)
                backend.sendall(message)
                waiting = message[:1] in b"QS"
            answer = _message(backend)
            client.sendall(answer)
            if answer[:1] == b"Z":
                waiting = False
                if answer[5:] == b"I":
                    self._give_back(backend)
                    return

    def _take(self) -> socket.socket:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()[0]

    def _give_back(self, backend: socket.socket) -> None:
        with self._lock:
            self._idle.append(backend)

    def _connect(self) -> tuple[socket.socket, bytes]:
        backend = socket.create_connection(self._target)
        self._sockets.append(backend)
        backend.sendall(struct.pack("!ii", len(self._startup) + 8, 196608) + self._startup)
        greeting = b""
        while True:
            message = _message(backend)
            greeting += b"K" + struct.pack("!iii", 12, 1, 1) if message[:1] == b"K" else message
            if message[:1] == b"Z":
                return backend, greeting


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ValueError("the end")
        data += more
    return data


def _message(source: socket.socket) -> bytes:
    head = _exactly(source, 5)
    return head + _exactly(source, struct.unpack("!i", head[1:])[0] - 4)


@pytest.fixture
def pooled(server: PostgresServer, tracked: Connection) -> Iterator[Callable[[], str]]:
    poolers = []

    def start() -> str:
        pooler = TransactionPooler("127.0.0.1", server.port, "postgres", tracked.info.dbname)
        poolers.append(pooler)
        return f"postgresql://postgres@127.0.0.1:{pooler.port}/{tracked.info.dbname}?sslmode=disable"

    yield start
    for pooler in poolers:
        pooler.close()


def test_a_pooler_in_transaction_mode(pooled: Callable[[], str], database: str) -> None:
    [finding] = found(pooled(), "pooler")
    assert finding.level is Level.PROBLEM
    assert "transaction mode" in finding.what
    assert not found(database, "pooler")
