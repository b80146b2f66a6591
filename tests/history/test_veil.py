"""What is excluded or masked now, or was when it was dropped, is in no answer, whatever it is or was called."""

import io
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from forge.app import Forge
from forge.change import UNAVAILABLE, Op
from forge.cli import main
from forge.errors import HistoryUnavailable
from forge.history.asof import row_as_of, table_as_of
from forge.history.definitions import DefinitionVersion, VersionColumn, veils
from forge.history.revert import Choice, plan_revert, revert
from forge.history.timeline import timeline
from forge.postgres.connection import Connection
from forge.serve.node import Options
from tests.history.moments import begin, record
from tests.history.test_http import AUTH, GRANTED
from tests.serve.serving import SOON, serving

pytestmark = pytest.mark.contract("T9")
SECRETS = ("SECRET-1", "SECRET-2")
EXCLUDED = "SELECT forge_enable_reactivity('person', exclude => '{ssn}')"
MASKED = "SELECT forge_enable_reactivity('person', mask => '{ssn}')"
RENAMED = "ALTER TABLE person RENAME COLUMN ssn TO sn2"
DROPPED = "ALTER TABLE person DROP COLUMN sn2"
WAYS = {
    "excluded": (EXCLUDED,),
    "renamed": (EXCLUDED, RENAMED),
    "dropped": (EXCLUDED, RENAMED, DROPPED),
    "dropped and enabled again": (EXCLUDED, RENAMED, DROPPED, "SELECT forge_enable_reactivity('person')"),
    "masked and renamed": (MASKED, RENAMED),
    "masked and dropped": (MASKED, RENAMED, DROPPED),
    "renamed before": (RENAMED, EXCLUDED.replace("ssn", "sn2")),
    "another of its name": (
        *(EXCLUDED, RENAMED, "DROP TABLE person", "CREATE TABLE person (id int PRIMARY KEY, ssn text, n int)"),
        *("INSERT INTO person VALUES (1, 'other', 2)", "SELECT forge_enable_reactivity('person')"),
    ),
}


class Past(NamedTuple):
    """When the secret was there, and the transaction that changed it."""

    at: datetime
    transaction: str


def secret(connection: Connection, statements: tuple[str, ...]) -> Past:
    """A table whose log has a secret, and what was done to its column since."""
    begin(connection)
    connection.execute("CREATE TABLE person (id int PRIMARY KEY, ssn text, n int)")
    connection.execute("SELECT forge_enable_reactivity('person')")
    connection.execute("INSERT INTO person VALUES (1, 'SECRET-1', 1)")
    row = connection.execute(
        "UPDATE person SET ssn = 'SECRET-2', n = 2 RETURNING pg_current_xact_id()::text"
    ).fetchone()
    assert row is not None
    at = record(connection, ["person"]).at
    for statement in statements:
        connection.execute(statement.encode())
    return Past(at, row[0])


@pytest.mark.parametrize("way", WAYS)
def test_no_reader_shows_it(connection: Connection, way: str) -> None:
    past = secret(connection, WAYS[way])
    page = timeline(connection, "person", 1)
    assert [entry.op for entry in page.entries if entry.change.op is not Op.SCHEMA] == ["UPDATE", "INSERT"]
    told: list[Any] = [(entry.change, entry.diff, entry.wire()) for entry in page.entries]
    insert = next(entry.change for entry in page.entries if entry.op == "INSERT")
    assert insert.after == {"id": 1, "ssn": UNAVAILABLE, "n": 1}
    row = row_as_of(connection, "person", 1, past.at).row
    assert row == {"id": 1, "ssn": UNAVAILABLE, "n": 2}
    for where in ("ssn LIKE 'SECRET%'", "person.ssn IS NULL"):
        with pytest.raises(HistoryUnavailable, match="does not have ssn"):
            table_as_of(connection, "person", past.at, where=where)
    assert table_as_of(connection, "person", past.at, where="person::text LIKE '%SECRET%'").rows == []
    assert len(table_as_of(connection, "person", past.at, where="n = 2").rows) == 1
    plan = plan_revert(connection, Choice(transaction=past.transaction))
    (step,) = plan.steps
    assert (bytes(step.now["n"]), bytes(step.then["n"])) == (b"2", b"1")
    told += [bytes(value) for image in (step.now, step.then) for value in image.values()]
    told += map(str, plan.conflicts)
    assert not [value for value in SECRETS if value in str(told)]


