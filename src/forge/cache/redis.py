"""Store in Redis, shared by all nodes that use it.

    PREFIX:e:KEY     an entry, with its time to live
    PREFIX:l:KEY     the lease of the node that computes it
    PREFIX:stamps    the stamps, a hash; it expires a day after its last use

Nothing else is written, so nothing remains after the entries have expired. A restarted store is empty or old. Old
entries are harmless (see `forge.cache.validity`), but old stamps are not: the epoch therefore begins with the server's
own run id, and entries of another run are not used.

When Redis does not answer in time, the store is not `up`: callers stop waiting for it, and a background task of the
store probes it until it answers. Stamps that could not be written are kept, and written before the store counts as up
again.
"""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from forge.backoff import Backoff
from forge.cache.entry import EPOCH, CacheEntry, Stamps, fresh
from forge.cache.store import ComputeLease
from forge.errors import ConfigError, one_line

try:
    import redis
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError:  # pragma: no cover
    redis = None  # type: ignore[assignment]

MOST_STAMPS: Final = 1000
STAMPS_LIVE: Final = 86_400
LEASE: Final = 3.0
"""Duration of a lease in seconds; the holder renews it."""
PROBE: Final = (0.1, 5.0)
"""Seconds between probes after Redis failed: the first delay and the maximum."""
CONNECTIONS: Final = 8

_PUT: Final = """
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
redis.call('EXPIRE', KEYS[3], ARGV[4])
return 1
"""
_BEGIN: Final = """
local epoch = redis.call('HGET', KEYS[1], '')
if not epoch or string.sub(epoch, 1, #ARGV[1] + 1) ~= ARGV[1] .. '.' then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], '', ARGV[1] .. '.' .. ARGV[2])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return redis.call('HGETALL', KEYS[1])
"""
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1"
_RENEW: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 1"

_log = logging.getLogger(__name__)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(CacheEntry).decode


