"""Sink for Redis Streams.

Each message becomes one entry, with its headers and its `payload` as fields.

Invariants:

- Entries are added by a script on one connection, in the given order, and none after one that Redis did not accept.
- After a failure the connection is closed, and the next one kills what the server still has of it, so no abandoned
  entry arrives after later ones. (A user without permission for `CLIENT KILL` may get such late copies, with the same
  id.)
- With `dedupe`, an id that was added within that number of seconds is not added again.

Redis answers before its disk and its replicas have the entry; `appendfsync always` and `replicas` change that.
"""

import asyncio
import importlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

from forge.deliver.entry import filled, headers, share, template, unfit_header, without_password
from forge.deliver.message import Message
from forge.errors import ConfigError, DeliveryRefused, NotDelivered

PAYLOAD: Final = "payload"
LARGEST: Final = 512 << 20
"""The default maximum size of a field in Redis, in bytes (proto-max-bulk-len)."""
_ALWAYS_TAKEN: Final = 1 << 20
_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1 << 20

_ADD: Final = """
local window, at = tonumber(ARGV[2]), 3
for place, stream in ipairs(KEYS) do
  local id, fields = ARGV[at], tonumber(ARGV[at + 1])
  local seen, fresh = '{' .. stream .. '}:seen:' .. id, true
  if window > 0 then fresh = redis.pcall('SET', seen, '', 'NX', 'PX', window) end
  if type(fresh) == 'table' and fresh.err then return {place - 1, fresh.err} end
  if fresh then
    local added
    if ARGV[1] == '' then added = redis.pcall('XADD', stream, '*', unpack(ARGV, at + 2, at + 1 + fields))
    else added = redis.pcall('XADD', stream, 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, at + 2, at + 1 + fields)) end
    if type(added) == 'table' and added.err then
      if window > 0 then redis.call('DEL', seen) end
      return {place - 1, added.err}
    end
  end
  at = at + 2 + fields
end
return {#KEYS, ''}
"""


