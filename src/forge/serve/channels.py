"""Channels: messages and presence between clients, of all nodes, kept nowhere.

A session that has joined a channel gets what is published there and who joins and leaves, itself included, in the same
order on every node. Members have an id made for that purpose: the id of a session is its owner's alone.

What always holds:

- A channel's name belongs to the tenant of the session that says it: tenants never meet.
- Only members publish and receive.
- Each node says who its own members are, and forgets those of a node that it has not heard for `silent` seconds. Who
  starts, or notices that messages were missed, asks; the answer is whole and replaces what was known.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from forge.errors import ForgeError
from forge.react.registry import BadArguments, nested_too_deep
from forge.serve.bus import Exchange
from forge.serve.limits import TooMany
from forge.serve.messages import Frame, fields
from forge.serve.session import Session
from forge.tasks import spawn
from forge.values import too_deep

LONGEST_NAME: Final = 128
MOST_BYTES: Final = 64 * 1024
MOST_CHANNELS: Final = 100
"""Of one session."""
_FAREWELL: Final = 2.0
_log = logging.getLogger(__name__)


class Member(msgspec.Struct, frozen=True):
    """A session in a channel; `channel` is scoped by its tenant."""

    channel: tuple[str | None, str]
    id: str
    user: str | None = None

    def shown(self) -> dict[str, str | None]:
        return {"id": self.id, "user": self.user}


class Moved(msgspec.Struct, frozen=True):
    """Members of a node joined or left."""

    node: str
    members: list[Member]


class Message(msgspec.Struct, frozen=True):
    """What a member said."""

    member: Member
    data: Any = None


class Question(msgspec.Struct, frozen=True):
    """A node wants to know the members of another one, or of all."""

    node: str
    of: str | None = None


class Channels:
    """The channels as this node knows them, and the sessions of its own that have joined."""

    def __init__(
        self, bus: Exchange, *, beat: float = 10.0, silent: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bus = bus
        self._beat = beat
        self._silent = silent
        self._clock = clock
        self._local: dict[tuple[str | None, str], dict[Session, Member]] = {}
        self._joined: dict[Session, dict[str, Member]] = {}
        self._nodes: dict[str, dict[Member, None]] = {}
        self._heard: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        bus.on("channels.join", self._on_join)
        bus.on("channels.leave", self._on_leave)
        bus.on("channels.message", self._on_message)
        bus.on("channels.ask", self._on_ask)
        bus.on("channels.state", self._on_state)
        bus.on("channels.beat", self._on_beat)
        bus.on("channels.bye", self._on_bye)
        bus.on_gap.append(lambda node: self._spawn(self._tell("channels.ask", Question(bus.id, node))))
        bus.while_up(self._look_after)

    # What sessions do

    async def join(self, session: Session, channel: str) -> dict[str, str | None]:
        """Become a member, as which it returns; one already stays the same."""
        _named(channel)
        mine = self._joined.setdefault(session, {})
        if channel in mine:
            return mine[channel].shown()
        if len(mine) >= MOST_CHANNELS:
            raise TooMany(f"a session may join {MOST_CHANNELS} channels", fix="leave one first", retry_after_secs=5)
        auth = session.identity.auth
        known = next(iter(mine.values()), None)
        member = Member((auth.tenant, channel), known.id if known else secrets.token_hex(8), auth.user)
        mine[channel] = member
        self._local.setdefault(member.channel, {})[session] = member
        session.channels.add(channel)
        try:
            await self._bus.publish("channels.join", Moved(self._bus.id, [member]))
        except BaseException:
            self._forget(session, channel)
            self._spawn(self._tell("channels.leave", Moved(self._bus.id, [member])))  # it may have been sent
            raise
        if session.closed is not None:
            self.gone(session)
        return member.shown()

    async def leave(self, session: Session, channel: str) -> None:
        """Be a member no more; who is none stays none."""
        member = self._forget(session, channel)
        if member is not None:
            await self._bus.publish("channels.leave", Moved(self._bus.id, [member]))

    async def publish(self, session: Session, channel: str, data: Any) -> None:
        """Say something to all members."""
        member = self._member(session, channel)
        if member is None:
            raise BadArguments("only members publish", fix="join the channel first")
        if isinstance(data, (dict, list)) and too_deep({"data": data}):
            raise nested_too_deep("a message")
        if len(msgspec.json.encode(data)) > MOST_BYTES:
            raise BadArguments(f"a message may have {MOST_BYTES} bytes", fix="send less, or store it and send its key")
        await self._bus.publish("channels.message", Message(member, data))

    def members(self, session: Session, channel: str) -> list[dict[str, str | None]]:
        """Who is in a channel, if the session itself is."""
        own = self._member(session, channel)
        if own is None:
            return []
        others = (member for known in self._nodes.values() for member in known if member.channel == own.channel)
        found = {member.id: member.shown() for member in (*self._local[own.channel].values(), *others)}
        return [found[id] for id in sorted(found)]

    def gone(self, session: Session) -> None:
        """The session is closed: it leaves all its channels."""
        left = [self._forget(session, channel) for channel in list(self._joined.get(session, ()))]
        members = [member for member in left if member is not None]
        self._joined.pop(session, None)
        if members:
            self._spawn(self._tell("channels.leave", Moved(self._bus.id, members)))

    def _member(self, session: Session, channel: str) -> Member | None:
        """As whom it is there; None also when its token has become another tenant's."""
        member = self._joined.get(session, {}).get(channel)
        return member if member is not None and member.channel[0] == session.identity.auth.tenant else None

    def _forget(self, session: Session, channel: str) -> Member | None:
        mine = self._joined.get(session, {})
        member = mine.pop(channel, None)
        if not mine:
            self._joined.pop(session, None)
        session.channels.discard(channel)
        if member is not None:
            there = self._local[member.channel]
            del there[session]
            if not there:
                del self._local[member.channel]
        return member

    # What nodes say

    def _on_join(self, payload: Any) -> None:
        moved = msgspec.convert(payload, Moved)
        known = self._known(moved.node)
        for member in moved.members:
            if known is not None:
                if member in known:
                    continue
                known[member] = None
            self._announce("join", member)

    def _on_leave(self, payload: Any) -> None:
        moved = msgspec.convert(payload, Moved)
        known = self._known(moved.node)
        for member in moved.members:
            if known is None or known.pop(member, 0) is None:
                self._announce("leave", member)

    def _on_message(self, payload: Any) -> None:
        message = msgspec.convert(payload, Message)
        self._deliver("message", message.member, message.data)

    def _on_ask(self, payload: Any) -> None:
        question = msgspec.convert(payload, Question)
        if question.node != self._bus.id and question.of in (None, self._bus.id):
            self._spawn(self._tell("channels.state", self._state()))

    def _on_state(self, payload: Any) -> None:
        state = msgspec.convert(payload, Moved)
        known = self._known(state.node)
        if known is None:
            return
        now = dict.fromkeys(state.members)
        self._nodes[state.node] = now
        for member in known.keys() - now.keys():
            self._announce("leave", member)
        for member in now.keys() - known.keys():
            self._announce("join", member)

    def _on_beat(self, payload: Any) -> None:
        node = msgspec.convert(payload, str)
        if node != self._bus.id and node not in self._nodes:
            self._spawn(self._tell("channels.ask", Question(self._bus.id, node)))
        self._known(node)

    def _on_bye(self, payload: Any) -> None:
        self._lose(msgspec.convert(payload, str))

    def _known(self, node: str) -> dict[Member, None] | None:
        """The members of another node, from which something was heard just now; None for this one."""
        if node == self._bus.id:
            return None
        self._heard[node] = self._clock()
        return self._nodes.setdefault(node, {})

    def _lose(self, node: str) -> None:
        self._heard.pop(node, None)
        for member in self._nodes.pop(node, {}):
            self._announce("leave", member)

    def _state(self) -> Moved:
        return Moved(self._bus.id, [member for mine in self._joined.values() for member in mine.values()])

    def _announce(self, kind: str, member: Member) -> None:
        self._deliver(kind, member, None)

    def _deliver(self, kind: str, member: Member, data: Any) -> None:
        there = self._local.get(member.channel)
        if there:
            said = {"channel": member.channel[1], "kind": kind, "from": member.shown(), "data": data}
            frame = Frame("channel", fields(**said))
            for session in there:
                if session.identity.auth.tenant == member.channel[0]:
                    session.send(frame)

    # Time

    async def _look_after(self) -> None:
        """Ask who is there, then say now and then that this node is, and forget those that do not."""
        try:
            await self._tell("channels.ask", Question(self._bus.id))
            while True:
                await self._tell("channels.beat", self._bus.id)
                await asyncio.sleep(self._beat)
                self.forget_silent()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await asyncio.gather(*self._tasks)
                    await self._tell("channels.bye", self._bus.id)

    def forget_silent(self) -> None:
        """Forget the nodes that have not been heard for too long."""
        now = self._clock()
        for node, heard in list(self._heard.items()):
            if now - heard >= self._silent:
                _log.warning("a node has been silent for %.0f s, its members are gone", now - heard)
                self._lose(node)

    async def _tell(self, kind: str, payload: Any) -> None:
        try:
            await self._bus.publish(kind, payload)
        except ForgeError as error:
            _log.warning("the other nodes cannot be told: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        spawn(work, self._tasks, _log)


def _named(channel: str) -> None:
    if not 0 < len(channel) <= LONGEST_NAME or "\0" in channel:
        raise BadArguments(f"a channel's name has 1 to {LONGEST_NAME} characters", fix="use another name")
