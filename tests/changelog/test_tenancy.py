"""Tenancy: on every surface a tenant learns who made a change only where all rows of the transaction are its own."""

import asyncio
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import jwt
import pytest

from forge.app import Forge
from forge.change import Change, ChangeSource, Context, Op
from forge.changelog.reader import Reader
from forge.changelog.tenancy import SIGNED, Tenant, parameters, sole_tenants
from forge.postgres.connection import Connection
from forge.react.group import Settings
from forge.serve.auth import AuthSettings
from forge.serve.node import Options
from forge.tracking.context import transaction
from forge.values import Column
from forge.wire import decode
from tests.changelog.following import eventually
from tests.serve.serving import Stream, serving
from tests.serve.test_http import SECRET, bearing

STEPS: dict[str, tuple[list[str], bool]] = {
    # what a transaction of acme's user does that touches rows of zeta, and whether zeta may learn who did it
    "plain": (["UPDATE docs SET body = 'plain' WHERE id = 100"], True),
    "moved": (["UPDATE docs SET tenant = 'zeta', body = 'moved' WHERE id = 1"], False),
    "key": (["UPDATE docs SET id = 102, tenant = 'zeta', body = 'key' WHERE id = 2"], False),
    "both": (["UPDATE docs SET body = 'both' WHERE id IN (3, 100)"], False),
    "tables": (["UPDATE docs SET body = 'tables' WHERE id = 3", "UPDATE notes SET body = 'tables'"], False),
    "nobody": (["INSERT INTO docs VALUES (90, NULL, '')", "UPDATE notes SET body = 'nobody'"], False),
    "named": (["INSERT INTO docs VALUES (91, 'None', '')", "UPDATE notes SET body = 'named'"], False),
    "unknown": (["INSERT INTO excluded VALUES (1, 'zeta')", "UPDATE notes SET body = 'unknown'"], False),
    "whole": (["TRUNCATE other", "UPDATE notes SET body = 'whole'"], False),
    "shared": (["INSERT INTO shared VALUES (1)", "UPDATE notes SET body = 'shared'"], True),
    "kept": (["UPDATE docs SET id = 103, body = 'kept' WHERE id = 102"], True),
}
TOLD = [f"secret-{name}" for name, (_, told) in STEPS.items() if told]
UNTOLD = [f"secret-{name}" for name, (_, told) in STEPS.items() if not told]
ZETA = bearing("eve", "zeta", scope="forge:history", seconds=86400)


