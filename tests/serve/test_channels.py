"""Channels: who is there, on all nodes, and what is said, to nobody else. The bus is in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from forge.errors import BadArguments, LimitReached, ServerError
from forge.react.registry import Auth
from forge.serve.auth import TokenIdentity
from forge.serve.bus import Envelope, Exchange, wire_revocations
from forge.serve.channels import LONGEST_NAME, MOST_BYTES, MOST_CHANNELS, Channels
from forge.serve.session import Session


class Wire:
    """What connects buses in memory; a bus that is deaf misses what is sent meanwhile."""

    def __init__(self) -> None:
        self.buses: list[MemoryBus] = []

    def send(self, text: str) -> None:
        for bus in self.buses:
            if not bus.deaf:
                asyncio.get_running_loop().call_soon(bus._take, msgspec.json.decode(text, type=Envelope))


class MemoryBus(Exchange):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.deaf = False
        self.broken = False
        self._wire = wire

    async def start(self) -> None:
        self._wire.buses.append(self)
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        self._wire.buses.remove(self)

    async def publish(self, kind: str, payload: Any = None) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise ServerError("no", fix="wait")
        self._wire.send(msgspec.json.encode(self._next(kind, payload)).decode())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(user: str, tenant: str | None = "acme") -> Session:
    return Session(TokenIdentity(Auth(user, tenant)), "192.0.2.1", lambda: 0.0)


def got(session: Session) -> list[tuple[str, str, str, Any]]:
    """What the session was sent: (channel, kind, user, data)."""
    found = [json.loads(b"{" + frame.body) for frame in session.frames() if frame.event == "channel"]
    return [(each["channel"], each["kind"], each["from"]["user"], each["data"]) for each in found]


def users(channels: Channels, session: Session, channel: str = "room") -> list[str]:
    return sorted(str(member["user"]) for member in channels.members(session, channel))


async def settle() -> None:
    """Let everything that is under way arrive; nothing here waits for anything but the loop."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def nodes(
    number: int, clock: Callable[[], float] | None = None, beat: float = 3600.0
) -> AsyncIterator[list[tuple[MemoryBus, Channels]]]:
    wire = Wire()
    found = []
    for _ in range(number):
        bus = MemoryBus(wire)
        found.append((bus, Channels(bus, beat=beat, silent=30.0, clock=clock or Clock())))
    for bus, _ in found:
        await bus.start()
    await settle()
    try:
        yield found
    finally:
        for bus, _ in found:
            if bus in wire.buses:
                await bus.stop()


@pytest.mark.contract("R17")
async def test_members_of_all_nodes_hear_each_other() -> None:
    async with nodes(2) as [(_, here), (_, there)]:
        ada, bob = client("ada"), client("bob")
        await here.join(ada, "room")
        await settle()
        await there.join(bob, "room")
        await settle()
        assert users(here, ada) == users(there, bob) == ["ada", "bob"]
        await there.publish(bob, "room", {"text": "hello"})
        await here.publish(ada, "room", None)
        await settle()
        common = [
            ("room", "join", "bob", None),
            ("room", "message", "bob", {"text": "hello"}),
            ("room", "message", "ada", None),
        ]
        assert got(ada) == [("room", "join", "ada", None), *common]
        assert got(bob) == common
        await there.leave(bob, "room")
        await settle()
        assert got(ada) == [("room", "leave", "bob", None)]
        assert got(bob) == []
        assert users(here, ada) == ["ada"]


@pytest.mark.contract("R17")
async def test_only_members_publish_and_receive() -> None:
    async with nodes(1) as [(_, channels)]:
        ada, bob = client("ada"), client("bob")
        await channels.join(ada, "room")
        await channels.join(bob, "other")
        with pytest.raises(BadArguments):
            await channels.publish(bob, "room", "let me in")
        assert channels.members(bob, "room") == []
        await channels.publish(ada, "room", "secret")
        await settle()
        assert [kind for _, kind, _, _ in got(bob)] == ["join"]
        await channels.leave(ada, "room")
        with pytest.raises(BadArguments):
            await channels.publish(ada, "room", "after leaving")


