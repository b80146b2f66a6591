"""An application: its queries and mutations, the database they live in, and the ASGI app that serves them.

app = forge.Forge()                       # embedded PostgreSQL; or Forge("postgresql://…")

@app.query
async def open_orders(ctx, customer_id: int):
    return await ctx.db.fetch("SELECT id, status FROM orders WHERE customer_id = %(customer_id)s")

@app.mutation
async def pay(ctx, order_id: int):
    await ctx.db.execute("UPDATE orders SET status = 'paid' WHERE id = %(order_id)s")

forge serve shop:app
"""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import msgspec
from starlette.types import Receive, Scope, Send

from forge.cache import Cache
from forge.change import Op
from forge.changelog.install import install, require_installed
from forge.changelog.maintenance import Policy, maintain
from forge.config import Config, default, in_force, load
from forge.database import database
from forge.deliver.consumers import ConsumerNode, Consumers
from forge.deliver.consumers import ConsumerSettings as ConsumerSettings
from forge.deliver.consumers.definition import WEBHOOK
from forge.deliver.outbox import OutboxNode, Routes
from forge.deliver.outbox.worker import OutboxSettings as OutboxSettings
from forge.deliver.payload import Envelope, Payload
from forge.deliver.sink import Sink
from forge.deliver.webhooks.endpoints import Configured
from forge.errors import ConsumerInvalid, ServerError
from forge.history.instants import Gap
from forge.postgres.connection import await_server, connect
from forge.react import past
from forge.react.cached import Cached
from forge.react.group import Settings
from forge.react.reactor import Reactor
from forge.react.registry import ANYONE, Auth, Function, Registry
from forge.react.registry import Scope as QueryScope
from forge.react.runner import Runner
from forge.serve import console
from forge.serve.asgi import ForgeApp
from forge.serve.bus import Bus
from forge.serve.node import Node, Options

_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Function)
_NOTHING: Final = object()
SERVE_FLAGS: Final = "_FORGE_SERVE_FLAGS"
"""The environment variable that passes the flags of `forge serve` to its processes."""