class RedisStreams:
    """A sink that adds to streams.

    `stream` is the template of a topic's stream; `streams` is the number of streams per topic, `….0`, `….1`, and a key
    is always in the same. `maxlen` is the approximate number of entries kept in each. `dedupe` is the time in seconds
    for which an id is remembered, `replicas` the number of replicas that must have an entry, `timeout` the maximum
    duration of one `send` in seconds.
    """

    def __init__(
        self,
        url: str,
        stream: str = "forge.{topic}",
        *,
        maxlen: int | None = None,
        streams: int = 1,
        dedupe: float = 0.0,
        replicas: int = 0,
        timeout: float = 10.0,
    ) -> None:
        self._stream = template(stream, "stream", "topic")
        for name, value, least in (
            ("maxlen", 1 if maxlen is None else maxlen, 1),
            ("streams", streams, 1),
            ("dedupe", dedupe, 0),
            ("replicas", replicas, 0),
            ("timeout", timeout, 0.001),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}", fix=f"give {name} as {least} or more")
        try:
            self._redis: Any = importlib.import_module("redis.asyncio")
            self._errors: Any = importlib.import_module("redis.exceptions")
            self._retry: Any = importlib.import_module("redis.asyncio.retry")
            self._backoff: Any = importlib.import_module("redis.backoff")
        except ModuleNotFoundError:
            raise ConfigError("messages to Redis need a library", fix='pip install "forge-changes[redis]"') from None
        try:
            self._pool = self._redis.ConnectionPool.from_url(
                url,
                client_name=f"forge-{uuid.uuid4().hex}",
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=self._retry.Retry(self._backoff.NoBackoff(), 0),
                decode_responses=False,
            )
        except ValueError as error:
            raise ConfigError(f"the URL is malformed: {error}", fix="write it as redis://host:6379/0") from None
        self._where = without_password(url)
        self._maxlen = b"" if maxlen is None else b"%d" % maxlen
        self._streams = streams
        self._dedupe = b"%d" % int(dedupe * 1000)
        self._replicas = replicas
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._connection: Any = None
        self._transport: asyncio.WriteTransport | None = None
        self._given_up: int | None = None
        self._number: int | None = None

    def __repr__(self) -> str:
        return f"RedisStreams({self._where!r}, {self._stream!r})"

    async def send(self, messages: Sequence[Message], /) -> None:
        async with self._turn:
            delivered = 0
            try:
                async with asyncio.timeout(self._timeout):
                    try:
                        for some in _chunks(messages):
                            await self._add(some, delivered)
                            delivered += len(some)
                    except DeliveryRefused:
                        await self._replicated()
                        raise
                    await self._replicated()
            except DeliveryRefused:
                raise
            except BaseException as error:
                await self._give_up()
                if isinstance(error, (NotDelivered, OSError, self._errors.RedisError)):
                    raise self._not_delivered(error, delivered) from error
                raise

    async def close(self) -> None:
        async with self._turn:
            await self._give_up()

    async def _add(self, messages: Sequence[Message], before: int) -> None:
        """Add a chunk: all of it, or the entries before the one that the error names."""
        keys: list[str] = []
        arguments: list[str | bytes] = []
        for place, message in enumerate(messages):
            unfit = await self._unfit(message)
            if unfit is not None:
                if keys:
                    await self._script(keys, arguments, before)
                raise DeliveryRefused(f"message {message.id}: {unfit}", place=before + place)
            keys.append(self._stream_of(message))
            fields = headers(message)
            arguments += (f"{message.topic} {message.id}", str(2 * len(fields) + 2))
            for pair in fields.items():
                arguments += pair
            arguments += (PAYLOAD, message.payload)
        await self._script(keys, arguments, before)

    async def _script(self, keys: Sequence[str], arguments: Sequence[str | bytes], before: int) -> None:
        added, trouble = await self._ask("EVAL", _ADD, len(keys), *keys, self._maxlen, self._dedupe, *arguments)
        if trouble:
            said = trouble.decode(errors="replace")
            raise NotDelivered(f"{self._where}: {said}", fix=_fix(said), delivered=before + added)

    def _not_delivered(self, error: BaseException, delivered: int) -> NotDelivered:
        if isinstance(error, NotDelivered):
            said, fix, delivered = str(error), error.fix, error.delivered
        elif isinstance(error, (TimeoutError, self._errors.TimeoutError)):
            said = f"{self._where} did not answer within {self._timeout:g} s"
            fix = "see whether Redis is up and not overloaded"
        else:
            said, fix = f"{self._where}: {_line(error)}", _fix(str(error))
        return NotDelivered(said, fix=fix, delivered=0 if self._replicas else delivered)

    async def _replicated(self) -> None:
        if not self._replicas or self._connection is None:
            return
        there = await self._ask("WAIT", self._replicas, int(self._timeout * 500))
        if there < self._replicas:
            raise NotDelivered(
                f"{there} of {self._replicas} replicas of {self._where} have it", fix="see to the replicas"
            )

    def _stream_of(self, message: Message) -> str:
        name = filled(self._stream, topic=message.topic)
        return name if self._streams == 1 else f"{name}.{share(message.key, self._streams)}"

    async def _unfit(self, message: Message) -> str | None:
        if PAYLOAD in message.headers:
            return f"the header {PAYLOAD!r} has the name of the payload's field"
        size = len(message.payload)
        if size > _ALWAYS_TAKEN and size > (most := await self._largest()):
            return f"{size} bytes are more than {self._where} takes, which is {most}"
        return unfit_header(message)

    async def _largest(self) -> int:
        """Query the limit in advance: Redis resets the connection for larger fields, which looks like a lost
        connection."""
        try:
            told = await self._ask("CONFIG", "GET", "proto-max-bulk-len")
        except self._errors.ResponseError:  # this user has no permission
            return LARGEST
        return int(told[1] if isinstance(told, list) else told[b"proto-max-bulk-len"])

    async def _ask(self, *words: Any) -> Any:
        connection = self._connection or await self._connect()
        await connection.send_command(*words)
        return await connection.read_response()

    async def _connect(self) -> Any:
        connection = self._connection = self._pool.make_connection()
        await connection.connect()
        self._transport = connection._writer.transport
        await connection.send_command("CLIENT", "ID")
        self._number = await connection.read_response()
        if self._given_up is not None:
            await self._end(connection, self._given_up)
            self._given_up = None
        return connection

    async def _end(self, connection: Any, number: int) -> None:
        """Make the server drop unread data of the abandoned connection.

        After a restart the number may belong to another client, so the name is checked.
        """
        try:
            await connection.send_command("CLIENT", "LIST", "ID", number)
            if f"name={connection.client_name}".encode() in await connection.read_response():
                await connection.send_command("CLIENT", "KILL", "ID", number)
                await connection.read_response()
        except self._errors.ResponseError:
            return  # no permission, or already gone: the module describes the consequence

    async def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._number is not None:
            self._given_up, self._number = self._number, None
        if self._transport is not None:
            self._transport.abort()  # disconnect() alone would continue to send buffered data
            self._transport = None
        await connection.disconnect(nowait=True)


def _chunks(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split messages into chunks that block Redis only briefly; a large message is alone."""
    start, size = 0, 0
    for place, message in enumerate(messages):
        if place > start and (place - start >= _AT_ONCE or size + len(message.payload) > _BYTES_AT_ONCE):
            yield messages[start:place]
            start, size = place, 0
        size += len(message.payload)
    if start < len(messages):
        yield messages[start:]


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_FIXES: Final = {
    "OOM": "give Redis more memory, or the streams a maxlen",
    "WRONGTYPE": "another key has the stream's name: rename one",
    "READONLY": "name the primary in the URL, not a replica",
    "NOAUTH": "put the password into the URL",
    "WRONGPASS": "see to the user and password in the URL",
    "NOPERM": "let the user run EVAL and XADD on these keys",
    "MOVED": "name a Redis that is no cluster: clusters are not supported",
    "CROSSSLOT": "name a Redis that is no cluster: clusters are not supported",
}


def _fix(said: str) -> str:
    return next((fix for word, fix in _FIXES.items() if word in said), "see to Redis")
