"""The chain of seals: whatever is done to the log afterwards shows; redaction and retention do not break it."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest

from forge.changelog import partitions
from forge.changelog.maintenance import Policy, run_once
from forge.errors import HistoryUnavailable
from forge.history import chain
from forge.history.redact import redact
from forge.postgres.connection import Connection, connect
from tests.changelog.log import enable

LOG = "forge.forge_event_log"


@pytest.fixture
def sealed(connection: Connection) -> Connection:
    """A log with three seals: 2 rows, 3 rows, 1 row, and a row that is not sealed."""
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE people (id int PRIMARY KEY, email text, note text)")
    enable(connection, "people")
    chain.start(connection)
    while chain.seal(connection):
        pass
    for statement, rows in (
        ("INSERT INTO people VALUES (1, 'ada@x', 'a'), (2, 'bob@x', 'b')", 2),
        ("UPDATE people SET note = 'c'; DELETE FROM people WHERE id = 2", 3),
        ("UPDATE people SET email = 'new@x' WHERE id = 1", 1),
    ):
        connection.execute(statement.encode())
        assert chain.seal(connection) == rows
        assert chain.seal(connection) == 0
    connection.execute("INSERT INTO people VALUES (3)")
    return connection


def ids(connection: Connection) -> list[int]:
    return [id for (id,) in connection.execute(f"SELECT id FROM {LOG} WHERE op <> 'S' ORDER BY id".encode())]


def found(connection: Connection, **options: Any) -> set[tuple[str, int | None]]:
    return {(finding.what, finding.event) for finding in chain.verify(connection, **options).broken}


def test_an_untouched_log_verifies(sealed: Connection) -> None:
    report = chain.verify(sealed)
    assert (report.enabled, report.broken, report.unsealed, report.redacted) == (True, [], 1, 0)
    assert report.rows == 7
    today = datetime.now(UTC).date()
    [head] = chain.heads(sealed)
    assert (head.day, head.head, head.rows) == (today, report.head, 7)
    assert chain.verify(sealed, day=today, head=head.head).broken == []
    assert chain.verify(sealed, day=today - timedelta(days=3)).rows == 0
    chain.seal(sealed)
    assert chain.verify(sealed, head=head.head).unsealed == 0
    assert found(sealed, head=head.head) == set()
    assert found(sealed, head="00" * 32) == {("head", None)}


TAMPER: dict[str, tuple[str, Callable[[list[int]], set[tuple[str, int | None]]]]] = {
    "a value": (
        "UPDATE {log} SET after = replace(after::text, 'ada@x', 'eve@x')::json WHERE id = {0}",
        lambda ids: {("changed", ids[0])},
    ),
    "who": ("UPDATE {log} SET user_id = 'eve' WHERE id = {2}", lambda ids: {("changed", ids[2])}),
    "when": ("UPDATE {log} SET at = at + interval '1 microsecond' WHERE id = {2}", lambda ids: {("changed", ids[2])}),
    "hidden": ("UPDATE {log} SET hidden = '{{note}}' WHERE id = {2}", lambda ids: {("changed", ids[2])}),
    "a deleted row": ("DELETE FROM {log} WHERE id = {3}", lambda ids: {("removed", ids[3])}),
    "a new row": (
        "INSERT INTO {log} SELECT (jsonb_populate_record(l, '{{\"id\": {new}}}')).* FROM {log} l WHERE id = {1}",
        lambda ids: {("inserted", ids[0] + 1_000)},
    ),
    "a row twice": ("INSERT INTO {log} SELECT * FROM {log} WHERE id = {1}", lambda ids: {("inserted", ids[1])}),
    "two rows swapped": (
        "UPDATE {log} SET id = CASE id WHEN {2} THEN {3} ELSE {2} END WHERE id IN ({2}, {3})",
        lambda ids: {("changed", ids[2]), ("changed", ids[3])},
    ),
    "another rank": ("UPDATE {log} SET rank = {0} WHERE id = {3}", lambda ids: {("changed", ids[3])}),
    "another day": (
        "UPDATE {log} SET day = day + 1 WHERE id = {3}",
        lambda ids: {("removed", ids[3]), ("inserted", ids[3])},
    ),
    "a digest": (
        "UPDATE forge.log_seal SET digests = set_byte(digests, 5, 1 + get_byte(digests, 5) % 250) WHERE id = 3",
        lambda ids: {("seal", None), ("changed", ids[2])},
    ),
    "a forged redaction": (
        "UPDATE {log} SET after = forge.redacted_image(after, '{{email}}') WHERE id = {0};"
        """INSERT INTO forge.redaction VALUES ({0}, '{{email}}', '{{1}}', NULL, '{{"after.email": {{"leaf": ""}}}}')""",
        lambda ids: {("changed", ids[0])},
    ),
}  # fmt: skip


def test_whatever_is_altered_is_found(sealed: Connection) -> None:
    """One thing after the other, each undone before the next."""
    known = ids(sealed)
    tables = (LOG, "forge.log_seal", "forge.redaction")
    for number, table in enumerate(tables):
        sealed.execute(f"CREATE TABLE kept_{number} AS TABLE {table}".encode())
    for name, (statement, expected) in TAMPER.items():
        sealed.execute(statement.format(*known, log=LOG, new=known[0] + 1_000).encode())
        assert found(sealed) == expected(known), name
        for number, table in enumerate(tables):
            sealed.execute(f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept_{number}".encode())
        assert found(sealed) == set()


DEFINITIONS = {
    "the order of columns": "columns = (SELECT jsonb_agg(c ORDER BY c DESC) FROM jsonb_array_elements(columns) c)",
    "a column's name": """columns = replace(columns::text, '"note"', '"nota"')::jsonb""",
    "the table's name": "table_name = 'persons'",
    "the key": "key_columns = '{email}'",
    "that it was empty": "empty = NOT coalesce(empty, false)",
    "when": "recorded_at = recorded_at + interval '1 microsecond'",
    "which table": "relation = relation::bigint + 1",
}


def test_how_rows_are_to_be_read_is_sealed_too(sealed: Connection) -> None:
    assert chain.verify(sealed).definitions == 1
    sealed.execute("CREATE TABLE kept AS TABLE forge.table_version")
    for name, change in DEFINITIONS.items():
        sealed.execute(f"UPDATE forge.table_version SET {change}".encode())
        [broken] = chain.verify(sealed).broken
        assert (broken.what, broken.seal, broken.version) == ("definition", 0, 1), name
        assert str(broken) == "table version 1 is not as it was sealed"
        sealed.execute(
            "UPDATE forge.table_version v SET (relation, table_name, columns, key_columns, empty, recorded_at) ="
            " (k.relation, k.table_name, k.columns, k.key_columns, k.empty, k.recorded_at) FROM kept k"
        )
        assert found(sealed) == set()


def test_definitions_that_come_go_and_are_made_up(sealed: Connection) -> None:
    sealed.execute("ALTER TABLE people ADD COLUMN age int")
    sealed.execute("UPDATE people SET age = 7")
    assert (found(sealed), chain.verify(sealed).definitions) == (set(), 1)
    while chain.seal(sealed):
        pass
    assert (found(sealed), chain.verify(sealed).definitions) == (set(), 2)
    sealed.execute("DELETE FROM forge.table_version WHERE id = 2")
    [broken] = chain.verify(sealed).broken
    assert (broken.what, broken.version, str(broken)) == ("definition", 2, "table version 2 is gone")
    sealed.execute(
        "UPDATE forge.log_seal SET versions = NULL, definitions = NULL WHERE id = (SELECT max(id) FROM forge.log_seal"
        " WHERE versions IS NOT NULL)"
    )
    assert {finding.what for finding in chain.verify(sealed).broken} == {"seal"}


def test_seals_from_before_definitions_were_sealed(sealed: Connection) -> None:
    """They hold as they are, and the next one has all definitions."""
    sealed.execute("UPDATE forge.log_seal SET versions = NULL, definitions = NULL")
    sealed.execute(
        "DO $$ DECLARE s forge.log_seal; last bytea; BEGIN FOR s IN SELECT * FROM forge.log_seal ORDER BY id LOOP"
        " s.previous := coalesce(last, s.previous); last := forge.seal_head(s);"
        " UPDATE forge.log_seal SET previous = s.previous, head = last WHERE id = s.id; END LOOP; END $$"
    )
    old = chain.verify(sealed)
    assert (old.broken, old.definitions) == ([], 0)
    assert chain.seal(sealed) == 1
    new = chain.verify(sealed, head=old.head)
    assert (new.broken, new.definitions) == ([], 1)
    sealed.execute("UPDATE forge.table_version SET table_name = 'persons'")
    assert found(sealed) == {("definition", None)}


@pytest.mark.parametrize("which", [2, 3])
def test_a_seal_that_is_removed_is_missed(sealed: Connection, which: int) -> None:
    sealed.execute("DELETE FROM forge.log_seal WHERE id = %s", (which,))
    broken = chain.verify(sealed).broken
    assert ("seal", which + 1) in {(finding.what, finding.seal) for finding in broken}
    assert "inserted" in {finding.what for finding in broken}


def test_removing_the_newest_seals_takes_a_head_from_elsewhere_to_see(sealed: Connection) -> None:
    head = chain.verify(sealed).head
    assert head is not None
    newest = "(SELECT max(id) FROM forge.log_seal)"
    sealed.execute(
        f"DELETE FROM {LOG} WHERE id = {ids(sealed)[-2]}; DELETE FROM forge.log_seal WHERE id = {newest}".encode()
    )
    assert found(sealed) == set()
    assert found(sealed, head=head) == {("head", None)}
    sealed.execute("DELETE FROM forge.log_seal")
    assert found(sealed, head=head) == {("head", None)}


def test_a_rewritten_chain_has_other_heads(sealed: Connection) -> None:
    head = chain.verify(sealed).head
    sealed.execute("DELETE FROM forge.log_seal")
    chain.stop(sealed)
    chain.start(sealed)
    while chain.seal(sealed):
        pass
    assert found(sealed) == set()
    assert found(sealed, head=head) == {("head", None)}


@pytest.mark.every_version
def test_redaction_keeps_it_whole_and_protects_the_rest(sealed: Connection) -> None:
    first = ids(sealed)[0]
    redact(sealed, "people", 1, ["email"], reason="asked")
    report = chain.verify(sealed)
    assert (report.broken, report.redacted) == ([], 3)
    redact(sealed, "people", 1, ["email", "note"])
    assert chain.verify(sealed).broken == []
    while chain.seal(sealed):
        pass
    assert chain.verify(sealed).broken == []
    redact(sealed, "people", 2, ["note"])
    assert chain.verify(sealed).broken == []
    # the salts are gone: digests cannot be guessed at
    row = sealed.execute("SELECT substr(salts, 1, 32) FROM forge.log_seal WHERE %s = ANY (events)", (first,)).fetchone()
    assert row == (bytes(32),)
    sealed.execute(
        f"UPDATE {LOG} SET after = replace(after::text, '\"id\":1', '\"id\":9')::json WHERE id = {first}".encode()
    )
    assert found(sealed) == {("changed", first)}
    sealed.execute(
        f"UPDATE {LOG} SET after = replace(after::text, '\"id\":9', '\"id\":1')::json WHERE id = {first}".encode()
    )
    assert found(sealed) == set()
    filled = f"UPDATE {LOG} SET after = replace(after::text, '{{\"$redacted\":true}}', '5')::json WHERE id = {first}"
    sealed.execute(filled.encode())
    assert found(sealed) == {("redacted", first)}


def test_a_redaction_without_its_tombstone_is_found(sealed: Connection) -> None:
    done = redact(sealed, "people", 2, ["email"])
    sealed.execute(f"DELETE FROM {LOG} WHERE id = %s".encode(), (done.tombstones[0],))
    assert {what for what, _ in found(sealed)} == {"redacted"}


@pytest.mark.every_version
def test_late_commits_are_sealed_and_nothing_twice(sealed: Connection, database: str) -> None:
    with connect(database) as slow:
        slow.execute("BEGIN; INSERT INTO people VALUES (10)")
        sealed.execute("INSERT INTO people VALUES (11)")
        assert chain.seal(sealed) == 2
        assert chain.seal(sealed) == 0
        assert chain.verify(sealed).unsealed == 0
        slow.execute("COMMIT")
    assert chain.verify(sealed).unsealed == 1
    assert found(sealed) == set()
    assert chain.seal(sealed) == 1
    sealed.execute("INSERT INTO people SELECT g FROM generate_series(100, 124) g")
    before = chain.verify(sealed).seals
    assert [chain.seal(sealed, 1) for _ in range(3)] == [20, 5, 0]
    assert chain.verify(sealed).seals == before + 25
    report = chain.verify(sealed)
    assert (report.broken, report.unsealed, report.rows) == ([], 0, 35)
    once = sealed.execute("SELECT count(*), count(DISTINCT e) FROM forge.log_seal, unnest(events) e").fetchone()
    assert once == (35, 35)


def test_maintenance_seals_and_may_be_killed_in_the_middle(sealed: Connection, database: str) -> None:
    sealed.execute("INSERT INTO people SELECT g, 'x' FROM generate_series(1000, 13000) g")
    victim = threading.Thread(target=lambda: _quiet(lambda: run_once(database)))
    victim.start()
    deadline = time.monotonic() + 20
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'forge maintenance' AND query LIKE '%%seal_page%%' AND datname = current_database()"
    )
    while victim.is_alive() and not sealed.execute(kill).fetchone():
        assert time.monotonic() < deadline
    victim.join(20)
    assert found(sealed) == set()
    assert run_once(database).problems == []
    report = chain.verify(sealed)
    assert (report.broken, report.unsealed, report.rows) == ([], 0, 7 + 1 + 12_001)


def _quiet(work: Callable[[], object]) -> None:
    try:
        work()
    except psycopg.OperationalError:
        return


def test_retention_keeps_the_heads(sealed: Connection, database: str) -> None:
    today = datetime.now(UTC).date()
    old = today - timedelta(days=40)
    partitions.make(sealed, old)
    sealed.execute(f"UPDATE {LOG} SET day = %s, at = at - interval '40 days' WHERE op = 'I'".encode(), (old,))
    sealed.execute("DELETE FROM forge.log_seal; DELETE FROM forge.sealing")
    chain.start(sealed)
    while chain.seal(sealed):
        pass
    before = chain.heads(sealed)
    assert [one.day for one in before] == [old, today]
    report = run_once(database, Policy(retention_days=30))
    assert partitions.partition_name(old) in report.dropped
    run_once(database, Policy(retention_days=30))
    assert chain.heads(sealed)[0] == before[0]
    after = chain.verify(sealed, head=before[0].head)
    assert (after.broken, after.dropped) == ([], [old])
    row = sealed.execute("SELECT count(*) FROM forge.log_seal WHERE events IS NULL").fetchone()
    assert row == (1,)
    sealed.execute("DELETE FROM forge.trimmed")
    assert {finding.day for finding in chain.verify(sealed).broken} == {old}


def test_rows_of_an_older_incarnation_are_sealed_too(connection: Connection) -> None:
    connection.execute("CREATE TABLE people (id int PRIMARY KEY)")
    enable(connection, "people")
    connection.execute("INSERT INTO people VALUES (1), (2)")
    chain.start(connection)
    while chain.seal(connection):
        pass
    connection.execute("INSERT INTO people VALUES (3)")
    connection.execute(
        "UPDATE forge.log_identity SET timeline = timeline + 7 WHERE id = (SELECT max(id) FROM forge.log_identity)"
    )
    connection.execute("INSERT INTO people VALUES (4)")
    while chain.seal(connection):
        pass
    connection.execute("INSERT INTO people VALUES (5)")
    while chain.seal(connection):
        pass
    report = chain.verify(connection)
    assert (report.broken, report.unsealed, report.rows) == ([], 0, 6)
    connection.execute(f"DELETE FROM {LOG} WHERE id = {ids(connection)[1]}".encode())
    assert {what for what, _ in found(connection)} == {"removed"}


def test_off_is_the_default(connection: Connection, database: str) -> None:
    connection.execute("CREATE TABLE people (id int PRIMARY KEY)")
    enable(connection, "people")
    connection.execute("INSERT INTO people VALUES (1)")
    assert run_once(database).sealed == 0
    assert connection.execute("SELECT count(*) FROM forge.log_seal").fetchone() == (0,)
    with pytest.raises(HistoryUnavailable, match="the log is not sealed") as caught:
        chain.verify(connection)
    assert caught.value.fix == "forge verify-log --start"
    chain.start(connection)
    assert run_once(database).sealed == 2
    chain.stop(connection)
    connection.execute("INSERT INTO people VALUES (2)")
    assert run_once(database).sealed == 0
    report = chain.verify(connection)
    assert (report.enabled, report.broken, report.unsealed) == (False, [], 1)
    chain.start(connection)
    assert run_once(database).sealed == 1
    assert chain.heads(connection)[0].day == date.fromordinal(datetime.now(UTC).toordinal())
