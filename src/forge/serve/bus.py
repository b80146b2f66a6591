"""Messages between the nodes of one database, over PostgreSQL's NOTIFY.

Every node hears every message, its own too, once, and all nodes hear them in the same order. A message is lost to a
node whose connection is down when it is sent. The messages of a node are numbered, so whoever hears a later one knows
that it missed some: `on_gap` is told which node's, and asks that node for what matters. A node that has nothing to say
sends a beat now and then, so a loss is noticed within `beat` seconds.

Whoever may connect to the database may also listen and send on the channel. So messages are encrypted and
authenticated with a secret that only Forge's role can read (`forge.serve.cipher`): others hear that something was sent,
when, by which node and how long it was; what they send is dropped, counted in `dropped`, and logged once.

A message that is sent again is dropped: by its number where its sender is known, else by its time. A node takes the
first message of a sender only if it is not older than `WINDOW`, nor than this node but for `SLACK` seconds. Times are
those of the database's clock, which `now` tells; nodes' own clocks do not matter.
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec
import psycopg

from forge.errors import ForgeError, ServerError
from forge.postgres.connection import AsyncConnection, connect_async, translate, typed_errors
from forge.serve.cipher import Cipher
from forge.tasks import observed, spawn
from forge.tracking.notify import Listener, listen

CHANNEL: Final = "forge_nodes"
BEAT: Final = 10.0
WINDOW: Final = 60.0
"""Seconds after which the first message of a sender that nobody has heard of is too old."""
SLACK: Final = 5.0
"""Seconds by which nodes may differ in what the database's clock shows."""
_REFRESH: Final = 1.0
_SECRET: Final = (
    "SELECT i.secret, extract(epoch FROM clock_timestamp())::float8 FROM forge.log_identity i ORDER BY i.id LIMIT 1"
)
_SEND: Final = "SELECT public.forge_notify(%s, %s), extract(epoch FROM clock_timestamp())::float8"
_LONGEST: Final = 64 * 2**20
_FAREWELL: Final = 5.0
_MOST_REMEMBERED: Final = 4096
_MOST_REVOKED: Final = 100_000
_log = logging.getLogger(__name__)

Handler = Callable[[Any], None]
Work = Callable[[], Coroutine[Any, Any, None]]


class Envelope(msgspec.Struct, frozen=True):
    """A message on its way: the `number`-th of its sender, sent at a time of the database's clock."""

    sender: str
    number: int
    kind: str
    payload: Any = None
    at: float | None = None


class Exchange:
    """What every bus does with the messages that it hears, however they came."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        """The name of this node among the others, another one after each start."""
        self.on_gap: list[Callable[[str], None]] = []
        """Called with a node whose messages were missed."""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called when messages are heard again after they were not for a while."""
        self.dropped = {"forged": 0, "stale": 0, "repeated": 0}
        """How many messages were not taken: of nobody who knows the secret, too old, heard before."""
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

    def now(self) -> float:
        """The time that revocations and messages are marked with, in seconds since the epoch."""
        return time.time()

    def _take(self, message: Envelope) -> None:
        """Hand a message to who waits for it, once."""
        last = self._heard.pop(message.sender, None)
        self._heard[message.sender] = max(message.number, last or 0)
        if len(self._heard) > _MOST_REMEMBERED:
            self._heard.popitem(last=False)
        if last is not None and message.number <= last:
            self.dropped["repeated"] += 1
            return
        missed = last is not None and message.number > last + 1
        for handler in self._handlers.get(message.kind, ()):
            _call(handler, message.payload)
        if missed:
            for noticed in self.on_gap:
                _call(noticed, message.sender)