@pytest.mark.parametrize("way", ["renamed", "dropped"])
def test_no_command_prints_it(database: str, connection: Connection, way: str) -> None:
    past = secret(connection, WAYS[way])
    said = io.StringIO()
    for words in (
        ["history", "person", "1"],
        ["history", "person", "1", "--diff"],
        ["history", "person", "1", "--at", past.at.isoformat()],
        ["audit", "--table", "person"],
        ["as-of", "person", "--at", past.at.isoformat()],
        ["as-of", "person", "--at", past.at.isoformat(), "--csv"],
        ["revert", "--transaction", past.transaction, "--dry-run"],
    ):
        for options in ([], ["--json"]) if "--csv" not in words else ([],):
            with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
                main(["--database-url", database, *options, *words])
            refused = words[0] == "revert" and way == "dropped"  # the column is gone
            assert (ended.value.code or 0) == refused, words
    assert said.getvalue().count("UPDATE") > 4
    assert not [value for value in SECRETS if value in said.getvalue()]


@pytest.mark.parametrize("way", ["renamed", "dropped"])
async def test_no_answer_over_http_has_it(database: str, connection: Connection, way: str) -> None:
    past = secret(connection, WAYS[way])
    async with serving(Forge(database, options=Options(auth=AUTH))) as served:
        for query in ("", f"?at={past.at.isoformat().replace('+00:00', 'Z')}"):
            answer = await served.client.get(f"/forge/history/person/1{query}", headers=GRANTED)
            assert answer.status_code == 200
            assert not [value for value in SECRETS if value in answer.text]
    async with serving(Forge(database)) as served:
        for name, arguments in (
            ("history", {"table": "person", "key": 1}),
            ("as_of", {"table": "person", "key": 1, "at": past.at.isoformat()}),
            ("revert_plan", {"transaction": past.transaction}),
        ):
            answer = await served.post(f"/forge/query/forge.{name}", arguments, timeout=SOON)
            assert answer.status_code == 200, answer.text
            shown = '"op":"UPDATE"' if name == "history" else '{"$unavailable":true}'
            assert shown in answer.text.replace(" ", ""), name
            assert not [value for value in SECRETS if value in answer.text]


def test_what_is_shown_again_is_shown_under_every_name(connection: Connection) -> None:
    past = secret(connection, (*WAYS["renamed"], "SELECT forge_enable_reactivity('person')"))
    assert "SECRET-1" in str(timeline(connection, "person", 1).entries)
    row = row_as_of(connection, "person", 1, past.at).row
    assert row is not None
    assert row["ssn"] == "SECRET-2"


def test_what_nobody_is_shown_comes_back_all_the_same(connection: Connection) -> None:
    past = secret(connection, WAYS["renamed"])
    done = revert(connection, Choice(transaction=past.transaction))
    assert connection.execute("SELECT sn2, n FROM person").fetchall() == [("SECRET-1", 1)]
    assert "SECRET" not in str([bytes(value) for step in done.steps for value in step.then.values()])


def test_columns_are_followed_into_a_restored_table() -> None:
    """It numbers them again."""

    def version(id: int, relation: int, *fields: VersionColumn) -> DefinitionVersion:
        return DefinitionVersion(id, relation, "public", "t", fields, (), "")

    before = version(1, 7, VersionColumn("a", "text", "plain", 2), VersionColumn("ssn", "text", "plain", 3))
    restored = version(2, 8, VersionColumn("a", "text", "plain", 1), VersionColumn("ssn", "text", "plain", 2))
    renamed = version(3, 8, VersionColumn("a", "text", "plain", 1), VersionColumn("sn2", "text", "hidden", 2))
    versions = {each.id: each for each in (before, restored, renamed)}
    assert veils(versions, ["sn2"]) == {1: {"ssn"}, 2: {"ssn"}, 3: {"sn2"}}
