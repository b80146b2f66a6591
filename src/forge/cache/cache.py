"""Query cache: `forge.Cache`.

    cache = forge.Cache()                                   # in this process
    cache = forge.Cache("redis://127.0.0.1:6379/0")         # shared by all nodes

    app = forge.Forge(cache=cache)                          # for @app.query(cache=60)

    async with forge.Cache(database=url) as cache:          # without an application
        rows = await cache.fetch("SELECT … WHERE id = %(id)s", {"id": 7}, tables=["orders"], ttl=60)
        best = await cache.fetch("best sellers", load=best_sellers, tables=["orders"])

`forge.cache.validity` defines when an entry may be returned. With a database, its log invalidates entries, for every
writer. Without one (MariaDB, SQLite), entries are invalidated by the writes that `forge.track` sees in this process, or
with Redis in all processes, by `invalidate`, and by their time to live.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from forge.cache import values
from forge.cache.entry import CacheEntry, of_tables, qualified
from forge.cache.memory import Memory
from forge.cache.store import Store
from forge.cache.tables import TableMatcher, Tables
from forge.cache.validity import CacheMetrics, ComputedValue, Matcher, ValidCache
from forge.change import Op
from forge.changelog.follow import follow
from forge.cursor import After, Cursor, Snapshot
from forge.errors import ConfigError, CursorError, ForgeError, ServerError, TrackingError
from forge.postgres.connection import AsyncConnection, parameters, pin, translate
from forge.postgres.session import USERS
from forge.tracking import events

CONNECTIONS: Final = 8
_log = logging.getLogger(__name__)
_UNTRACKED: Final = """
SELECT n FROM unnest(%s::text[]) n WHERE NOT EXISTS (
    SELECT FROM forge.tracked_table t WHERE t.schema_name || '.' || t.table_name = n AND t.disabled_at IS NULL)
