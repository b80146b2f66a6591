"""Redacting: the values are gone from every image, the tombstone says so to everyone, nothing else changes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge import debezium, wire
from forge.change import UNAVAILABLE, Change, Op
from forge.changelog import partitions
from forge.changelog.maintenance import run_once
from forge.changelog.reader import Reader
from forge.embedded import PostgresServer
from forge.errors import HistoryUnavailable, RedactError, RevertRefused, TrackingError
from forge.history.asof import table_as_of
from forge.history.redact import Redacted, redact
from forge.history.revert import Choice, revert
from forge.postgres.connection import Connection, connect
from tests.changelog.log import enable

SECRET = "ada@example.com"


@pytest.fixture
def people(connection: Connection) -> Connection:
    connection.execute("SELECT forge.current_identity()")
    connection.execute("CREATE TABLE people (id int PRIMARY KEY, email text, phone jsonb, age float8, note text)")
    enable(connection, "people")
    connection.execute(
        f"INSERT INTO people VALUES (7, '{SECRET}', '{{\"x\": 1}}', 1.5, 'a'), (8, 'bob', '1', 2, 'b')".encode()
    )
    connection.execute("UPDATE people SET note = 'c' WHERE id = 7")
    connection.execute(f"UPDATE people SET email = 'new {SECRET}', note = 'd' WHERE id = 7".encode())
    connection.execute("UPDATE people SET email = NULL, phone = NULL, age = 0 WHERE id = 7")
    return connection


async def changes(url: str) -> list[Change]:
    async with Reader.open(url) as reader:
        return [change async for batch in reader.read(reader.start()) for change in batch.changes]


def everything(connection: Connection) -> str:
    """All that the log's tables hold, as text."""
    tables = ("forge.forge_event_log", "forge.log_seal", "forge.redaction", "forge.large_payload")
    return "\n".join(
        str(row) for table in tables for (row,) in connection.execute(f"SELECT t::text FROM {table} t".encode())
    )


async def test_the_values_are_gone_and_the_rest_is_there(people: Connection, database: str) -> None:
    before = await changes(database)
    done = redact(people, "people", 7, ["email", "phone"], reason="asked", by="ada")
    assert (done.changes, done.columns, done.keys, done.current) == (4, ["email", "phone"], ["7"], [])
    assert SECRET not in everything(people)
    after = await changes(database)
    assert [change.id for change in after[: len(before)]] == [change.id for change in before]
    for old, new in zip(before, after, strict=False):
        assert (old.key, old.op, old.at, old.source, old.context) == (new.key, new.op, new.at, new.source, new.context)
        # what changed is still known, by name
        assert set(old.changed) == set(new.changed)
        for one, other in ((old.before, new.before), (old.after, new.after)):
            if one is None or (old.key or {}).get("id") == 8:
                assert one == other
                continue
            assert other is not None
            assert (other["email"], other["phone"]) == (UNAVAILABLE, UNAVAILABLE)
            assert {**other, "email": one["email"], "phone": one["phone"]} == one
    tombstone = after[-1]
    assert (tombstone.op, tombstone.key, tombstone.before, tombstone.after) == (Op.REDACT, {"id": 7}, None, None)
    assert tombstone.hidden == ("email", "phone")
    assert tombstone.context.user_id == "ada"
    assert tombstone.context.function_name == "forge.redact"
    assert tombstone.context.more == {
        "columns": ["email", "phone"],
        "reason": "asked",
        "changes": 4,
        "since": None,
        "until": None,
    }
    assert tombstone.id.endswith(f":{done.tombstones[0]}")
    assert wire.decode(wire.encode(tombstone)) == tombstone
    assert b'"redacted_columns":["email","phone"]' in wire.encode(tombstone, rows=False)
    assert debezium.encode(tombstone) is None


def test_sql_shows_it_and_never_a_null(people: Connection) -> None:
    redact(people, "people", {"id": 7}, ["email"])
    rows = people.execute(
        "SELECT operation, old_data ->> 'email', new_data ->> 'email', changed_columns FROM forge_events"
        " WHERE row_id = '7' ORDER BY id"
    ).fetchall()
    mark = '{"$redacted": true}'
    assert rows == [
        ("INSERT", None, mark, None),
        ("UPDATE", mark, mark, ["note"]),
        ("UPDATE", mark, mark, ["note", "email"]),
        ("UPDATE", mark, mark, ["phone", "age", "email"]),
        ("REDACT", None, None, None),
    ]


def test_again_and_with_more_columns(people: Connection) -> None:
    redact(people, "people", 7, ["email"])
    again = redact(people, "people", 7, ["email", "age"])
    assert again.changes == 4
    assert redact(people, "people", 7, ["email", "age"]).changes == 0
    row = people.execute(
        "SELECT after::text FROM forge.forge_event_log WHERE row_id = '7' ORDER BY id LIMIT 1"
    ).fetchone()
    assert row is not None
    assert '"age":{"$redacted":true}' in row[0]
    assert row[0].endswith('"$redacted":["email","age"]}')


def test_a_dry_run_changes_nothing(people: Connection) -> None:
    before = everything(people)
    people.execute("UPDATE people SET email = 'back' WHERE id = 7")
    after = everything(people)
    assert redact(people, "people", "7", ["email", "age"], dry_run=True) == Redacted(
        "public.people", "7", ["age", "email"], 5, ["7"], ["email", "age"], None, []
    )
    assert everything(people) == after != before


