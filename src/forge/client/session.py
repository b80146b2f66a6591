"""The stream that all subscriptions of a client share: kept open, and reopened with every subscription.

It is open while there is a subscription. When it ends for any reason, the client waits (with a growing delay, or as
long as the server asks) and opens another. It then subscribes to everything again, with the hashes of its results, so
that the server sends only results that changed. A subscription gets a new name with each request; messages under an
old name are ignored.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, Final
from urllib.parse import quote

import msgspec

from forge.backoff import Backoff
from forge.client.error_responses import passing, told
from forge.client.http import PATIENT, Http
from forge.client.live import ClientMetrics, Live
from forge.client.messages import AuthTold, Bye, DeltaMessage, NoticeMessage, Opened, Whole, read
from forge.client.sse import ServerSentEvent
from forge.errors import Closed, ForgeError, Refused, ResultMismatch, TooMany, Unreachable
from forge.tasks import spawn

MOST_MISMATCHES: Final = 3
MOST_ASKING: Final = 8
_SETTLED: Final = 5.0
_FINAL: Final = frozenset({"auth_failed", "bad_arguments", "query_refused", "unknown_name"})
_log = logging.getLogger(__name__)


class ClientSession:
    """Keep subscriptions alive."""

    def __init__(self, http: Http, metrics: ClientMetrics, backoff: Callable[[], Backoff] = PATIENT) -> None:
        self._http = http
        self._metrics = metrics
        self._new_backoff = backoff
        self._lives: dict[Live, str] = {}
        """Subscriptions with their name on this stream; the name is empty before the request."""
        self._named: dict[str, Live] = {}
        self._names = count(1)
        self._id: str | None = None
        self._scope: asyncio.Timeout | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._few = asyncio.Semaphore(MOST_ASKING)
        self._wait = 0.0
        self._expelled: str | None = None

    def add(self, live: Live) -> None:
        """Start to keep a subscription alive."""
        if self._closed:
            raise Closed("the client was closed", fix="make a new client")
        self._lives[live] = ""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run(self._ending))
        elif self._id is not None:
            self._ask(live)

    def remove(self, live: Live) -> None:
        """Drop a subscription; without subscriptions there is no stream."""
        live.close()
        name = self._lives.pop(live, "")
        self._named.pop(name, None)
        if self._lives:
            if name:
                self._start(self._unsubscribe(name))
        elif self._running is not None:
            self._running.cancel()
            self._ending, self._running, self._id = self._running, None, None

    async def aclose(self) -> None:
        """End every subscription and the stream."""
        self._closed = True
        for live in list(self._lives):
            self.remove(live)
        for task in self._tasks:
            task.cancel()
        if left := [task for task in (self._ending, *self._tasks) if task is not None]:
            await asyncio.wait(left)

    # The stream

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        backoff = self._new_backoff()
        while self._lives:
            opened = time.monotonic()
            try:
                expelled = await self._stream()
                error: Exception = Unreachable("the server ended the stream", fix="it is opened again")
                if expelled is not None:
                    await self._http.tokens.replace(expelled)
            except Exception as found:
                if not passing(found, connected=self._metrics.connects > 0):
                    self._end(found)
                    return
                error = found
            self._metrics.lost += 1
            for live in self._lives:
                live.error = error
            if time.monotonic() - opened > _SETTLED:
                backoff.reset()
            delay = backoff.next(max(self._wait, getattr(error, "retry_after_secs", 0.0)))
            _log.info("%s; next try in %.1f s", error, delay)
            await asyncio.sleep(delay)

    async def _stream(self) -> str | None:
        """Open the stream and handle its events until it ends; return the reason if the token is not accepted."""
        self._wait, self._expelled = 0.0, None
        try:
            async with self._http.stream("/forge/session") as events, asyncio.timeout(None) as self._scope:
                async for event in events:
                    self._handle(event)
            return self._expelled
        except TimeoutError:
            raise Unreachable("the server lost the session", fix="it is opened again") from None
        finally:
            self._id = self._scope = None
            self._named.clear()
            for task in self._tasks:
                task.cancel()
            for live in self._lives:
                self._lives[live] = ""

    def _handle(self, event: ServerSentEvent) -> None:
        if event.name in ("snapshot", "update"):
            whole = read(Whole, event.data)
            self._apply(whole.subscription, lambda live: live.whole(whole))
        elif event.name == "delta":
            delta = read(DeltaMessage, event.data)
            self._apply(delta.subscription, lambda live: live.delta(delta))
        elif event.name == "gap":
            self._metrics.gaps += 1
        elif event.name == "error":
            self._error(read(NoticeMessage, event.data))
        elif event.name == "session":
            self._id = read(Opened, event.data).session
            self._metrics.connects += 1
            for live in list(self._lives):
                self._ask(live)
        elif event.name == "auth":
            message = read(AuthTold, event.data)
            self._expelled = message.reason
            if message.renew and self._http.tokens.renewable:
                self._start(self._renew())
        elif event.name == "bye":
            self._wait = read(Bye, event.data).retry_after_ms / 1000

    def _apply(self, name: str, message: Callable[[Live], None]) -> None:
        live = self._named.get(name)
        if live is None:
            return
        try:
            message(live)
        except ResultMismatch as error:
            self._metrics.mismatches += 1
            live.mismatches += 1
            if live.mismatches > MOST_MISMATCHES:
                self._fail(live, error)
                return
            _log.warning("%s: %s; subscribing again", live.query, error)
            live.error = error
            del self._named[name]
            self._start(self._unsubscribe(name))
            self._ask(live, again=True)

    def _error(self, message: NoticeMessage) -> None:
        live = self._named.get(message.subscription)
        if live is None:
            _log.warning("the server says: %s (%s)", message.message, message.fix)
            return
        self._metrics.errors += 1
        error = told(message.code, message.message, message.fix, retry_after_secs=message.retry_after_secs)
        # a subscription whose query fails at once raises instead of waiting
        if message.code in _FINAL or (not live.answered and message.code != "server_error"):
            self._fail(live, error)
        else:
            live.error = error

    def _end(self, error: Exception) -> None:
        for live in list(self._lives):
            live.fail(error)
        self._lives.clear()

    def _fail(self, live: Live, error: Exception) -> None:
        live.fail(error)
        self.remove(live)

    # Requests of the session

    def _ask(self, live: Live, *, again: bool = False) -> None:
        self._start(self._subscribe(live, again))

    async def _subscribe(self, live: Live, again: bool) -> None:
        """Request the subscription until the server accepts or refuses it."""
        backoff = self._new_backoff()
        if live.mismatches > 1:
            await asyncio.sleep(backoff.next())
        while live in self._lives:
            name = str(next(self._names))
            self._lives[live], self._named[name], live.answered = name, live, False
            wait = 0.0
            asked = {"subscription": name, "query": live.query, "args": live.args, "mode": live.mode}
            if live.hash is not None and not again:
                asked["hash"] = live.hash
            try:
                async with self._few:
                    await self._post("subscribe", asked)
                return
            except TooMany as error:
                live.error, wait = error, error.retry_after_secs
            except Refused as error:
                if error.code == "unknown_session":
                    self._lost()
                else:
                    self._fail(live, error)
                return
            except ForgeError as error:
                live.error = error
            except Exception as error:
                self._fail(live, error)
                return
            self._named.pop(name, None)
            self._start(self._unsubscribe(name))
            await asyncio.sleep(backoff.next(wait))

    async def _unsubscribe(self, name: str) -> None:
        with contextlib.suppress(ForgeError):
            await self._post("unsubscribe", {"subscription": name})

    async def _renew(self) -> None:
        """Send a new token to keep the session; without an accepted token, it ends and is reopened with another."""
        tokens = self._http.tokens
        try:
            token = await tokens.newer(await tokens.current())
            await self._post("auth", {"token": token})
        except Exception as error:
            _log.warning("the token could not be renewed: %s", error)

    async def _post(self, what: str, body: Any) -> None:
        id = self._id
        if id is not None:
            await self._http.post(f"/forge/session/{quote(id, safe='')}/{what}", msgspec.json.encode(body))

    def _lost(self) -> None:
        """End the stream, because the server does not know it."""
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        spawn(work, self._tasks, _log)