@pytest.fixture
def tenants(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE docs (id int PRIMARY KEY, tenant text, body text)")
    connection.execute("CREATE TABLE notes (id int PRIMARY KEY, tenant text, body text)")
    connection.execute("CREATE TABLE other (id int PRIMARY KEY, tenant text)")
    connection.execute("CREATE TABLE excluded (id int PRIMARY KEY, tenant text)")
    connection.execute("CREATE TABLE masked (id int PRIMARY KEY, tenant text)")
    connection.execute("CREATE TABLE shared (id int PRIMARY KEY)")
    for table in ("docs", "notes", "other", "shared"):
        connection.execute("SELECT forge_enable_reactivity(%s)", (table,))
    connection.execute("SELECT forge_enable_reactivity('excluded', exclude => '{tenant}')")
    connection.execute("SELECT forge_enable_reactivity('masked', mask => '{tenant}')")
    connection.execute("INSERT INTO docs VALUES (1, 'acme', ''), (2, 'acme', ''), (3, 'acme', ''), (100, 'zeta', '')")
    connection.execute("INSERT INTO notes VALUES (1, 'zeta', '')")
    return connection


def application(database: str) -> Forge:
    auth = AuthSettings(algorithms=("HS256",), secret=SECRET)
    app = Forge(
        database,
        settings=Settings(quiet=0.005, longest=0.05, check=1e9),
        options=Options(auth=auth, tenant_column="tenant"),
    )

    @app.query(scope="tenant")
    async def ours(ctx: Any) -> Any:
        return await ctx.db.fetch(
            "SELECT id, body FROM docs WHERE tenant = %(t)s UNION ALL SELECT -id, body FROM notes WHERE tenant = %(t)s"
            " ORDER BY 1",
            t=ctx.auth.tenant,
        )

    @app.query
    async def mine(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT id, body FROM docs ORDER BY id")

    return app


def without_tenant(scope: str) -> dict[str, str]:
    """The headers of somebody who sees the rows of all tenants."""
    coded = jwt.encode({"sub": "root", "scope": scope}, SECRET, algorithm="HS256")
    return {"authorization": f"Bearer {coded}"}


def step(connection: Connection, name: str) -> None:
    """One transaction of acme's user."""
    who = f"secret-{name}"
    with transaction(connection, user_id=who, function_name=f"{who}-function", trace_id=f"{who}-trace", more=who):
        for statement in STEPS[name][0]:
            connection.execute(statement.encode())


def actors(texts: Iterable[str]) -> None:
    """Nothing that a tenant got names an actor that it may not know."""
    for text in texts:
        for name in UNTOLD:
            assert name not in text


@pytest.mark.contract("R6", "X5")
async def test_a_push_names_the_actor_of_ones_own_rows_alone(database: str, tenants: Connection) -> None:
    async with serving(application(database)) as served, served.stream("/forge/live/ours", headers=ZETA) as stream:
        await stream.next()
        for name, (_, told) in STEPS.items():
            step(tenants, name)
            event = await stream.next()
            said = {(cause["user"], cause["function"], cause["trace"]) for cause in event.body["cause"]}
            who = f"secret-{name}"
            assert said == {(who, f"{who}-function", f"{who}-trace") if told else (None, None, None)}, name
            assert all(cause["xid"] and cause["change"] for cause in event.body["cause"])
        actors(event.data for event in stream.seen)


@pytest.mark.contract("R6")
async def test_a_change_during_a_run_is_told_by_the_same_rule(database: str, tenants: Connection) -> None:
    """What arrives while a query runs is matched when the run ends."""
    app = application(database)
    written, running = asyncio.Event(), []

    @app.query(scope="tenant")
    async def waits(ctx: Any) -> Any:
        rows = await ctx.db.fetch("SELECT id, body FROM docs WHERE tenant = %(t)s ORDER BY id", t=ctx.auth.tenant)
        running.append(True)
        await written.wait()
        return rows

    async with serving(app) as served, served.stream("/forge/live/waits", headers=ZETA) as stream:
        await eventually(lambda: bool(running))
        for name in ("moved", "key", "both"):
            step(tenants, name)
        # the log is read while the run waits
        async with served.stream("/forge/changes?from=start", headers=ZETA) as feed:
            await feed.until(lambda event: "both" in event.data)
        written.set()
        event = await stream.until(lambda event: event.body["rows"][-1]["body"] == "key")
        assert len(event.body["cause"]) >= 3
        actors(event.data for event in stream.seen)


@pytest.mark.contract("R6")
async def test_a_batch_in_parts_hides_the_actor(database: str, tenants: Connection) -> None:
    """Of a transaction that is read in pages, a page does not tell whose rows are on the next."""
    async with serving(application(database)) as served, served.stream("/forge/live/ours", headers=ZETA) as stream:
        await stream.next()
        with transaction(tenants, user_id="secret-large"):
            tenants.execute("UPDATE docs SET body = 'large' WHERE tenant = 'zeta'")
            tenants.execute("INSERT INTO docs SELECT n, 'acme', '' FROM generate_series(1000, 3000) n")
        event = await stream.until(lambda event: any(row["body"] == "large" for row in event.body["rows"]))
        assert event.body["cause"]
        assert all("secret" not in event.data for event in stream.seen)
        step(tenants, "plain")
        last = await stream.until(lambda event: any(row["body"] == "plain" for row in event.body["rows"]))
        assert last.body["cause"][0]["user"] == "secret-plain"


async def test_users_of_one_name_in_two_tenants_are_not_each_other(database: str, tenants: Connection) -> None:
    """A user's own changes are told to a user without a tenant; within a tenant the rows decide."""
    acme = bearing("secret-plain", "zeta")
    async with serving(application(database)) as served, served.stream("/forge/live/mine", headers=acme) as stream:
        await stream.next()
        with transaction(tenants, user_id="secret-plain", function_name="secret-function"):
            tenants.execute("UPDATE docs SET body = 'acme' WHERE id = 3")
        event = await stream.next()
        assert [cause["user"] for cause in event.body["cause"]] == [None]
        assert "secret" not in event.data


@pytest.mark.contract("R6")
async def test_the_audit_names_the_actor_of_ones_own_rows_alone(database: str, tenants: Connection) -> None:
    for name in STEPS:
        step(tenants, name)
    async with serving(application(database)) as served:

        async def ask(query: str = "") -> Any:
            answer = await served.client.get(f"/forge/audit?limit=1000{query}", headers=ZETA)
            assert answer.status_code == 200
            actors([answer.text])
            return answer.json()

        page = await ask()
        named = {entry["user_id"] for entry in page["entries"] if entry["user_id"]}
        assert sorted(named) == sorted(TOLD)
        moved = next(entry for entry in page["entries"] if entry["key"] == "102" and entry["op"] == "INSERT")
        assert {moved[name] for name in ("user_id", "function_name", "trace_id", "session_user")} == {None}
        for who in UNTOLD:  # nor can it be guessed
            assert (await ask(f"&user={who}"))["entries"] == []
            assert (await ask(f"&trace={who}-trace"))["entries"] == []
            assert (await ask(f"&by=op&user={who}"))["counts"] == []
        for who in TOLD:
            assert {entry["user_id"] for entry in (await ask(f"&user={who}"))["entries"]} == {who}
        counted = (await ask("&by=user,function,trace"))["counts"]
        assert sorted(line["user"] for line in counted if line["function"]) == sorted(TOLD)
        assert sum(line["changes"] for line in counted) == len(page["entries"])


@pytest.mark.contract("R6")
async def test_a_history_names_the_actor_of_ones_own_rows_alone(database: str, tenants: Connection) -> None:
    for name in STEPS:
        step(tenants, name)
    async with serving(application(database)) as served:

        async def ask(row: str, headers: dict[str, str]) -> Any:
            answer = await served.client.get(f"/forge/history/{row}?limit=1000", headers=headers)
            assert answer.status_code == 200
            return answer.json(), answer.text

        seen = set()
        for row in ("docs/100", "docs/1", "docs/2", "docs/102", "docs/103", "notes/1"):
            page, text = await ask(row, ZETA)
            actors([text])
            seen |= {entry["context"]["user_id"] for entry in page["entries"]}
        assert sorted(seen - {None}) == sorted(TOLD)
        # the row came by a change of its key: an insert, by nobody known, and nothing of what it was
        page, text = await ask("docs/103", ZETA)
        assert [(entry["op"], entry["key"]["id"]) for entry in page["entries"]] == [("KEY", 103), ("INSERT", 102)]
        arrived = page["entries"][1]
        assert "was" not in arrived
        assert arrived["context"] == {**dict.fromkeys(arrived["context"]), "more": {}}
        assert (page["next"], "acme" in text) == (None, False)
        # it went by a change of its key: a delete, and nothing of what it became
        page, text = await ask("docs/2", bearing("ada", "acme", scope="forge:history"))
        assert [entry["op"] for entry in page["entries"]] == ["DELETE", "INSERT"]
        assert not {"zeta", "102", "became"} & set(text.replace('"', " ").split())
        # whoever sees all rows sees all actors
        page, text = await ask("docs/102", without_tenant("forge:history"))
        assert [entry["context"]["user_id"] for entry in page["entries"]][:2] == ["secret-kept", "secret-key"]


@pytest.mark.contract("W11")
async def test_the_feed_names_the_actor_of_ones_own_rows_alone_now_and_later(
    database: str, tenants: Connection
) -> None:
    async def until_kept(stream: Stream) -> list[Any]:
        await stream.until(lambda event: event.name == "change" and "kept" in event.data)
        actors(event.data for event in stream.seen)
        found = [decode(event.data) for event in stream.seen if event.name == "change"]
        return [change for change in found if change.op is not Op.SCHEMA]

    async with serving(application(database)) as served, served.stream("/forge/changes", headers=ZETA) as live:
        begin = await position(live)
        for name in STEPS:
            step(tenants, name)
        now = await until_kept(live)
        tenants.execute("INSERT INTO docs SELECT n, 'acme', '' FROM generate_series(1000, 3500) n")  # several pages
        async with served.stream(f"/forge/changes?from={begin}", headers=ZETA) as replayed:
            later = await until_kept(replayed)
        async with served.stream(f"/forge/changes?from={begin}&table=docs", headers=ZETA) as filtered:
            docs = await until_kept(filtered)
        for found in (now, later):
            assert sorted({change.context.user_id for change in found} - {None}) == sorted(TOLD)
        assert now == later
        assert docs == [change for change in now if change.table == "docs"]


async def position(stream: Stream) -> str:
    """The cursor that a stream begins with."""
    async for line in stream._lines:
        if line.startswith("id: "):
            return line.removeprefix("id: ")
    raise AssertionError("the stream ended")


async def test_the_console_is_closed_to_tenants(database: str, tenants: Connection) -> None:
    auth = AuthSettings(algorithms=("HS256",), secret=SECRET)
    app = Forge(database, options=Options(auth=auth, tenant_column="tenant", console="forge:console"))
    step(tenants, "moved")
    async with serving(app) as served:
        for name, arguments in (("forge.history", {"table": "docs", "key": 1}), ("forge.audit", {})):
            zeta = bearing("eve", "zeta", scope="forge:console")
            for headers, status in ((zeta, 403), (without_tenant("forge:console"), 200)):
                answer = await served.post(f"/forge/query/{name}", arguments, headers=headers)
                assert answer.status_code == status
                assert ("secret-moved" in answer.text) == (status == 200)


# The rule


NAMES = ("acme", "zeta", "None", "null", "***", "7")


def write_at_random(tenants: Connection, chance: random.Random) -> None:
    """Transactions of one, two or more tenants, and nobody's."""
    for number in range(150):
        with tenants.transaction():
            for place in range(chance.randint(1, 3)):
                id = 10_000 + number * 10 + place
                table = chance.choice(("docs", "docs", "docs", "notes", "excluded", "masked", "shared", "other"))
                name = chance.choice(NAMES) if chance.random() < 0.3 else ("acme", "zeta")[number % 2]
                tenant = None if chance.random() < 0.05 else name
                if table == "shared":
                    tenants.execute("INSERT INTO shared VALUES (%s)", (id,))
                elif table == "other" and chance.random() < 0.2:
                    tenants.execute("TRUNCATE other")
                else:
                    tenants.execute(f"INSERT INTO {table} (id, tenant) VALUES (%s, %s)".encode(), (id, tenant))
                    move = chance.random()
                    if move < 0.15:
                        to = None if chance.random() < 0.2 else chance.choice(NAMES)
                        tenants.execute(f"UPDATE {table} SET tenant = %s WHERE id = %s".encode(), (to, id))
                    elif move < 0.3:
                        tenants.execute(f"UPDATE {table} SET id = -id WHERE id = %s".encode(), (id,))
                    elif move < 0.4:
                        tenants.execute(f"DELETE FROM {table} WHERE id = %s".encode(), (id,))
                    elif move < 0.5 and table in ("docs", "notes"):
                        tenants.execute(f"UPDATE {table} SET body = 'x' WHERE id = %s".encode(), (id,))


async def test_both_forms_of_the_rule_agree(database: str, tenants: Connection) -> None:
    """The one for changes in memory and the one in SQL, of random transactions."""
    async with Reader.open(database) as reader:
        begin = await reader.now()
        write_at_random(tenants, random.Random(20))
        [batch] = [batch async for batch in reader.read(begin)]
        sole = sole_tenants(batch.changes, batch.columns, "tenant")
        transactions = sorted({change.source.transaction or "" for change in batch.changes})
        for name in NAMES:
            values = {"transactions": transactions, **parameters(Tenant("tenant", name))}
            rows = await (await reader.connection.execute(SIGNED.encode(), values)).fetchall()
            assert {row[0] for row in rows} == {number for number, owner in sole.items() if owner == name}, name
    found = list(sole.values())
    assert min(found.count("acme"), found.count("zeta")) > 10
    assert len(transactions) - len(sole) > 10


def change(op: Op, before: Any, after: Any) -> Change:
    source = ChangeSource("postgres-log", "x", "1.1", "5")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Change("1", op, "public", "docs", source, at, {"id": 1}, before, after, Context("ada"))


@pytest.mark.parametrize(
    ("kind", "changes", "sole"),
    [
        ("plain", [(Op.INSERT, None, "a")], "a"),
        ("plain", [(Op.UPDATE, "a", "a"), (Op.DELETE, "a", None)], "a"),
        ("plain", [(Op.INSERT, None, 7)], "7"),
        ("plain", [(Op.INSERT, None, "None")], "None"),
        ("plain", [(Op.UPDATE, "a", "b")], None),
        ("plain", [(Op.DELETE, "a", None), (Op.INSERT, None, "b")], None),
        ("plain", [(Op.INSERT, None, "a"), (Op.TRUNCATE, None, None)], None),
        ("masked", [(Op.INSERT, None, "***")], None),
        ("hidden", [(Op.INSERT, None, "a")], None),
        (None, [(Op.INSERT, None, "a")], None),
    ],
)
def test_the_tenant_that_may_learn_an_actor(kind: str | None, changes: list[Any], sole: str | None) -> None:
    columns = (Column("id", "integer", "plain"), *([Column("t", "text", kind)] if kind else []))
    images = [
        change(op, *(None if value is None else {"id": 1, "t": value} for value in values)) for op, *values in changes
    ]
    assert sole_tenants(images, [columns] * len(images), "t") == ({} if sole is None else {"5": sole})