@pytest.mark.contract("R17")
async def test_tenants_never_meet_in_a_channel_of_the_same_name() -> None:
    async with nodes(2) as [(_, here), (_, there)]:
        ada, eve, nobody = client("ada", "acme"), client("eve", "evil"), client("nobody", None)
        await here.join(ada, "room")
        await here.join(eve, "room")
        await there.join(nobody, "room")
        await here.publish(ada, "room", "secret")
        await settle()
        assert users(here, eve) == ["eve"]
        assert users(there, nobody) == ["nobody"]
        assert got(eve) == [("room", "join", "eve", None)]
        assert got(nobody) == [("room", "join", "nobody", None)]


async def test_a_session_whose_token_became_another_tenants_is_in_no_channel_of_the_first() -> None:
    async with nodes(1) as [(_, channels)]:
        ada, eve = client("ada"), client("eve")
        await channels.join(ada, "room")
        await channels.join(eve, "room")
        await settle()
        got(eve)
        eve.identity = TokenIdentity(Auth("eve", "evil"))
        await channels.publish(ada, "room", "secret")
        await settle()
        assert got(eve) == []
        assert channels.members(eve, "room") == []
        with pytest.raises(BadArguments):
            await channels.publish(eve, "room", "I am still here")


async def test_a_closed_session_leaves_everything() -> None:
    async with nodes(2) as [(_, here), (_, there)]:
        ada, bob = client("ada"), client("bob")
        await here.join(ada, "one")
        await here.join(ada, "two")
        await there.join(bob, "one")
        await there.join(bob, "two")
        await settle()
        got(bob)
        ada.close("gone")
        here.gone(ada)
        here.gone(ada)
        await settle()
        assert sorted(got(bob)) == [("one", "leave", "ada", None), ("two", "leave", "ada", None)]
        assert users(there, bob, "one") == ["bob"]


async def test_a_session_that_closes_while_it_joins_is_no_member() -> None:
    async with nodes(1) as [(_, channels)]:
        ada, bob = client("ada"), client("bob")
        await channels.join(bob, "room")
        joining = asyncio.ensure_future(channels.join(ada, "room"))
        await asyncio.sleep(0)
        ada.close("gone")
        channels.gone(ada)
        await joining
        await settle()
        assert users(channels, bob) == ["bob"]


async def test_who_cannot_be_announced_has_not_joined() -> None:
    async with nodes(1) as [(bus, channels)]:
        ada = client("ada")
        bus.broken = True
        with pytest.raises(ServerError):
            await channels.join(ada, "room")
        bus.broken = False
        assert channels.members(ada, "room") == []
        assert ada.channels == set()


@pytest.mark.contract("R15")
async def test_a_newcomer_learns_who_is_there_and_a_leaving_node_takes_its_members_along() -> None:
    async with nodes(1) as [(bus, here)]:
        ada = client("ada")
        await here.join(ada, "room")
        new = MemoryBus(bus._wire)
        there = Channels(new, beat=3600.0)
        await new.start()
        await settle()
        bob = client("bob")
        await there.join(bob, "room")
        assert users(there, bob) == ["ada", "bob"]
        await settle()
        got(ada)
        await new.stop()
        await settle()
        assert got(ada) == [("room", "leave", "bob", None)]


@pytest.mark.contract("R15")
async def test_a_silent_node_is_forgotten_and_known_again_when_it_speaks() -> None:
    clock = Clock()
    async with nodes(2, clock) as [(_, here), (other, there)]:
        ada, bob = client("ada"), client("bob")
        await here.join(ada, "room")
        await there.join(bob, "room")
        await settle()
        clock.now = 29.0
        here.forget_silent()
        assert users(here, ada) == ["ada", "bob"]
        clock.now = 31.0
        got(ada)
        here.forget_silent()
        assert users(here, ada) == ["ada"]
        assert got(ada) == [("room", "leave", "bob", None)]
        await other.publish("channels.beat", other.id)
        await settle()
        assert users(here, ada) == ["ada", "bob"]
        assert got(ada) == [("room", "join", "bob", None)]


