"""Endpoints in the database: nodes send to them as they come, change and go; nothing is lost on the way."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from rich.console import Console

from forge import wire
from forge.app import Forge
from forge.deliver.consumers import Consumers
from forge.deliver.consumers.control import Control, DeadLetter
from forge.deliver.consumers.node import ConsumerNode
from forge.deliver.webhooks import Endpoint, Endpoints, Webhook, new_secret, verify
from forge.deliver.webhooks.endpoints import Configured
from forge.errors import ConsumerInvalid, SignatureInvalid, WebhookInvalid, WebhookUnknown
from forge.postgres.connection import Connection
from forge.testing.proxy import FaultProxy
from tests.deliver.consumers.working import QUICK, table, until
from tests.deliver.webhooks.endpoint import ALLOW, SECRET, Receiver, Request, receiving

BUSY = """
import asyncio, sys
from forge.app import Forge
asyncio.run(Forge(sys.argv[1]).consume())
"""


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@asynccontextmanager
async def node(url: str) -> AsyncIterator[ConsumerNode]:
    found = ConsumerNode(url, [], QUICK, configured=Configured())
    try:
        async with found.running():
            yield found
    finally:
        await found.close()


async def added(url: str, receiver: Receiver, name: str = "crm", **options: Any) -> Endpoints:
    endpoints = Endpoints(url)
    await endpoints.add(name, receiver.url, **{"secret": SECRET, "allow": ALLOW, "tables": ["item"], **options})
    return endpoints


def write(connection: Connection, *ids: int) -> None:
    for id in ids:
        connection.execute("INSERT INTO item VALUES (%s, 'x')", (id,))


def ids(receiver: Receiver) -> list[int]:
    return [wire.decode(request.body).key["id"] for request in receiver.taken]  # type: ignore[index]


@pytest.mark.contract("W13")
async def test_they_come_and_go_while_a_node_runs(database: str, connection: Connection, receiver: Receiver) -> None:
    table(connection)
    write(connection, 1)
    async with node(database):
        endpoints = await added(database, receiver)
        write(connection, 2)
        await until(lambda: ids(receiver) == [2])
        await endpoints.disable("crm")
        await _until_state(database, "paused")
        write(connection, 3)
        await endpoints.enable("crm")
        await until(lambda: ids(receiver) == [2, 3])
        await endpoints.remove("crm")
        write(connection, 4)
        with pytest.raises(WebhookUnknown, match="no webhook 'crm'"):
            await endpoints.disable("crm")
        assert await endpoints.all() == []
    assert ids(receiver) == [2, 3]
    assert connection.execute("SELECT count(*) FROM forge.consumer").fetchone() == (0,)


async def _letters(url: str, count: int) -> list[DeadLetter]:
    """What is parked, when it is so many."""
    async with asyncio.timeout(20):
        while True:
            letters = await Control(url).letters("webhook:crm")
            if len(letters) >= count:
                return letters
            await asyncio.sleep(0.02)


async def _until_state(url: str, state: str) -> None:
    async with asyncio.timeout(20):
        while True:
            (status,) = await Control(url).statuses("webhook:crm")
            if status.state == state and not status.working:
                return
            await asyncio.sleep(0.01)


async def test_a_new_secret_signs_at_once_and_the_one_before_it_too(
    database: str, connection: Connection, receiver: Receiver
) -> None:
    table(connection)
    endpoints = await added(database, receiver)
    made = await endpoints.rotate("crm", keep=3600)
    async with node(database):
        write(connection, 1)
        await until(lambda: receiver.taken)
        request = receiver.taken[0]
        assert verify(request.body, request.headers, made) == verify(request.body, request.headers, SECRET)
        with pytest.raises(WebhookInvalid, match="signs with this secret already"):
            await endpoints.rotate("crm", secret=SECRET)
        third = await endpoints.rotate("crm", keep=3600)
        assert len((await endpoints.all())[0].secrets) == 3  # who lost the second still has the first
        again = new_secret()
        receiver.secrets.append(again)
        assert await endpoints.rotate("crm", secret=again, keep=0) == again != third
        for id in range(2, 500):
            write(connection, id)
            await until(lambda id=id: ids(receiver)[-1] == id)  # type: ignore[misc]
            if len(receiver.taken[-1].headers["webhook-signature"].split()) == 1:
                break
    assert verify(receiver.taken[-1].body, receiver.taken[-1].headers, again)
    with pytest.raises(SignatureInvalid):
        verify(receiver.taken[-1].body, receiver.taken[-1].headers, [SECRET, made, third])


async def test_what_is_sent_can_be_chosen(database: str, connection: Connection, receiver: Receiver) -> None:
    table(connection)
    connection.execute("ALTER TABLE item ADD card text, ADD total numeric")
    template = {"text": "{op} {key.id}: {row.v} {{literal}}", "total": "{row.total}", "who": "{context.user_id}"}
    await added(database, receiver, payload=template, where="total > 5", ops=["insert"])
    async with node(database):
        connection.execute("INSERT INTO item VALUES (1, '{card}', '4111', 9.50), (2, 'b', '4222', 1)")
        connection.execute("UPDATE item SET total = 10")
        connection.execute("INSERT INTO item VALUES (3, 'c', '4333', 7)")
        await until(lambda: len(receiver.taken) == 2)
    assert [msgspec.json.decode(request.body) for request in receiver.taken] == [
        {"text": "insert 1: {card} {literal}", "total": "9.50", "who": None},
        {"text": "insert 3: c {literal}", "total": "7", "who": None},
    ]


async def test_chosen_columns(database: str, connection: Connection, receiver: Receiver) -> None:
    table(connection)
    connection.execute("ALTER TABLE item ADD card text")
    await added(database, receiver, columns=["v"])
    async with node(database):
        connection.execute("INSERT INTO item VALUES (1, 'a', '4111')")
        connection.execute("UPDATE item SET card = '4222'")
        connection.execute("UPDATE item SET v = 'b', card = '4333'")
        await until(lambda: len(receiver.taken) == 2)
    changes = [wire.decode(request.body) for request in receiver.taken]
    assert [(change.key, change.before, change.after) for change in changes] == [
        ({"id": 1}, None, {"id": 1, "v": "a"}),
        ({"id": 1}, {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
    ]


async def test_what_the_endpoint_refuses_is_parked_and_others_go_on(
    database: str, connection: Connection, receiver: Receiver
) -> None:
    table(connection)
    await added(database, receiver)
    receiver.answer = lambda request: 422 if wire.decode(request.body).key == {"id": 2} else 204
    async with node(database):
        write(connection, 1, 2, 3)
        connection.execute("UPDATE item SET v = 'y' WHERE id = 2")
        write(connection, 4)
        await until(lambda: set(ids(receiver)) == {1, 3, 4})
        control = Control(database)
        letters = await _letters(database, 2)
        assert [(letter.key, letter.behind) for letter in letters] == [("2", False), ("2", True)]
        assert "answered 422" in letters[0].error
        receiver.answer = lambda request: 204
        assert (await control.replay_dead("webhook:crm")).sent == 2
        assert [request.headers["forge-op"] for request in receiver.taken if request.headers["forge-key"] == "2"] == [
            "insert",
            "update",
        ]


@pytest.mark.contract("X1")
async def test_nothing_is_lost_when_workers_die_and_the_network_is_cut(
    database: str, connection: Connection, receiver: Receiver
) -> None:
    """Nodes in processes of their own are killed while they send, through a network that fails now and then."""
    table(connection)
    order: dict[int, list[str]] = {}

    def answer(request: Request) -> int | str:
        return "slow" if len(receiver.requests) % 10 == 0 else 500 if len(receiver.requests) % 37 == 0 else 204

    receiver.answer = answer
    with FaultProxy("127.0.0.1", receiver.port) as proxy:
        through = f"http://127.0.0.1:{proxy.port}/hook"
        await Endpoints(database).add("crm", through, secret=SECRET, allow=ALLOW, tables=["item"], timeout=1)
        processes = [await _process(database) for _ in range(2)]
        try:
            for round in range(5):
                for id in range(20):
                    connection.execute(
                        "INSERT INTO item VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                        (id, str(round)),
                    )
                seen = len(receiver.requests)
                await until(lambda seen=seen: len(receiver.requests) > seen)  # type: ignore[misc]
                if round % 3 == 1:
                    proxy.cut()
                victim = processes.pop(0)
                victim.send_signal(signal.SIGKILL)
                await victim.wait()
                processes.append(await _process(database))
            wanted = {(id, str(round)) for id in range(20) for round in range(5)}
            await until(lambda: {_row(request) for request in receiver.taken} == wanted)
        finally:
            for process in processes:
                process.kill()
                await process.wait()
    for request in receiver.taken:
        id, value = _row(request)
        if value not in order.setdefault(id, []):
            order[id].append(value)
    assert order == {id: [str(round) for round in range(5)] for id in range(20)}
    copies: dict[str, set[bytes]] = {}
    for request in receiver.taken:
        copies.setdefault(request.id, set()).add(request.body)
    assert all(len(bodies) == 1 for bodies in copies.values())  # a copy is the same, by the same id
    assert len(copies) == len(wanted)


def _row(request: Request) -> tuple[int, str]:
    after = wire.decode(request.body).after or {}
    return after["id"], after["v"]


async def _process(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", BUSY, url, env={**os.environ, "PYTHONPATH": "src"}
    )


async def test_two_nodes_send_once(database: str, connection: Connection, receiver: Receiver) -> None:
    table(connection)
    await added(database, receiver)
    async with node(database), node(database):
        write(connection, *range(30))
        await until(lambda: len(receiver.taken) >= 30)
        await asyncio.sleep(0.2)
    assert sorted(ids(receiver)) == list(range(30))


@pytest.mark.contract("W13")
async def test_an_application_sends_by_itself(database: str, connection: Connection, receiver: Receiver) -> None:
    table(connection)
    app = Forge(database)
    app.deliver("own", to=Webhook(receiver.url, secret=SECRET, allow=ALLOW), tables=["item"])
    async with app.running():
        write(connection, 1)
        await until(lambda: len(receiver.taken) == 1)


async def test_test(database: str, connection: Connection, receiver: Receiver) -> None:
    endpoints = await added(database, receiver)
    answer = await endpoints.test("crm")
    assert answer.status == 204
    assert receiver.taken[0].headers["forge-topic"] == "forge.test"
    receiver.answer = lambda request: "503 down"
    assert msgspec.structs.astuple(await endpoints.test("crm"))[:2] == (503, "down")
    with pytest.raises(WebhookUnknown, match="no webhook 'crn'") as error:
        await endpoints.test("crn")
    assert error.value.fix == "did you mean crm?"


@pytest.mark.parametrize(
    "options",
    [
        {"url": "https://10.0.0.1/"},
        {"url": "nowhere"},
        {"name": "a b"},
        {"name": "x" * 60},
        {"name": "a:b"},
        {"name": ""},
        {"columns": ["nosuch"], "tables": ["item"]},
        {"payload": {"a": "{context.user_id.x}"}},
        {"tables": "item"},
        {"ops": ["explode"]},
        {"where": "total >"},
        {"payload": ["v"]},
        {"payload": {"a": "{secret}"}},
        {"payload": {"a": "{context.password}"}},
        {"payload": {"a": {1}}},
        {"envelope": "avro"},
        {"envelope": "debezium", "payload": {"a": "{id}"}},
        {"batch": 0},
        {"tries": 0},
        {"secret": "x"},
    ],
    ids=str,
)
async def test_what_cannot_be_is_not_stored(database: str, connection: Connection, options: dict[str, Any]) -> None:
    table(connection)
    given = {"name": "crm", "url": "https://example.com/", **options}
    with pytest.raises(WebhookInvalid) as error:
        await Endpoints(database).add(given.pop("name"), given.pop("url"), **given)
    assert error.value.fix
    assert connection.execute("SELECT count(*) FROM forge.webhook").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM forge.consumer").fetchone() == (0,)


async def test_a_name_is_taken_once(database: str, connection: Connection, receiver: Receiver) -> None:
    await added(database, receiver)
    with pytest.raises(WebhookInvalid, match="already"):
        await added(database, receiver)


async def test_a_row_that_is_wrong_keeps_nobody_from_the_others(
    database: str, connection: Connection, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    table(connection)
    await added(database, receiver)
    connection.execute(
        "INSERT INTO forge.webhook (name, url, secrets) VALUES ('odd', 'nowhere', '[{\"secret\": \"x\"}]'),"
        " ('odder', 'https://example.com/', '[{\"secret\": \"x\"}]')"
    )
    connection.execute("UPDATE forge.webhook SET headers = '[1]' WHERE name = 'odder'")
    async with node(database):
        write(connection, 1)
        await until(lambda: ids(receiver) == [1])
    told = [record.getMessage() for record in caplog.records if "odd" in record.getMessage()]
    assert len(told) == 2


async def test_one_whose_consumer_is_gone_can_be_removed(
    database: str, connection: Connection, receiver: Receiver
) -> None:
    endpoints = await added(database, receiver)
    connection.execute("DELETE FROM forge.consumer")
    await endpoints.remove("crm")
    assert await endpoints.all() == []


async def test_a_try_is_what_was_sent(
    database: str, connection: Connection, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the endpoint is left alone nothing is parked that was not sent as often as it says."""
    monkeypatch.setattr("forge.deliver.webhooks.breaker.FIRST", 0.05)
    monkeypatch.setattr("forge.deliver.webhooks.breaker.LONGEST", 0.1)
    table(connection)
    receiver.answer = lambda request: 500
    await added(database, receiver, tries=2)
    async with node(database):
        write(connection, *range(5))
        letters = await _letters(database, 5)
    asked = [wire.decode(request.body).id for request in receiver.requests]
    assert len({letter.change_id for letter in letters}) == 5
    for letter in letters:
        assert asked.count(letter.change_id) >= letter.tries == 2, letter