async def test_earlier_and_later_keys_are_the_same_row(connection: Connection, database: str) -> None:
    connection.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    enable(connection, "people")
    for statement in (
        "INSERT INTO people VALUES (1, 'somebody else'), (5, 'five')",
        "DELETE FROM people WHERE id = 1",
        f"INSERT INTO people VALUES (1, '{SECRET}')",
        "UPDATE people SET id = id + 1",
        "INSERT INTO people VALUES (1, 'the next one')",
        "UPDATE people SET id = 3 WHERE id = 2",
        "INSERT INTO people VALUES (2, 'yet another')",
    ):
        connection.execute(statement.encode())
    assert set(redact(connection, "people", 2, ["email"], dry_run=True).keys) == {"1", "2", "3"}
    done = redact(connection, "people", 3, ["email"])
    assert set(done.keys) == {"1", "2", "3"}
    assert done.changes == 5
    assert SECRET not in everything(connection)
    for kept in ("somebody else", "five", "the next one", "yet another"):
        assert kept in everything(connection)
    found = {change.row_id: change for change in await changes(database) if change.op is Op.REDACT}
    assert found.keys() == {"1", "2", "3"}
    assert found["3"].context.more["since"] is None
    span = found["1"].context.more
    assert span["since"] is not None
    assert span["until"] is not None


def test_a_renamed_column_is_redacted_under_its_old_name(people: Connection) -> None:
    people.execute("ALTER TABLE people RENAME email TO mail")
    people.execute("UPDATE people SET mail = 'third' WHERE id = 7")
    done = redact(people, "people", 7, ["mail"])
    assert done.columns == ["email", "mail"]
    assert SECRET not in everything(people)
    assert "third" not in everything(people)


def test_as_of_says_that_it_is_not_known(people: Connection, database: str) -> None:
    run_once(database)
    people.execute("UPDATE people SET email = 'later' WHERE id = 7")
    at = datetime.now(UTC)
    people.execute("UPDATE people SET note = 'z' WHERE id = 7")
    run_once(database)
    redact(people, "people", 7, ["email"])
    rows = {row["id"]: row for row in table_as_of(people, "people", at - timedelta(0)).rows}
    assert rows[7]["email"] is UNAVAILABLE
    assert rows[7]["age"] == 0.0
    assert rows[8]["email"] == "bob"


def test_what_was_redacted_cannot_be_reverted(people: Connection) -> None:
    people.execute("SELECT forge_context('eve', NULL, 'bad')")
    with people.transaction():
        people.execute("SELECT forge_context('eve', NULL, 'bad')")
        people.execute("UPDATE people SET email = 'x', note = 'y' WHERE id = 8")
    redact(people, "people", 8, ["email"])
    with pytest.raises(RevertRefused) as caught:
        revert(people, Choice(trace="bad"))
    assert caught.value.conflicts == ("people 8: email changed, and the log has no values of it",)


def test_what_is_refused(people: Connection, server: PostgresServer) -> None:
    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        ("people", 7, ["mail"], RedactError, "people has no column mail"),
        ("people", 7, ["id"], RedactError, "id is part of the key"),
        ("people", 7, [], RedactError, "no column is named"),
        ("people", "x", ["email"], HistoryUnavailable, "invalid input syntax"),
        ("people", {"name": 7}, ["email"], HistoryUnavailable, "the key of people is id"),
        ("nobody", 7, ["email"], TrackingError, "there is no table nobody"),
        ("pg_class", 7, ["relname"], HistoryUnavailable, "is not tracked"),
    ]
    before = everything(people)
    for table, key, columns, kind, match in cases:
        with pytest.raises(kind, match=match):
            redact(people, table, key, columns)
    odd: list[dict[str, Any]] = [{"reason": "a\0b"}, {"reason": "a\ud800"}, {"by": "\0"}]
    for words in odd:
        with pytest.raises(RedactError, match=r"(reason|by) has (a NUL|half of)"):
            redact(people, "people", 7, ["email"], **words)
    name = people.info.dbname
    people.execute(f"CREATE ROLE reader_{name} LOGIN; GRANT USAGE ON SCHEMA forge TO reader_{name}".encode())
    people.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA forge TO reader_{name}".encode())
    try:
        with (
            connect(server.url(name, f"reader_{name}")) as reader,
            pytest.raises(RedactError, match="the log belongs to postgres"),
        ):
            redact(reader, "people", 7, ["email"])
    finally:
        people.execute(f"DROP OWNED BY reader_{name}; DROP ROLE reader_{name}".encode())
    assert everything(people) == before


def test_a_published_log_can_be_redacted(people: Connection) -> None:
    """Where all tables are published, a table without a replica identity refuses every update."""
    people.execute("SET client_min_messages = error")
    people.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    assert redact(people, "people", 7, ["email"]).changes == 4
    today = partitions.partition_name(datetime.now(UTC).date())
    people.execute(f"ALTER TABLE forge.{today} REPLICA IDENTITY DEFAULT".encode())  # as older programs made it
    with pytest.raises(RedactError, match="is published for updates and has no replica identity") as caught:
        redact(people, "people", 7, ["age"])
    people.execute(caught.value.fix.partition(",")[0].encode())
    assert redact(people, "people", 7, ["age"]).changes == 4


def test_a_row_with_a_document_nested_3000_deep(people: Connection) -> None:
    people.execute("UPDATE people SET phone = (repeat('[', 3000) || repeat(']', 3000))::jsonb WHERE id = 7")
    people.execute("ALTER TABLE people RENAME COLUMN note TO words")
    people.execute("DELETE FROM people WHERE id = 7")
    done = redact(people, "people", 7, ["email"], reason="asked", by="ada")
    assert (done.columns, done.keys) == (["email"], ["7"])
    assert SECRET not in everything(people)