class Bus(Exchange):
    """The bus of one node: a connection that listens and one that sends, each made again when it is lost."""

    def __init__(self, url: str, *, beat: float = BEAT) -> None:
        super().__init__()
        self._url = url
        self._beat = beat
        self._listener: Listener | None = None
        self._sender: AsyncConnection | None = None
        self._sending = asyncio.Lock()
        self._sends: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._cipher: Cipher | None = None
        self._offset: float | None = None
        self._began = 0.0
        self._refreshed = 0.0

    def now(self) -> float:
        """The database's clock, as it was last seen to differ from this machine's."""
        return time.time() if self._offset is None else time.monotonic() + self._offset

    async def start(self) -> None:
        """Begin to hear; raises ServerError when the database is not there."""
        self._listener = await listen(self._url, CHANNEL, longest=_LONGEST).__aenter__()
        self._listener.on_reconnect = self._reconnected
        self._began = time.monotonic()
        try:
            async with self._sending:
                await self._connected()
        except BaseException:
            await self._listener.aclose()
            raise
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
            sender = await self._connected()
            assert self._cipher is not None
            text = self._cipher.sealed(self.id, msgspec.json.encode(msgspec.structs.replace(envelope, at=self.now())))
            with typed_errors():
                row = await (await sender.execute(_SEND, (CHANNEL, text))).fetchone()
            assert row is not None
            self._offset = row[1] - time.monotonic()
        except psycopg.Error as error:
            await self._hang_up()
            raise translate(error) or ServerError("the other nodes cannot be reached", fix="try again") from error
        except BaseException:
            await self._hang_up()
            raise

    async def _connected(self) -> AsyncConnection:
        """The connection that sends; a new one has read the secret and the clock."""
        if self._sender is None or self._sender.closed:
            self._sender = await connect_async(self._url, application_name="forge bus")
            await self._refresh(self._sender)
        return self._sender

    async def _refresh(self, connection: AsyncConnection) -> None:
        with typed_errors():
            row = await (await connection.execute(_SECRET)).fetchone()
        if row is None:
            raise ServerError("the log has no identity", fix="forge init")
        self._offset = row[1] - time.monotonic()
        self._refreshed = time.monotonic()
        if self._cipher is None or self._cipher.secret != row[0]:
            self._cipher = Cipher(row[0])

    async def _hang_up(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _listen(self, listener: Listener) -> None:
        while True:
            try:
                async for message in listener:
                    await self._hear(message.payload)
                return
            except (psycopg.Error, ForgeError) as error:
                _log.error("the other nodes are not heard, trying again: %s", error)
                await asyncio.sleep(1.0)

    async def _hear(self, text: str) -> None:
        """Take a message, if a node or the database sent it, and lately."""
        message = self._opened(text)
        if (message is None or self._stale(message)) and time.monotonic() - self._refreshed >= _REFRESH:
            await self._look_again()  # perhaps the log was installed again, or the clock was set
            message = self._opened(text)
        if message is None:
            self._drop(
                "forged",
                "no node of this version sent it, but perhaps some role of this database",
            )
        elif self._stale(message):
            self._drop("stale", "it is old: some role of this database sends again what it heard")
        else:
            self._take(message)

    def _opened(self, text: str) -> Envelope | None:
        """The message, if somebody wrote it who knows the secret."""
        assert self._cipher is not None
        if (transaction := self._cipher.defined(text)) is not None:
            return Envelope(f"definitions {transaction}", 1, "definitions", at=self.now())
        if (opened := self._cipher.opened(text)) is None:
            return None
        sender, body = opened
        try:
            message = msgspec.json.decode(body, type=Envelope)
        except (msgspec.DecodeError, RecursionError):  # of a node of another version
            return None
        return message if message.sender == sender else None

    def _stale(self, message: Envelope) -> bool:
        """Whether its time speaks against it, where no number can."""
        if message.sender in self._heard:
            return False
        oldest = max(self.now() - WINDOW, self._began + (self._offset or 0.0) - SLACK)
        return message.at is None or message.at < oldest

    def _drop(self, reason: str, why: str) -> None:
        self.dropped[reason] += 1
        if self.dropped[reason] == 1:
            _log.warning("a message on %s was dropped, as others will be without a word: %s", CHANNEL, why)

    async def _look_again(self) -> None:
        self._refreshed = time.monotonic()
        async with self._sending:
            try:
                if not self._stopped:
                    await self._refresh(await self._connected())
            except (psycopg.Error, ForgeError) as error:
                await self._hang_up()
                _log.warning("the secret of the nodes cannot be read: %s", error)

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
        if found.at > (latest := bus.now() + SLACK):  # else nobody could log in until then
            found = msgspec.structs.replace(found, at=latest)
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