async def test_its_name_is_its_own(database: str, connection: Connection, receiver: Receiver) -> None:
    await added(database, receiver)
    with pytest.raises(ConsumerInvalid, match="works on a webhook") as error:
        await Control(database).forget("webhook:crm")
    assert error.value.fix == "forge webhooks remove crm"
    with pytest.raises(ConsumerInvalid, match="webhook's consumer"):
        Forge(database).deliver("webhook:crm", to=Webhook("https://example.com/", secret=SECRET))


def test_secrets_are_not_shown() -> None:
    endpoint = Endpoint("crm", "https://example.com/T0KEN", (SECRET,), headers={"authorization": "Bearer x"})
    console = Console(file=io.StringIO(), width=200)
    console.print(endpoint)
    shown = f"{endpoint!r} {console.file.getvalue()}"  # type: ignore[attr-defined]
    assert not any(word in shown for word in (SECRET, "T0KEN", "Bearer"))
    assert "example.com" in shown


def test_consumers_are_for_sinks() -> None:
    """A template is about rows: what has none is not sent."""
    consumers = Consumers()
    sink = Webhook("https://example.com/", secret=SECRET)
    consumers.deliver("a", to=sink, payload={"id": "{key}"})
    consumers.deliver("b", to=sink)
    assert {op.value for op in consumers.named["a"].wanted.operations} == {"insert", "update", "delete", "truncate"}
    assert not consumers.named["b"].wanted.operations
