"""Messages between the nodes of one database, over PostgreSQL's NOTIFY.

Every node receives every message once, including its own, and all nodes receive them in the same order. A node whose
connection is down when a message is sent loses the message. Each node numbers its messages, so a receiver detects a
gap: `on_gap` gets the sender, and asks that node for the state that matters. An idle node sends a heartbeat, so a loss
is detected within `beat` seconds.

Any role that may connect to the database may also listen and send on the channel. Messages are therefore encrypted and
authenticated with a secret that only Forge's role can read (`forge.serve.cipher`). Others see that a message was sent,
when, by which node, and its length. Messages from others are dropped, counted in `dropped`, and logged once.

Replayed messages are dropped: by number if the sender is known, otherwise by time. A node accepts the first message of
a sender only if it is not older than `WINDOW`, and not more than `SLACK` seconds older than this node. Times are from
the database's clock, which `now` returns; the nodes' own clocks do not matter.
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
from forge.tracking.notify import NotificationListener, listen

CHANNEL: Final = "forge_nodes"
BEAT: Final = 10.0
WINDOW: Final = 60.0
"""Maximum age, in seconds, of the first message from an unknown sender."""
SLACK: Final = 5.0
"""Maximum difference, in seconds, between the nodes' views of the database's clock."""
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
    """A message in transit: number `number` of its sender, with its send time by the database's clock."""

    sender: str
    number: int
    kind: str
    payload: Any = None
    at: float | None = None


class Exchange:
    """Message handling that every kind of bus shares, independent of the transport."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        """The name of this node; it differs after each start."""
        self.on_gap: list[Callable[[str], None]] = []
        """Called with a node whose messages were missed."""
        self.on_reconnect: list[Callable[[], None]] = []
        """Called when messages arrive again after an interruption."""
        self.dropped = {"forged": 0, "stale": 0, "repeated": 0}
        """Counts of dropped messages by reason: not authenticated, too old, replayed."""
        self._handlers: dict[str, list[Handler]] = {}
        self._work: list[Work] = []
        self._running: list[asyncio.Task[None]] = []
        self._heard: OrderedDict[str, int] = OrderedDict()
        self._number = 0

    def on(self, kind: str, handler: Handler) -> None:
        """Register a handler for the payload of every message of a kind."""
        self._handlers.setdefault(kind, []).append(handler)

    def while_up(self, work: Work) -> None:
        """Run this task from start to stop."""
        self._work.append(work)

    async def start(self) -> None:
        """Start to listen; every message published after this returns arrives."""
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
        """Send to all nodes, including this one."""
        raise NotImplementedError

    def _next(self, kind: str, payload: Any) -> Envelope:
        self._number += 1
        return Envelope(self.id, self._number, kind, payload)

    def now(self) -> float:
        """Return the timestamp for revocations and messages, in seconds since the epoch."""
        return time.time()

    def _take(self, message: Envelope) -> None:
        """Deliver a message to its handlers, once."""
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
    """The bus of one node: a connection that listens and one that sends; each reconnects after a loss."""

    def __init__(self, url: str, *, beat: float = BEAT) -> None:
        super().__init__()
        self._url = url
        self._beat = beat
        self._listener: NotificationListener | None = None
        self._sender: AsyncConnection | None = None
        self._sending = asyncio.Lock()
        self._sends: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._cipher: Cipher | None = None
        self._offset: float | None = None
        self._began = 0.0
        self._refreshed = 0.0

    def now(self) -> float:
        """Return the database's time: this machine's clock plus the last measured difference."""
        return time.time() if self._offset is None else time.monotonic() + self._offset

    async def start(self) -> None:
        """Start to listen; raise ServerError if the database is unreachable."""
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
        """Send to all nodes, including this one; raise ServerError if that fails.

        If the caller is cancelled while it waits, the message is still sent.
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
                # it may have been sent before the error: receivers then drop the repeated number
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
        """Return the sending connection; a new one first reads the secret and the clock."""
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

    async def _listen(self, listener: NotificationListener) -> None:
        while True:
            try:
                async for message in listener:
                    await self._hear(message.payload)
                return
            except (psycopg.Error, ForgeError) as error:
                _log.error("the other nodes are not heard, trying again: %s", error)
                await asyncio.sleep(1.0)

    async def _hear(self, text: str) -> None:
        """Accept a message if a node or the database sent it recently."""
        message = self._opened(text)
        if (message is None or self._stale(message)) and time.monotonic() - self._refreshed >= _REFRESH:
            await self._look_again()  # the log may have been reinstalled, or the clock changed
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
        """Return the message if its sender knows the secret."""
        assert self._cipher is not None
        if (transaction := self._cipher.defined(text)) is not None:
            return Envelope(f"definitions {transaction}", 1, "definitions", at=self.now())
        if (opened := self._cipher.opened(text)) is None:
            return None
        sender, body = opened
        try:
            message = msgspec.json.decode(body, type=Envelope)
        except (msgspec.DecodeError, RecursionError):  # from a node of another version
            return None
        return message if message.sender == sender else None

    def _stale(self, message: Envelope) -> bool:
        """Whether the message is too old by its time, if its number cannot tell."""
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
    """The part of `forge.serve.node.Node` that revocations need."""

    def revoke(
        self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None, at: float
    ) -> None: ...


class Revocation(msgspec.Struct, frozen=True):
    """Refuse tokens that match every given field and were issued up to `at`."""

    at: float
    user: str | None = None
    tenant: str | None = None
    token_id: str | None = None


def wire_revocations(node: Revoking, bus: Exchange) -> None:
    """Apply every "revoke" message of any node to this node, and ask other nodes for missed revocations."""
    known: OrderedDict[tuple[str | None, str | None, str | None], Revocation] = OrderedDict()
    asked: set[asyncio.Task[None]] = set()

    def revoke(payload: Any) -> None:
        found = msgspec.convert(payload, Revocation)
        if found.at > (latest := bus.now() + SLACK):  # otherwise nobody could log in until then
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
    """Call a handler; its failure does not affect other handlers."""
    try:
        handler(argument)
    except msgspec.ValidationError as error:
        _log.warning("a message between nodes is malformed: %s", error)
    except Exception:
        _log.exception("a message between nodes could not be handled")