"""
Parameters = Mapping[str, Any] | Sequence[Any]
Load = Callable[[], Awaitable[Any]]
Reads = TypeVar("Reads")


class Cache:
    """Entries in this process, or in the Redis at a URL.

    `ttl` is the maximum lifetime of an entry in seconds, unless a query sets its own. `tables` sets it for queries that
    read a table: seconds, or False to cache nothing. `prefix` separates applications that share a Redis; include the
    release in it if a release changes what queries return. `max_bytes` and `max_entries` limit the memory of this
    process. `timeout` is the maximum wait for an answer from Redis.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        database: str | None = None,
        prefix: str = "forge",
        ttl: float = 60.0,
        tables: Mapping[str, float | bool] | None = None,
        max_bytes: int = 64 << 20,
        max_entries: int = 10_000,
        max_entry_bytes: int = 4 << 20,
        timeout: float = 0.2,
    ) -> None:
        if not ttl > 0 or not timeout > 0:
            raise ConfigError("ttl and timeout are seconds above 0", fix="give seconds, such as ttl=60")
        if url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigError(f"{url[:60]!r} is not the URL of a Redis", fix="write it as redis://host:6379/0")
        self.store: Store
        if url is None:
            self.store = Memory(max_bytes=max_bytes, max_entries=max_entries)
        else:
            from forge.cache.redis import Redis  # its library is an optional extra

            self.store = Redis(url, prefix=prefix, timeout=timeout)
        self.ttl = ttl
        self._tables = {qualified(table): life for table, life in (tables or {}).items()}
        self._max_entry_bytes = min(max_entry_bytes, max_bytes)
        self._database = database
        self._pool: AsyncConnectionPool[AsyncConnection] | None = None
        self._keepers: list[ValidCache[Any]] = []
        self._own: ValidCache[Tables] | None = None
        self._users = 0
        self._feeder: ValidCache[Any] | None = None
        self._following: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._checked: set[str] = set()

    @property
    def metrics(self) -> CacheMetrics:
        """Counters of all uses of the cache."""
        counted = [keeper.metrics for keeper in self._keepers]
        return CacheMetrics(*(sum(getattr(one, name) for one in counted) for name in CacheMetrics.__struct_fields__))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, *, fed: bool = False) -> None:
        """Connect, and follow the database's log if there is a database and no application feeds the cache."""
        self._users += 1
        if self._users > 1:
            return
        self.store.on_gone = self._gone
        await self.store.open()
        self._stop_listening = events.listen(self._heard, rows=False)
        if self._database is not None and not fed:
            self._own = self._kept(TableMatcher())
            following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._following = asyncio.get_running_loop().create_task(self._follow(self._database, following))
            try:
                await asyncio.wait_for(following, 60)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Close the cache; an application that still uses it may continue."""
        self._users -= 1
        if self._users:
            return
        if self._stop_listening is not None:
            self._stop_listening()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        for keeper in self._keepers:
            await keeper.close()
        self._keepers, self._own = [], None
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        await self.store.close()

    # For applications

    async def attach(self, matcher: Matcher[Any], database: str) -> ValidCache[Any]:
        """Return a keeper for an application, which feeds it from its own log reader."""
        if self._database not in (None, database):
            raise ConfigError("the cache follows another database than the application", fix="leave out its database=")
        self._database = database
        await self.open(fed=True)
        keeper = self._kept(matcher)
        if self._following is None and self._feeder is None:
            self._feeder = keeper
        return keeper

    async def detach(self, keeper: ValidCache[Any]) -> None:
        """Detach an application that ends."""
        await keeper.close()
        if keeper in self._keepers:
            self._keepers.remove(keeper)
        if keeper is self._feeder:
            self._feeder = next((other for other in self._keepers if other is not self._own), None)
            if self._own is not None:
                self._own.lose()
        await self.close()

    def fed_by(self, keeper: ValidCache[Any]) -> list[ValidCache[Any]]:
        """Return the keepers that an application feeds; the cache's own keeper has one feeder, like every keeper."""
        return [keeper, self._own] if keeper is self._feeder and self._own is not None else [keeper]

    def wrote(self, xid: int, tables: frozenset[str] | None) -> None:
        """Record a committed transaction of this process."""
        for keeper in self._keepers:
            keeper.wrote(xid, tables)

    def life(self, tables: Sequence[str], ttl: float | None = None) -> float | None:
        """Return the maximum lifetime of an entry that reads these tables; None means that it is not cached."""
        lives = [self._tables[table] for table in tables if table in self._tables]
        if any(life is False for life in lives):
            return None
        given = [float(life) for life in lives if life is not True]
        return min([self.ttl if ttl is None else ttl, *given])

    # Public API

    async def fetch(
        self,
        what: str,
        parameters: Parameters | None = None,
        /,
        *,
        tables: Sequence[str],
        ttl: float | None = None,
        load: Load | None = None,
        after: str | int | None = None,
    ) -> Any:
        """Return the rows of a statement, as dicts; or, with `load`, the return value of `load`, under the name `what`.

        `tables` lists the tables it reads: a change of one of them invalidates the entry. `after` is the number of a
        transaction that must be in the result, from the answer of a mutation.
        """
        if self._own is None:
            self._own = self._kept(TableMatcher(), logged=self._database is not None)
            self._own.lose()  # a log read in progress may miss earlier writes of this process
        own = self._own
        if not tables:
            raise ConfigError("a cached query must name the tables that it reads", fix='pass tables=["orders"]')
        read = tuple(qualified(table) for table in tables)
        run: Callable[[After], Awaitable[ComputedValue[Tables]]]
        if load is not None:
            run = partial(self._load, load, read, ttl)
        elif self._database is not None:
            run = partial(self._select, what, parameters, read, ttl)
        else:
            raise ConfigError("a statement needs a database to run on", fix="Cache(database=…), or pass load=")
        kind = "load" if load is not None else "sql"
        asked = values.encode([kind, what, _plain(parameters), list(read)])
        key = "f" + hashlib.sha256(asked).hexdigest()[:40]
        shown = await own.ask(key, what, run, After.parse(None if after is None else str(after)))
        return values.decode(shown.value)

    async def invalidate(self, *tables: str, key: str | None = None, prefix: str | None = None) -> None:
        """Invalidate entries that read one of the tables, have this name or this name prefix; without arguments, all.

        The name is that of the query, or the one given to `fetch`. Complete on all nodes when this returns.
        """
        names = of_tables(tables)
        names += [] if key is None else [f"n:{key}"]
        names += [] if prefix is None else [f"p:{prefix}"]
        if self.store.shared:
            await asyncio.to_thread(self.store.stamp, names)
        else:
            self.store.stamp(names)

    # Internals

    def _kept(self, matcher: Matcher[Any], *, logged: bool = True) -> ValidCache[Any]:
        keeper = ValidCache(self.store, matcher, logged=logged, max_entry_bytes=self._max_entry_bytes)
        self._keepers.append(keeper)
        return keeper

    def _gone(self, key: str, entry: CacheEntry) -> None:
        for keeper in self._keepers:
            keeper.gone(key, entry)

    def _heard(self, engine: Any, heard: Sequence[events.Event]) -> None:
        """Handle the writes that `forge.track` saw in this process, before their commit returns."""
        tables = {(event.schema, event.table) for event in heard}
        if any(table is None for _, table in tables):
            self.store.stamp([])
        elif tables and engine.dialect.name != "postgresql":
            # orders, Orders and main.orders may be one table in that database
            self.store.stamp(of_tables(str(table) for _, table in tables))
        elif tables:
            self.store.stamp(of_tables(f"{schema}.{table}" if schema else str(table) for schema, table in tables))

    async def _select(
        self, statement: str, parameters: Parameters | None, read: Tables, ttl: float | None, after: After
    ) -> ComputedValue[Tables]:
        async with self._connection() as connection:
            await self._check(connection, read)
            async with connection.transaction():
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                snapshot = await _snapshot(connection)
                rows = await connection.cursor(row_factory=dict_row).execute(statement.encode(), parameters)
                value = await rows.fetchall() if rows.description else []
        return self._found(value, snapshot, read, ttl)

    async def _load(self, load: Load, read: Tables, ttl: float | None, after: After) -> ComputedValue[Tables]:
        snapshot = None
        if self._database is not None:
            async with self._connection() as connection:
                await self._check(connection, read)
                snapshot = await _snapshot(connection)  # the loaded data contains at least this snapshot
        return self._found(await load(), snapshot, read, ttl)

    def _found(self, value: Any, snapshot: Snapshot | None, read: Tables, ttl: float | None) -> ComputedValue[Tables]:
        raw = values.encode(value)
        return ComputedValue(raw, hashlib.sha256(raw).hexdigest()[:32], snapshot, read, read, self.life(read, ttl))

    async def _check(self, connection: AsyncConnection, read: Tables) -> None:
        """Refuse a table that is not tracked, because nothing would invalidate its entries."""
        if self._checked.issuperset(read):
            return
        missing = await (await connection.execute(_UNTRACKED, (list(read),))).fetchall()
        if missing:
            name = missing[0][0].removeprefix("public.")
            raise TrackingError(f"{name} is not tracked, so nothing tells when it changes", fix=f"forge enable {name}")
        self._checked.update(read)

    @contextlib.asynccontextmanager
    async def _connection(self) -> Any:
        assert self._database is not None
        if self._pool is None:
            self._pool = AsyncConnectionPool(
                kwargs={**parameters(self._database, application_name="forge cache"), "autocommit": True},
                configure=partial(pin, settings=USERS),
                min_size=0,
                max_size=CONNECTIONS,
                open=False,
                timeout=30.0,
            )
            await self._pool.open()
        try:
            async with self._pool.connection() as connection:
                yield connection
        except PoolTimeout as error:
            raise ServerError("no connection to the database came free in time", fix="look at the server") from error
        except psycopg.Error as error:
            raise translate(error) or error from error

    async def _follow(self, database: str, following: "asyncio.Future[None]") -> None:
        lost = False

        def opened(restarted: bool) -> None:
            nonlocal lost
            if restarted or lost:
                lost = False
                self._lose()
            if not following.done():
                following.set_result(None)

        def read(cursor: Cursor, started: str) -> None:
            if self._own is not None:
                self._own.read(cursor, started)

        while True:
            try:
                batches = follow(database, durable=False, on_open=opened, on_read=read)
                async with contextlib.aclosing(batches):
                    async for batch in batches:
                        if self._own is not None:
                            self._own.take(batch.changes)
                        if any(change.op is Op.SCHEMA for change in batch.changes):
                            self._lose()
            except CursorError as error:
                _log.warning("the log cannot be followed from where it was left, the cache begins again: %s", error)
            except ForgeError as error:
                if not following.done():
                    following.set_exception(error)
                    return
                _log.error("the log cannot be followed, the cache is not used: %s (fix: %s)", error, error.fix)
                await asyncio.sleep(1.0)
            except Exception:
                _log.exception("following the log failed, trying again")
                await asyncio.sleep(1.0)
            lost = True

    def _lose(self) -> None:
        self._checked.clear()
        if self._own is not None:
            self._own.lose()


async def _snapshot(connection: AsyncConnection) -> Snapshot:
    row = await (await connection.execute("SELECT pg_current_snapshot()::text")).fetchone()
    assert row is not None
    return Snapshot.parse(row[0])


def _plain(parameters: Parameters | None) -> Any:
    return dict(sorted(parameters.items())) if isinstance(parameters, Mapping) else list(parameters or ())