async def test_nodes_that_beat_are_not_forgotten() -> None:
    loop = asyncio.get_running_loop()
    wire = Wire()
    buses = [MemoryBus(wire), MemoryBus(wire)]
    here, there = (Channels(bus, beat=0.01, silent=0.5) for bus in buses)
    for bus in buses:
        await bus.start()
    ada, bob = client("ada"), client("bob")
    await here.join(ada, "room")
    await there.join(bob, "room")
    until = loop.time() + 0.8
    while loop.time() < until:
        await asyncio.sleep(0.01)
        if loop.time() > until - 0.7:
            assert users(here, ada) == ["ada", "bob"]
    for bus in buses:
        await bus.stop()


@pytest.mark.contract("R15")
async def test_what_a_deaf_node_missed_it_learns_when_it_hears_again() -> None:
    async with nodes(2) as [(bus, here), (other, there)]:
        ada, bob, cid = client("ada"), client("bob"), client("cid")
        await here.join(ada, "room")
        await there.join(bob, "room")
        await settle()
        bus.deaf = True
        await there.leave(bob, "room")
        await there.join(cid, "room")
        await settle()
        assert users(here, ada) == ["ada", "bob"]
        bus.deaf = False
        await other.publish("beat")
        await settle()
        assert users(here, ada) == ["ada", "cid"]


async def test_limits() -> None:
    async with nodes(1) as [(_, channels)]:
        ada = client("ada")
        for wrong in ("", "x" * (LONGEST_NAME + 1), "a\0b"):
            with pytest.raises(BadArguments):
                await channels.join(ada, wrong)
        await channels.join(ada, "x" * LONGEST_NAME)
        with pytest.raises(BadArguments):
            await channels.publish(ada, "x" * LONGEST_NAME, "x" * MOST_BYTES)
        for number in range(MOST_CHANNELS - 1):
            await channels.join(ada, str(number))
        with pytest.raises(LimitReached):
            await channels.join(ada, "one more")


async def test_a_members_id_is_not_its_sessions() -> None:
    async with nodes(1) as [(_, channels)]:
        ada = client("ada")
        me = await channels.join(ada, "room")
        assert await channels.join(ada, "room") == me
        assert channels.members(ada, "room") == [me]
        assert me["id"] != ada.id


async def test_malformed_messages_between_nodes_harm_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with nodes(1) as [(bus, channels)]:
        ada = client("ada")
        await channels.join(ada, "room")
        wrong: list[Any] = [None, 7, "x", [], {"node": 1}, {"node": "x", "members": [1]}]
        for kind in ("join", "leave", "message", "ask", "state", "beat", "bye"):
            for payload in wrong:
                await bus.publish(f"channels.{kind}", payload)
        await settle()
        assert users(channels, ada) == ["ada"]
        assert "malformed" in caplog.text


class Revoked:
    def __init__(self) -> None:
        self.seen: list[tuple[str | None, str | None, str | None, float]] = []

    def revoke(
        self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None, at: float
    ) -> None:
        self.seen.append((user, tenant, token_id, at))


@pytest.mark.contract("X4")
async def test_a_revocation_reaches_every_node_and_those_that_start_later_or_missed_it() -> None:
    wire = Wire()
    first, second, third = MemoryBus(wire), MemoryBus(wire), MemoryBus(wire)
    one, two, three = Revoked(), Revoked(), Revoked()
    for node, bus in ((one, first), (two, second), (three, third)):
        wire_revocations(node, bus)
    await first.start()
    await second.start()
    await first.publish("revoke", {"user": "ada", "tenant": None, "token_id": None, "at": 5.0})
    await settle()
    assert one.seen == two.seen == [("ada", None, None, 5.0)]
    second.deaf = True
    await first.publish("revoke", {"tenant": "acme", "at": 6.0})
    second.deaf = False
    await first.publish("beat")
    await third.start()
    await settle()
    assert one.seen == two.seen == three.seen == [("ada", None, None, 5.0), (None, "acme", None, 6.0)]
    for bus in (first, second, third):
        await bus.stop()
