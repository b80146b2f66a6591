"""Channels: messages and presence between clients of all nodes, without storage.

A session that has joined a channel receives its messages, joins and leaves, including its own, in the same order on
every node. Members have a separate public id: only the owner knows the id of a session.

Invariants:

- A channel's name belongs to the tenant of the session that uses it: tenants never share a channel.
- Only members publish and receive.
- Each node announces its own members, and drops the members of a node that was silent for `silent` seconds. A node
  that starts, or misses messages, asks for the members; the answer is complete and replaces the known members.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from forge.errors import BadArguments, ForgeError, LimitReached
from forge.react.registry import nested_too_deep
from forge.serve.bus import Exchange
from forge.serve.messages import Frame, fields
from forge.serve.session import Session
from forge.tasks import spawn
from forge.values import too_deep

LONGEST_NAME: Final = 128
MOST_BYTES: Final = 64 * 1024
MOST_CHANNELS: Final = 100
"""Per session."""
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
    """Members of a node that joined or left."""

    node: str
    members: list[Member]


class ChannelMessage(msgspec.Struct, frozen=True):
    """A message that a member published."""

    member: Member
    data: Any = None


class MembersRequest(msgspec.Struct, frozen=True):
    """A request for the members of one node, or of all nodes."""

    node: str
    of: str | None = None


class Channels:
    """The channels as this node knows them, and its own sessions that have joined."""

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
        bus.on_gap.append(lambda node: self._spawn(self._tell("channels.ask", MembersRequest(bus.id, node))))
        bus.while_up(self._look_after)

    # Actions of sessions

    async def join(self, session: Session, channel: str) -> dict[str, str | None]:
        """Join a channel; return the member. A session that has already joined keeps its member."""
        _named(channel)
        mine = self._joined.setdefault(session, {})
        if channel in mine:
            return mine[channel].shown()
        if len(mine) >= MOST_CHANNELS:
            raise LimitReached(
                f"a session may join {MOST_CHANNELS} channels", fix="leave one first", retry_after_secs=5
            )
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
            self._spawn(self._tell("channels.leave", Moved(self._bus.id, [member])))  # the join may have been sent
            raise
        if session.closed is not None:
            self.gone(session)
        return member.shown()

    async def leave(self, session: Session, channel: str) -> None:
        """Leave a channel; does nothing if the session is not a member."""
        member = self._forget(session, channel)
        if member is not None:
            await self._bus.publish("channels.leave", Moved(self._bus.id, [member]))

    async def publish(self, session: Session, channel: str, data: Any) -> None:
        """Publish a message to all members."""
        member = self._member(session, channel)
        if member is None:
            raise BadArguments("only members publish", fix="join the channel first")
        if isinstance(data, (dict, list)) and too_deep({"data": data}):
            raise nested_too_deep("a message")
        if len(msgspec.json.encode(data)) > MOST_BYTES:
            raise BadArguments(f"a message may have {MOST_BYTES} bytes", fix="send less, or store it and send its key")
        await self._bus.publish("channels.message", ChannelMessage(member, data))

    def members(self, session: Session, channel: str) -> list[dict[str, str | None]]:
        """Return the members of a channel, if the session is one of them."""
        own = self._member(session, channel)
        if own is None:
            return []
        others = (member for known in self._nodes.values() for member in known if member.channel == own.channel)
        found = {member.id: member.shown() for member in (*self._local[own.channel].values(), *others)}
        return [found[id] for id in sorted(found)]

    def gone(self, session: Session) -> None:
        """Remove a closed session from all its channels."""
        left = [self._forget(session, channel) for channel in list(self._joined.get(session, ()))]
        members = [member for member in left if member is not None]
        self._joined.pop(session, None)
        if members:
            self._spawn(self._tell("channels.leave", Moved(self._bus.id, members)))

    def _member(self, session: Session, channel: str) -> Member | None:
        """Return the session's member; None also if its new token has another tenant."""
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

    # Messages of nodes

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
        message = msgspec.convert(payload, ChannelMessage)
        self._deliver("message", message.member, message.data)

    def _on_ask(self, payload: Any) -> None:
        question = msgspec.convert(payload, MembersRequest)
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
            self._spawn(self._tell("channels.ask", MembersRequest(self._bus.id, node)))
        self._known(node)

    def _on_bye(self, payload: Any) -> None:
        self._lose(msgspec.convert(payload, str))

    def _known(self, node: str) -> dict[Member, None] | None:
        """Return the members of another node and mark it as alive; None for this node."""
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
        """Ask for all members, then send heartbeats at intervals and drop silent nodes."""
        try:
            await self._tell("channels.ask", MembersRequest(self._bus.id))
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
        """Drop the nodes that were silent for too long."""
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
