"""Messages between the nodes of one database, over PostgreSQL's NOTIFY.

Every node hears every message, its own too, once, and all nodes hear them in the same order. A message is lost to a
node whose connection is down when it is sent. The messages of a node are numbered, so whoever hears a later one knows
that it missed some: `on_gap` is told which node's, and asks that node for what matters. A node that has nothing to say
sends a beat now and then, so a loss is noticed within `beat` seconds.

Whoever may connect to the database may also send on the channel: handlers take nothing for granted but JSON.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec
import psycopg

from forge.changelog.connection import AsyncConnection, connect_async, translate
from forge.errors import ForgeError, ServerError
from forge.tasks import observed, spawn
from forge.track.notify import Listener, listen, notify

CHANNEL: Final = "forge_nodes"
BEAT: Final = 10.0
_FAREWELL: Final = 5.0
_MOST_REMEMBERED: Final = 4096
_MOST_REVOKED: Final = 100_000
_log = logging.getLogger(__name__)

Handler = Callable[[Any], None]
Work = Callable[[], Coroutine[Any, Any, None]]


class Envelope(msgspec.Struct, frozen=True):
    """A message on its way: the `number`-th of its sender."""

    sender: str
    number: int
    kind: str
    payload: Any = None


class Exchange:
    """What every bus does with the messages that it hears, however they came."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        """The name of this node among the others, another one after each start."""
        self.on_gap: list[Callable[[str], None]] = []
        """Called with a node whose messages were missed."""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called when messages are heard again after they were not for a while."""
        self._handlers: dict[str, list[Handler]] = {}
        self._work: list[Work] = []
        self._running: list[asyncio.Task[None]] = []
        self._heard: OrderedDict[str, int] = OrderedDict()
        self._number = 0

    def on(self, kind: str, handler: Handler) -> None:
        """Have a function called with the payload of every message of a kind."""
        self._handlers.setdefault(kind, []).append(handler)

    def while_up(self, work: Work) -> None:
        """Run this from start to stop."""
        self._work.append(work)

    async def start(self) -> None:
        """Begin to hear; whatever is published from now on arrives."""
        loop = asyncio.get_running_loop()
        self._running += [loop.create_task(work()) for work in self._work]

    async def stop(self) -> None:
        tasks, self._running = self._running, []
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.error("a task of the bus failed", exc_info=outcome)

    async def publish(self, kind: str, payload: Any = None) -> None:
        """Send to all nodes, this one included."""
        raise NotImplementedError

    def _next(self, kind: str, payload: Any) -> Envelope:
        self._number += 1
        return Envelope(self.id, self._number, kind, payload)

    def _receive(self, text: str) -> None:
        try:
            message = msgspec.json.decode(text, type=Envelope)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            _log.warning("a message between nodes is malformed")
            return
        last = self._heard.pop(message.sender, None)
        self._heard[message.sender] = max(message.number, last or 0)
        if len(self._heard) > _MOST_REMEMBERED:
            self._heard.popitem(last=False)
        if last is not None and message.number <= last:
            return
        missed = last is not None and message.number > last + 1
        for handler in self._handlers.get(message.kind, ()):
            _call(handler, message.payload)
        if missed:
            for noticed in self.on_gap:
                _call(noticed, message.sender)