class Forge:
    """Queries that stay current, and mutations, on one database.

    Without a URL the database is the configured one (`FORGE_DATABASE_URL`, `forge.toml`), or the embedded server. A
    function that takes longer than `timeout` seconds fails, and its connection is released. Arguments given here
    override the configuration; the others are taken from there, else the default.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        replicas: Sequence[str] = (),
        settings: Settings = Settings(),  # noqa: B008
        options: Options = Options(),  # noqa: B008
        connections: int = default("serve.connections"),
        live_connections: int = default("serve.live_connections"),
        timeout: float = default("serve.timeout"),
        title: str = "Forge",
        cache: Cache | None = None,
    ) -> None:
        self.registry = Registry()
        self.settings = settings
        self.options = options
        self._url = url
        self._replicas = tuple(replicas)
        self._connections = connections
        self._live_connections = live_connections
        self._timeout = timeout
        self._title = title
        self.cache = cache or Cache()
        """The store for results of queries marked with `cache=`; in this process unless another is given."""
        self.consumers = Consumers()
        self.outbox = Routes()
        self._asgi: ForgeApp | None = None

    @overload
    def query(self, function: F, /) -> F: ...
    @overload
    def query(
        self,
        /,
        *,
        name: str | None = None,
        scope: QueryScope = "user",
        consistent: bool = False,
        key: str | Sequence[str] = (),
        reads: Sequence[str] = (),
        refresh_every: float | None = None,
        cache: float | bool = False,
        permission: str | None = None,
    ) -> Callable[[F], F]: ...
    def query(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Mark an async function as a query: clients may call it and subscribe to it."""

        def mark(marked: F) -> F:
            self.registry.query(marked, **options)
            return marked

        return mark if function is None else mark(function)

    @overload
    def mutation(self, function: F, /) -> F: ...
    @overload
    def mutation(self, /, *, name: str | None = None, permission: str | None = None) -> Callable[[F], F]: ...
    def mutation(self, function: F | None = None, /, **options: Any) -> F | Callable[[F], F]:
        """Mark an async function as a mutation: it runs in one transaction, with its caller in the log."""

        def mark(marked: F) -> F:
            self.registry.mutation(marked, **options)
            return marked

        return mark if function is None else mark(function)

    def consumer(
        self,
        name: str,
        /,
        *,
        tables: Sequence[str] = (),
        ops: Sequence[Op | str] = (),
        columns: Sequence[str] = (),
        where: str | None = None,
        source: str | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Mark an async function as a durable consumer: it gets every change, at least once, in the order of each row.

        With a `source` (`mysql://…`, `sqlite:///…`, `mongodb://…`, `postgresql://…?feed=wal`) it gets the changes of
        that database instead of this one's. Options: `batch` (a list of up to this many changes per call), `shards`,
        `tries`, `timeout`, `backoff`, `start`; see `forge.deliver.consumers.Consumer`.
        """
        _free(name)
        wanted: dict[str, Any] = {"tables": tables, "ops": ops, "columns": columns, "where": where}
        return self.consumers.consumer(name, source=source, **wanted, **options)

    def deliver(
        self,
        name: str,
        *,
        to: Sink,
        tables: Sequence[str] = (),
        ops: Sequence[Op | str] = (),
        columns: Sequence[str] = (),
        where: str | None = None,
        source: str | None = None,
        envelope: Envelope = "forge",
        payload: Payload = None,
        topic: str | None = None,
        **options: Any,
    ) -> None:
        """Send every change to a sink: a durable consumer whose handler is the sink; `source` as for `consumer`.

        `columns` selects the columns that are sent; `payload` is a custom body with placeholders: see
        `forge.deliver.payload`.
        """
        _free(name)
        wanted: dict[str, Any] = {"tables": tables, "ops": ops, "columns": columns, "where": where, "source": source}
        self.consumers.deliver(name, to=to, envelope=envelope, payload=payload, topic=topic, **wanted, **options)

    def on_outbox(self, topic: str, /, **options: Any) -> Callable[[F], F]:
        """Mark an async function of one message as the receiver of an outbox topic, or of many: `order.*`.

        Options: `batch`, `workers`, `concurrency`, `tries`, `timeout`, `backoff`; see `forge.deliver.outbox.Route`.
        """
        return self.outbox.on(topic, **options)

    def outbox_to(self, topic: str, sink: Sink, /, **options: Any) -> None:
        """Send the messages of an outbox topic, or of many, to a sink."""
        self.outbox.to(topic, sink, **options)

    def as_of(self, at: datetime | None) -> "PastApplication":
        """Return the application's queries as of an instant; None means now."""
        return PastApplication(self, at)

    async def replay(
        self, name: str, since: datetime, until: datetime, /, *, auth: Auth = ANYONE, **arguments: Any
    ) -> AsyncIterator[tuple[datetime, Any]]:
        """Yield each successive result of a query, with the recorded instant from which it held."""
        call = self.registry.call(name, arguments, auth)
        with database(self._config()) as found:
            last: Any = _NOTHING
            for instant in await past.instants(found.url, since, until):
                value = (await past.ask(found.url, call, instant)).value
                if last is _NOTHING or value != last:
                    yield instant, value
                last = value

    async def revoke(self, *, user: str | None = None, tenant: str | None = None, token_id: str | None = None) -> None:
        """Refuse the tokens issued up to now, and end the sessions that use them, on every node at once."""
        node = self.asgi().node
        if node is None:
            raise ServerError("the application is not running", fix="call it while the application serves")
        await node.bus.publish("revoke", {"user": user, "tenant": tenant, "token_id": token_id, "at": node.bus.now()})

    def _config(self) -> Config:
        """Return the effective configuration, with the flags of `forge serve`; the application's URL overrides it."""
        given = _serve_flags()
        file = given.pop("config", None)
        given.pop("host", None)
        config = load(given, os.environ, Path(file) if file else None)
        return config if self._url is None else msgspec.structs.replace(config, database_url=self._url)

    def check(self, waiting: Callable[[str], None] | None = None) -> None:
        """Raise any error that would prevent the application from starting.

        With `waiting`, wait for a server that starts up or shuts down, after calling it once with a line that says so.
        """
        with database(self._config(), create=True) as found:
            if not found.embedded:
                if waiting is not None:
                    await_server(found.url, waiting)
                with connect(found.url) as connection:
                    require_installed(connection)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        """Run a node of this application during the block; it also maintains the log."""
        config = self._config()
        with database(config, create=True) as found:
            if found.embedded:
                with connect(found.url) as connection:
                    install(connection)
            runner = Runner(
                found.url,
                replicas=self._replicas,
                connections=in_force(self._connections, config),
                live_connections=in_force(self._live_connections, config),
                timeout=in_force(self._timeout, config),
            )
            reactor = Reactor(runner, found.url, in_force(self.settings, config))
            caching = any(query.cache is not False for query in self.registry.queries.values())
            cached = Cached(reactor, self.cache) if caching else None
            node = Node(self.registry, reactor, in_force(self.options, config), cached=cached)
            node.own = console.registry(node, config, title=self._title)
            await node.start()
            policy = Policy(
                retention_days=config.retention_days, size_limit=config.log_size_limit, hold_days=config.hold_days
            )
            keeping = asyncio.get_running_loop().create_task(maintain(found.url, policy))
            keeping.add_done_callback(_ended)
            try:
                async with (
                    self._consuming(found.url, node.bus, config) as consuming,
                    self._draining(found.url, node.bus, config) as sending,
                ):
                    node.instruments.consumers = consuming.samples
                    node.instruments.outbox = sending.samples
                    yield node
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                await node.stop()

    async def consume(self) -> None:
        """Run the consumers, without serving, until cancelled; `forge consumers run` does this."""
        config = self._config()
        with database(config, create=True) as found:
            if found.embedded:
                with connect(found.url) as connection:
                    install(connection)
            bus = Bus(found.url)
            await bus.start()
            try:
                settings = ConsumerSettings(wakeup=config.wakeup)
                async with self._consuming(found.url, bus, config, settings) as consuming:
                    await consuming.ended
            finally:
                await bus.stop()

    @contextlib.asynccontextmanager
    async def _consuming(
        self,
        url: str,
        bus: Bus,
        config: Config,
        settings: ConsumerSettings = ConsumerSettings(),  # noqa: B008
    ) -> AsyncIterator[ConsumerNode]:
        """Run the consumers during the block; calls in progress may finish."""
        settings = in_force(settings, config)
        consuming = ConsumerNode(url, self.consumers.named.values(), settings, configured=Configured())
        consuming.told = functools.partial(bus.publish, "own", ["consumer", "dead_letter"])
        try:
            async with consuming.running():
                yield consuming
        finally:
            await consuming.close()

    async def drain(self) -> None:
        """Send the outbox's messages, without serving, until cancelled; `forge outbox run` does this."""
        config = self._config()
        with database(config, create=True) as found:
            if found.embedded:
                with connect(found.url) as connection:
                    install(connection)
            bus = Bus(found.url)
            await bus.start()
            try:
                async with self._draining(found.url, bus, config) as draining:
                    await draining.ended
            finally:
                await bus.stop()

    @contextlib.asynccontextmanager
    async def _draining(self, url: str, bus: Bus, config: Config) -> AsyncIterator[OutboxNode]:
        """Send the outbox's messages during the block; batches in progress may finish."""
        draining = OutboxNode(url, self.outbox, in_force(OutboxSettings(), config))
        draining.told = functools.partial(bus.publish, "own", ["outbox", "outbox_later", "outbox_dead"])
        try:
            async with draining.running():
                yield draining
        finally:
            await draining.close()

    def asgi(self) -> ForgeApp:
        """Return the application as ASGI, to be served or mounted; always the same one."""
        if self._asgi is None:
            self._asgi = ForgeApp(self.running, title=self._title, hosts=self._hosts)
        return self._asgi

    def _hosts(self) -> tuple[str, ...] | None:
        """Return the hosts that requests may be for, besides this machine; None for all, if there are tokens."""
        if self.options.auth is not None:
            return None
        allowed = in_force(self.options.allowed_hosts, self._config())
        told = _serve_flags().get("host")
        return allowed if told is None else (*allowed, told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as an ASGI app: `uvicorn shop:app` works."""
        await self.asgi()(scope, receive, send)


class PastApplication:
    """An application at a past instant.

    `gap` is about the last query: the requested and the answered instant, and the number of changes of its tables in
    between; None before the first query, and if it read no table.
    """

    def __init__(self, app: Forge, at: datetime | None) -> None:
        self._app = app
        self._at = at
        self.gap: Gap | None = None

    async def query(self, name: str, /, *, auth: Auth = ANYONE, **arguments: Any) -> Any:
        """Return what the query would have returned then."""
        call = self._app.registry.call(name, arguments, auth)
        with database(self._app._config()) as found:
            then = await past.ask(found.url, call, self._at)
        self.gap = then.gap
        return then.value


def _free(name: str) -> None:
    """Raise for a name that an endpoint's consumer could have."""
    if name.startswith(WEBHOOK):
        raise ConsumerInvalid(f"{name} is the name of a webhook's consumer", fix=f"leave out {WEBHOOK}")


def _serve_flags() -> dict[str, Any]:
    """Return the flags of `forge serve`, if it runs this process."""
    given: dict[str, Any] = msgspec.json.decode(os.environ.get(SERVE_FLAGS, "{}"))
    return given


def _ended(keeping: "asyncio.Task[None]") -> None:
    if not keeping.cancelled() and (error := keeping.exception()) is not None:
        _log.error("nobody on this node looks after the log any more: %s", error)
