"""The API for applications: a client, its subscriptions, its calls.

    async with forge.connect("http://127.0.0.1:8710", token=token) as client:
        paid = await client.mutate("pay", order_id=4711)
        async for orders in (subscription := client.subscribe("orders_of", customer_id=7)):
            if subscription.contains(paid.xid):
                break

A client belongs to one event loop. It connects on first use.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, get_args
from urllib.parse import quote

import httpx
import msgspec

from forge.change import Change
from forge.client.changes import Changes
from forge.client.http import Http
from forge.client.live import ClientMetrics, Live, Mode
from forge.client.messages import CallResponse, Cause, decode_result, read
from forge.client.session import ClientSession
from forge.client.tokens import Token, Tokens
from forge.cursor import NOW, Cursor, Snapshot
from forge.errors import Closed, ConfigError


class Mutated(msgspec.Struct, frozen=True):
    """The return value of a mutation and its transaction number; None when it wrote nothing."""

    result: Any
    xid: int | None


def connect(
    url: str,
    *,
    token: Token = None,
    mode: Mode = "full",
    timeout: float = 30.0,
    silence: float = 60.0,
    http: httpx.AsyncClient | None = None,
) -> "Client":
    """Return a client of the Forge server at a URL, which may have a path.

    `token` is a text, or an async function that returns one on request; with a function, the client survives an expired
    token. `mode` is the form of results: complete (`full`), or differences (`delta`), which costs less for long
    results. Times in seconds: `timeout` for an answer, `silence` until an idle stream counts as dead; a server sends
    something every 25. `http` is your own client, for certificates, proxies or headers; it is not closed.
    """
    try:
        given = httpx.URL(url)
    except httpx.InvalidURL:
        given = httpx.URL()
    if given.scheme not in ("http", "https") or not given.host:
        raise ConfigError(f"{url[:80]!r} is not the URL of a server", fix="use e.g. http://127.0.0.1:8710")
    return Client(Http(url, Tokens(token), http=http, timeout=timeout, silence=silence), _checked(mode))


class Client:
    """A client of one server; create it with `connect`."""

    def __init__(self, http: Http, mode: Mode) -> None:
        self.metrics = ClientMetrics()
        self._http = http
        self._mode: Mode = mode
        self.after = NOW
        """The acknowledged mutations of this client: its queries contain them, on any node."""
        self._session = ClientSession(http, self.metrics)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all subscriptions and their iterations, and close the connections."""
        self._closed = True
        await self._session.aclose()
        await self._http.aclose()

    async def query(self, name: str, /, **args: Any) -> Any:
        """Return the current result of a query, including everything that this client wrote."""
        return decode_result(bytes((await self._call("query", name, args)).result))

    async def mutate(self, name: str, /, **args: Any) -> Mutated:
        """Run a mutation. After Unreachable, it is unknown whether it ran."""
        known = self.after
        answer = await self._call("mutation", name, args)
        if answer.xid is not None:
            self.after = self.after.superseded(known, int(answer.xid))
        return Mutated(decode_result(bytes(answer.result)), None if answer.xid is None else int(answer.xid))

    def subscribe(self, name: str, /, **args: Any) -> "Subscription":
        """Return the live results of a query: the current one, and each new one."""
        return self.live(name, args)

    def live(self, name: str, args: Mapping[str, Any] | None = None, *, mode: Mode | None = None) -> "Subscription":
        """Like `subscribe`, with options."""
        encoded = msgspec.json.encode(dict(args or {}))
        return Subscription(self._session, Live(name, encoded, _checked(mode or self._mode), self.metrics))

    def changes(
        self,
        tables: Sequence[str] = (),
        *,
        after: Cursor | str | None = None,
        where: Callable[[Change], bool] | None = None,
    ) -> Changes:
        """Return every change of these tables, or of all, after a cursor or from now on, that satisfies `where`."""
        self._open()
        return Changes(self._http, tables, after, where)

    async def _call(self, kind: str, name: str, args: Mapping[str, Any]) -> CallResponse:
        self._open()
        headers = {"forge-after": str(self.after)} if kind == "query" and self.after else {}
        path = f"/forge/{kind}/{quote(name, safe='')}"
        return read(CallResponse, await self._http.post(path, msgspec.json.encode(args), headers))

    def _open(self) -> None:
        if self._closed:
            raise Closed("the client was closed", fix="make a new client")


class Subscription:
    """The results of a query, in order: an async iterator. A slow consumer gets the latest result.

    Its properties describe the last result returned; before the first one they are None. It starts with the first step
    of the iteration or with `async with`, and ends with `aclose`, with its client, or when nothing refers to it.
    """

    def __init__(self, session: ClientSession, live: Live) -> None:
        self._session = session
        self._live = live
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def result(self) -> Any:
        """The result, decoded again on each access."""
        shown = self._live.shown
        return None if shown is None else shown.held.value()

    @property
    def hash(self) -> str | None:
        """The server's hash of the result."""
        shown = self._live.shown
        return None if shown is None else shown.held.hash

    @property
    def cause(self) -> tuple[Cause, ...]:
        """Changes that led to the result; empty for the first result and after a reconnect."""
        shown = self._live.shown
        return () if shown is None else shown.cause

    @property
    def more_causes(self) -> int:
        """The number of further causes."""
        shown = self._live.shown
        return 0 if shown is None else shown.more_causes

    @property
    def snapshot(self) -> Snapshot | None:
        """The transactions that the result contains."""
        shown = self._live.shown
        return None if shown is None else shown.snapshot

    @property
    def error(self) -> Exception | None:
        """The reason why no results arrive; None if there is no problem."""
        return self._live.error

    def contains(self, xid: int | str | None) -> bool:
        """Whether the result contains a transaction; None is a transaction that wrote nothing."""
        snapshot = self.snapshot
        return snapshot is not None and (xid is None or snapshot.sees(int(xid)))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._begin()
        return await self._live.next()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the subscription."""
        self._session.remove(self._live)

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_closed() and not self._live.closed:
            self._loop.call_soon_threadsafe(self._session.remove, self._live)

    def _begin(self) -> None:
        if self._loop is None and not self._live.closed:
            self._session.add(self._live)
            self._loop = asyncio.get_running_loop()


def _checked(mode: Mode) -> Mode:
    if mode not in get_args(Mode):
        raise ConfigError(f"the mode cannot be {mode!r}", fix="use full or delta")
    return mode