class Bus(Exchange):
    """The bus of one node: a connection that listens and one that sends, each made anew when it is lost."""

    def __init__(self, url: str, *, beat: float = BEAT) -> None:
        super().__init__()
        self._url = url
        self._beat = beat
        self._listener: Listener | None = None
        self._sender: AsyncConnection | None = None
        self._sending = asyncio.Lock()
        self._sends: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Begin to hear; raises ServerError when the database is not there."""
        self._listener = await listen(self._url, CHANNEL).__aenter__()
        self._listener.on_reconnect = self._reconnected
        loop = asyncio.get_running_loop()
        self._running += [loop.create_task(self._listen(self._listener)), loop.create_task(self._beat_for_ever())]
        await super().start()

    def _reconnected(self) -> None:
        for handler in self.on_reconnect:
            handler()

    async def stop(self) -> None:
        await super().stop()
        if self._sends:
            await asyncio.wait(self._sends, timeout=_FAREWELL)
        if self._listener is not None:
            await self._listener.aclose()
        async with self._sending:
            self._stopped = True
            await self._hang_up()

    async def publish(self, kind: str, payload: Any = None) -> None:
        """Send to all nodes, this one included; raises ServerError when that cannot be done.

        Whoever is cancelled while it waits has sent it all the same.
        """
        sending = observed(asyncio.get_running_loop().create_task(self._publish(kind, payload)))
        self._sends.add(sending)
        sending.add_done_callback(self._sends.discard)
        await asyncio.shield(sending)

    async def _publish(self, kind: str, payload: Any) -> None:
        async with self._sending:
            if self._stopped:
                raise ServerError("this node has stopped", fix="connect to another one")
            envelope = self._next(kind, payload)
            try:
                await self._send(envelope)
            except (psycopg.OperationalError, psycopg.InterfaceError, ServerError):
                # perhaps it was sent all the same: whoever heard it knows its number
                await self._send(envelope)

    async def _send(self, envelope: Envelope) -> None:
        try:
            if self._sender is None or self._sender.closed:
                self._sender = await connect_async(self._url, application_name="forge bus")
            await notify(self._sender, CHANNEL, msgspec.json.encode(envelope).decode())
        except psycopg.Error as error:
            await self._hang_up()
            raise translate(error) or ServerError("the other nodes cannot be reached", fix="try again") from error
        except BaseException:
            await self._hang_up()
            raise

    async def _hang_up(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _listen(self, listener: Listener) -> None:
        while True:
            try:
                async for message in listener:
                    self._receive(message.payload)
                return
            except (psycopg.Error, ForgeError) as error:
                _log.error("the other nodes are not heard, trying again: %s", error)
                await asyncio.sleep(1.0)

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            try:
                await self.publish("beat")
            except ForgeError as error:
                _log.warning("the other nodes cannot be reached: %s", error)


class Revoking(Protocol):
    """What `forge.serve.node.Node` has."""

    def revoke(
        self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None, at: float
    ) -> None: ...


class Revocation(msgspec.Struct, frozen=True):
    """Tokens that match all that is named and were issued until then are refused."""

    at: float
    user: str | None = None
    tenant: str | None = None
    token_id: str | None = None


def wire_revocations(node: Revoking, bus: Exchange) -> None:
    """Have the node revoke what any node publishes as "revoke", and ask the others for what it did not hear."""
    known: OrderedDict[tuple[str | None, str | None, str | None], Revocation] = OrderedDict()
    asked: set[asyncio.Task[None]] = set()

    def revoke(payload: Any) -> None:
        found = msgspec.convert(payload, Revocation)
        named = (found.user, found.tenant, found.token_id)
        if named == (None, None, None) or (named in known and known[named].at >= found.at):
            return
        known[named] = found
        if len(known) > _MOST_REVOKED:
            known.popitem(last=False)
        node.revoke(user=found.user, tenant=found.tenant, token_id=found.token_id, at=found.at)

    def told(payload: Any) -> None:
        for each in msgspec.convert(payload, list[Any]):
            revoke(each)

    async def publish(kind: str, payload: Any = None) -> None:
        try:
            await bus.publish(kind, payload)
        except ForgeError as error:
            _log.warning("what is revoked cannot be told to other nodes: %s", error)

    def tell(kind: str, payload: Any = None) -> None:
        spawn(publish(kind, payload), asked, _log)

    def answer(payload: Any) -> None:
        if payload != bus.id and known:
            tell("revoked", list(known.values()))

    bus.on("revoke", revoke)
    bus.on("revoked", told)
    bus.on("revoked?", answer)
    bus.on_gap.append(lambda sender: tell("revoked?", bus.id))
    bus.while_up(lambda: publish("revoked?", bus.id))


def _call(handler: Callable[[Any], None], argument: Any) -> None:
    """A handler that fails harms no other."""
    try:
        handler(argument)
    except msgspec.ValidationError as error:
        _log.warning("a message between nodes is malformed: %s", error)
    except Exception:
        _log.exception("a message between nodes could not be handled")
