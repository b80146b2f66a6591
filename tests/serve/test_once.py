"""Mutations with an idempotency key: each runs once, whoever sends it again, when and however often."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
import websockets

from forge.app import Forge
from forge.changelog.maintenance import run_once
from forge.errors import ForgeError
from forge.postgres.connection import Connection, connect
from forge.react.registry import Auth
from forge.serve.node import Options
from forge.serve.once import IdempotentCall
from tests.serve.serving import SOON, Served, serving
from tests.serve.test_http import SECURED, bearing

KEY = {"idempotency-key": "5f0e6b62-f3b1-4e5a-8f0c-9f0d8b1f6f11"}


class Refused(ForgeError):
    """The application does not want it."""


@pytest.fixture
def accounts(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
    connection.execute("SELECT public.forge_enable_reactivity('account')")
    connection.execute("INSERT INTO account VALUES (1, 0), (2, 0)")
    return connection


def balance(connection: Connection, id: int = 1) -> int:
    row = connection.execute("SELECT balance FROM account WHERE id = %s", (id,)).fetchone()
    assert row is not None
    return int(row[0])


def application(database: str, **options: Any) -> Forge:
    app = Forge(database, options=Options(**options))

    @app.mutation
    async def add(ctx: Any, id: int, amount: int = 1) -> Any:
        """Long enough that calls of the same time overlap."""
        await ctx.db.fetch("SELECT pg_sleep(0.02)")
        return await ctx.db.fetch(
            "UPDATE account SET balance = balance + %(amount)s WHERE id = %(id)s RETURNING id, balance"
        )

    @app.mutation
    async def subtract(ctx: Any, id: int) -> Any:
        return await ctx.db.execute("UPDATE account SET balance = balance - 1 WHERE id = %(id)s")

    @app.mutation
    async def look(ctx: Any) -> Any:
        return await ctx.db.fetch_value("SELECT sum(balance) FROM account")

    @app.mutation
    async def fussy(ctx: Any) -> Any:
        before = await ctx.db.fetch_value("SELECT balance FROM account WHERE id = 1")
        await ctx.db.execute("UPDATE account SET balance = 100 WHERE id = 1")
        if not before:
            raise Refused("the account is empty", fix="pay in")

    return app


@pytest.mark.contract("R14")
async def test_a_key_runs_once_and_is_answered_again(database: str, accounts: Connection) -> None:
    async with serving(application(database)) as served:
        first = await served.post("/forge/mutation/add", {"id": 1}, headers=KEY)
        again = await served.post("/forge/mutation/add", {"amount": 1, "id": 1}, headers=KEY)
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.json() == first.json()
        assert first.json()["result"] == [{"id": 1, "balance": 1}]
        assert ("forge-repeated" in first.headers, again.headers.get("forge-repeated")) == (False, "true")
        assert balance(accounts) == 1
        await served.post("/forge/mutation/add", {"id": 1})
        assert balance(accounts) == 2


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
async def test_of_calls_at_the_same_time_one_runs(database: str, accounts: Connection, isolation: str) -> None:
    name = accounts.info.dbname
    accounts.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'".encode())
    async with serving(application(database)) as served, serving(application(database)) as other:
        answers = await asyncio.gather(
            *(node.post("/forge/mutation/add", {"id": 1}, headers=KEY) for node in [served, other] * 4)
        )
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert sum("forge-repeated" not in answer.headers for answer in answers) == 1
        assert balance(accounts) == 1


async def test_a_key_is_of_one_call_only(database: str, accounts: Connection) -> None:
    async with serving(application(database)) as served:
        await served.post("/forge/mutation/add", {"id": 1}, headers=KEY)
        for name, arguments in (("add", {"id": 2}), ("add", {"id": 1, "amount": 5}), ("subtract", {"id": 1})):
            answer = await served.post(f"/forge/mutation/{name}", arguments, headers=KEY)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "key_reused")
        assert (balance(accounts), balance(accounts, 2)) == (1, 0)


async def test_what_failed_runs_again(database: str, accounts: Connection) -> None:
    async with serving(application(database)) as served:
        refused = await served.post("/forge/mutation/fussy", {}, headers=KEY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "refused")
        accounts.execute("UPDATE account SET balance = 5 WHERE id = 1")
        done = await served.post("/forge/mutation/fussy", {}, headers=KEY)
        assert (done.status_code, "forge-repeated" in done.headers) == (200, False)
        assert balance(accounts) == 100


async def test_when_the_first_of_two_fails_the_other_runs(database: str, accounts: Connection) -> None:
    first, second = application(database), application(database)
    entered, fail = asyncio.Event(), asyncio.Event()
    runs: list[str] = []

    @first.mutation(name="pay_in")
    async def fails(ctx: Any) -> Any:
        runs.append("first")
        await ctx.db.execute("UPDATE account SET balance = 100 WHERE id = 1")
        entered.set()
        await fail.wait()
        raise Refused("not today", fix="come back")

    @second.mutation(name="pay_in")
    async def succeeds(ctx: Any) -> Any:
        runs.append("second")
        return await ctx.db.fetch_value("UPDATE account SET balance = balance + 1 WHERE id = 1 RETURNING balance")

    async with serving(first) as served, serving(second) as other:
        failing = asyncio.create_task(served.post("/forge/mutation/pay_in", {}, headers=KEY))
        await entered.wait()
        waiting = [asyncio.create_task(other.post("/forge/mutation/pay_in", {}, headers=KEY)) for _ in range(2)]
        async with asyncio.timeout(SOON):
            while (other.node.turns.running, other.node.turns.waiting) != (1, 1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert runs == ["first"]
        fail.set()
        assert (await failing).json()["error"]["code"] == "refused"
        answers = await asyncio.gather(*waiting)
    assert [(each.status_code, each.json()["result"]) for each in answers] == [(200, 1)] * 2
    assert sorted("forge-repeated" in each.headers for each in answers) == [False, True]
    assert (runs, balance(accounts)) == (["first", "second"], 1)


async def test_a_call_that_is_done_is_answered_whoever_holds_its_lock(database: str, accounts: Connection) -> None:
    """Any role may: the number is in pg_locks while the call runs."""
    async with serving(application(database)) as served:
        first = await served.post("/forge/mutation/add", {"id": 1}, headers=KEY)
        lock = IdempotentCall(KEY["idempotency-key"], "add", {"id": 1}, Auth()).lock
        with connect(database) as stranger:
            stranger.execute("SELECT pg_advisory_lock(%s)", (lock,))
            again = await asyncio.wait_for(served.post("/forge/mutation/add", {"id": 1}, headers=KEY), SOON)
        assert again.json() == first.json()
        assert "forge-repeated" in again.headers


async def test_the_key_is_no_write_of_the_mutation(database: str, accounts: Connection) -> None:
    """The number of a transaction that wrote nothing is null, save where the WAL is logical and has its context."""
    async with serving(application(database)) as served:
        plain = (await served.post("/forge/mutation/look", {})).json()
        first = await served.post("/forge/mutation/look", {}, headers=KEY)
        accounts.execute("UPDATE account SET balance = 7")
        again = await served.post("/forge/mutation/look", {}, headers=KEY)
        assert first.json() == again.json()
        assert (first.json()["result"], first.json()["xid"] is None) == (0, plain["xid"] is None)


async def test_what_is_no_key(database: str, accounts: Connection) -> None:
    async with serving(application(database)) as served:
        for key in ("", "two words", "k" * 201, "é"):
            headers = {b"idempotency-key": key.encode()}
            answer = await served.client.post("/forge/mutation/add", json={"id": 1}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_arguments")
        assert balance(accounts) == 0


@pytest.mark.contract("W10")
async def test_another_user_or_tenant_has_keys_of_its_own(database: str, accounts: Connection) -> None:
    async with serving(application(database, **SECURED)) as served:
        for count, who in enumerate([("ada", "a"), ("bob", "a"), ("ada", "b")], 1):
            answer = await served.post("/forge/mutation/add", {"id": 1}, headers={**bearing(*who), **KEY})
            assert (answer.status_code, "forge-repeated" in answer.headers) == (200, False)
            assert balance(accounts) == count
        newer = bearing("ada", "a", jti="another")
        answer = await served.post("/forge/mutation/add", {"id": 1}, headers={**newer, **KEY})
        assert (answer.json()["result"][0]["balance"], answer.headers["forge-repeated"]) == (1, "true")


async def test_a_role_that_may_not_see_the_keys(database: str, accounts: Connection, request: Any) -> None:
    role = f"clerk_{accounts.info.dbname}"
    accounts.execute(f'CREATE ROLE "{role}"; GRANT SELECT, UPDATE ON account TO "{role}"'.encode())
    request.addfinalizer(lambda: accounts.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'.encode()))
    auth = msgspec.structs.replace(SECURED["auth"], roles=(role,))
    async with serving(application(database, auth=auth)) as served:
        headers = {**bearing("ada", role=role), **KEY}
        answers = [await served.post("/forge/mutation/add", {"id": 1}, headers=headers) for _ in range(2)]
        assert [answer.json().get("result") for answer in answers] == [[{"id": 1, "balance": 1}]] * 2
        assert balance(accounts) == 1


async def test_over_a_websocket(database: str, accounts: Connection) -> None:
    async with serving(application(database)) as served, socket(served) as client:
        asked = {"type": "mutate", "mutation": "add", "args": {"id": 1}, "key": KEY["idempotency-key"]}
        first = await called(client, {**asked, "id": "1"})
        again = await called(client, {**asked, "id": "2"})
        assert again == {**first, "id": "2", "repeated": True}
        posted = await served.post("/forge/mutation/add", {"id": 1}, headers=KEY)
        assert posted.json() == {"xid": first["xid"], "result": first["result"]}
        reused = await called(client, {**asked, "id": "3", "args": {"id": 2}})
        assert (reused["event"], reused["code"]) == ("error", "key_reused")
        assert balance(accounts) == 1


def socket(served: Served) -> Any:
    return websockets.connect(served.url.replace("http", "ws") + "/forge/ws")


async def called(client: Any, message: dict[str, Any]) -> dict[str, Any]:
    await client.send(json.dumps(message))
    async with asyncio.timeout(30):
        while (found := json.loads(await client.recv())).get("id") != message["id"]:
            pass
    return dict(found)


def test_keys_are_kept_for_a_week(database: str, accounts: Connection) -> None:
    for key, age in (("old", "7 days 1 minute"), ("young", "6 days")):
        accounts.execute(
            "INSERT INTO forge.mutation_key VALUES ('[null,null]', %s, '', '1', NULL, now() - %s::interval)", (key, age)
        )
    assert run_once(database).problems == []
    assert accounts.execute("SELECT key FROM forge.mutation_key").fetchall() == [("young",)]