class Redis:
    """A store that nodes share. `timeout` is the maximum duration of a request, in seconds."""

    shared = True

    def __init__(self, url: str, *, prefix: str = "forge", timeout: float = 0.2) -> None:
        if redis is None:
            raise ConfigError("the cache's Redis needs a library", fix='pip install "forge-changes[redis]"')
        self.on_gone: Callable[[str, CacheEntry], None] = lambda key, entry: None
        self.failures = 0
        self.stamped = 0
        self._url = url
        self._prefix = prefix
        self._timeout = timeout
        self._up = False
        self._run = ""
        self._owed: set[str] | None = set()
        self._owing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._probing: asyncio.Task[None] | None = None
        self._renewing: dict[str, asyncio.Task[None]] = {}
        self._client: Any = None
        self._room = asyncio.Semaphore(CONNECTIONS)
        options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        try:
            self._sync = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)
        except (ValueError, redis.RedisError) as error:
            raise ConfigError(f"the cache's URL is malformed: {error}", fix="write it as redis://host:6379/0") from None
        self._options = options

    @property
    def up(self) -> bool:
        return self._up

    async def open(self) -> None:
        """Connect; if Redis is unreachable, keep probing it, and work without it."""
        self._loop = asyncio.get_running_loop()
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            self._url,
            max_connections=CONNECTIONS + 1,
            timeout=self._timeout,
            retry=AsyncRetry(NoBackoff(), 0),
            redis_connect_func=self._connected,
            **self._options,
        )
        self._client = redis.asyncio.Redis(connection_pool=pool)
        self._begin = self._client.register_script(_BEGIN)
        self._put = self._client.register_script(_PUT)
        self._release = self._client.register_script(_RELEASE)
        self._renew = self._client.register_script(_RENEW)
        if not await self._answers():
            self._down("it does not answer")

    async def close(self) -> None:
        self._up = False
        for task in [*self._renewing.values(), *([self._probing] if self._probing else [])]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                await self._client.aclose()
            await self._client.connection_pool.disconnect()
            self._client = None
        self._sync.close()

    async def get(self, key: str) -> CacheEntry | None:
        found: list[Any] | None = await self._asked(lambda: self._read(key))
        return None if found is None else self._entry(found[0], _texts(found[1]))

    async def lease(self, key: str) -> ComputeLease:
        token = fresh()
        found: list[Any] | None = await self._asked(lambda: self._claim(key, token))
        if found is None:
            return ComputeLease(None, None)
        held, raw, stamps = bool(found[0]), found[1], _texts(found[2])
        if not self._current(stamps):
            begun: list[Any] | None = await self._asked(self._begun)
            if begun is None:
                return ComputeLease(None, None)
            stamps = _texts(dict(zip(begun[::2], begun[1::2], strict=True)))
        if held:
            self._renewing[key] = asyncio.get_running_loop().create_task(self._renewed(key, token))
        return ComputeLease(token if held else None, stamps, self._entry(raw, stamps))

    async def put(self, key: str, entry: CacheEntry, ttl: float, token: str) -> bool:
        self._unrenewed(key)
        names = [self._name("e", key), self._name("l", key), self._name("stamps")]
        life = [max(1, int(ttl * 1000)), max(STAMPS_LIVE, int(2 * ttl))]
        done = await self._asked(lambda: self._put(keys=names, args=[_encode(entry), token, *life]))
        return bool(done == 1)

    async def release(self, key: str, token: str) -> None:
        self._unrenewed(key)
        await self._asked(lambda: self._release(keys=[self._name("l", key)], args=[token]))

    async def drop(self, key: str) -> None:
        await self._asked(lambda: self._client.delete(self._name("e", key), self._name("l", key)))

    def touched(self, key: str) -> None:
        """Do nothing: every node detects it on its own."""

    def stamp(self, names: Sequence[str]) -> None:
        with self._owing:
            self.stamped += 1
            if self._up:
                try:
                    self._stamp(names)
                    return
                except (redis.RedisError, OSError) as error:
                    self._up = False
                    if self._loop is not None and not self._loop.is_closed():
                        self._loop.call_soon_threadsafe(self._down, one_line(error))
            if not names:
                self._owed = None
            elif self._owed is not None:
                self._owed.update(names)

    # Requests to Redis

    def _stamp(self, names: Sequence[str]) -> None:
        stamps = self._name("stamps")
        with self._sync.pipeline(transaction=True) as pipe:
            if names:
                pipe.hset(stamps, mapping={name: fresh() for name in names})
                pipe.expire(stamps, STAMPS_LIVE)
                pipe.hlen(stamps)
                if pipe.execute()[-1] <= MOST_STAMPS:
                    return
            pipe.delete(stamps)
            pipe.execute()

    async def _read(self, key: str) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.get(self._name("e", key))
            pipe.hgetall(self._name("stamps"))
            found: list[Any] = await pipe.execute()
            return found

    async def _claim(self, key: str, token: str) -> list[Any]:
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.set(self._name("l", key), token, nx=True, px=int(LEASE * 1000))
            pipe.get(self._name("e", key))
            pipe.hgetall(self._name("stamps"))
            found: list[Any] = await pipe.execute()
            return found

    async def _begun(self) -> list[Any]:
        """Return the stamps of a new epoch, if the stored ones are from an earlier run of the server or missing."""
        found: list[Any] = await self._begin(keys=[self._name("stamps")], args=[self._run, fresh(), STAMPS_LIVE])
        return found

    def _current(self, stamps: Stamps) -> bool:
        return stamps.get(EPOCH, "").partition(".")[0] == self._run and EPOCH in stamps

    def _entry(self, raw: bytes | None, stamps: Stamps) -> CacheEntry | None:
        if raw is None or not self._current(stamps):
            return None
        try:
            entry = _decode(raw)
        except msgspec.MsgspecError:
            return None
        return entry if entry.stands(stamps) else None

    async def _asked(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer; None after a timeout or an error."""
        if not self._up:
            return None
        try:
            async with self._room, self._in_time():
                return await ask() if self.up else None
        except (redis.ConnectionError, redis.TimeoutError, OSError, TimeoutError) as error:
            self._down(one_line(error))
        except redis.RedisError as error:
            self.failures += 1
            if self.failures & (self.failures - 1) == 0:
                _log.warning("the cache's Redis refuses (%d times by now): %s", self.failures, one_line(error))
        return None

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Limit the time of the block. A cancellation that redis-py swallowed is raised at its end.

        redis-py sends with `asyncio.wait_for`, which before Python 3.12 drops a cancellation that arrives together
        with the result. A renewal that missed its cancellation would run forever, and `close` would wait for it.
        """
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        async with asyncio.timeout(self._timeout):
            yield
        if task is not None and task.cancelling() > cancelled:
            raise asyncio.CancelledError

    async def _renewed(self, key: str, token: str) -> None:
        while True:
            await asyncio.sleep(LEASE / 3)
            await self._asked(
                functools.partial(self._renew, keys=[self._name("l", key)], args=[token, int(LEASE * 1000)])
            )

    def _unrenewed(self, key: str) -> None:
        if (task := self._renewing.pop(key, None)) is not None:
            task.cancel()

    # Up and down

    def _down(self, why: str) -> None:
        self._up = False
        if self._probing is None and self._client is not None:
            _log.warning("the cache's Redis is not used until it answers: %s", why)
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        backoff = Backoff(*PROBE)
        while True:
            await asyncio.sleep(backoff.next())
            if await self._answers():
                _log.warning("the cache's Redis answers again")
                self._probing = None
                return

    async def _answers(self) -> bool:
        """Whether Redis answers and has received all pending stamps; then it is up."""
        try:
            async with self._in_time():
                await self._client.ping()
            if not await asyncio.to_thread(self._pay):
                return False
        except (redis.RedisError, OSError, TimeoutError):
            return False
        return True

    def _pay(self) -> bool:
        with self._owing:
            if self._owed is None or self._owed:
                try:
                    self._stamp(sorted(self._owed or ()))
                except (redis.RedisError, OSError):
                    return False
                self._owed = set()
            self._up = True
            return True

    async def _connected(self, connection: Any) -> None:
        """Determine the server's run id for a new connection."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        answer = await connection.read_response()
        text = answer.decode() if isinstance(answer, bytes) else str(answer)
        self._run = next((line[7:].strip() for line in text.splitlines() if line.startswith("run_id:")), "")

    def _name(self, kind: str, key: str = "") -> str:
        return f"{self._prefix}:{kind}:{key}" if key else f"{self._prefix}:{kind}"


def _texts(found: dict[Any, Any]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
