"""Sink for NATS JetStream.

Each message is published to a subject with its headers, and is delivered when the stream has acknowledged it.

Invariants:

- The next message of a key is published when the stream has the previous one, so none overtakes an undelivered one.
  Different keys are concurrent.
- The header `Nats-Msg-Id` names subject and message: a copy within the stream's deduplication window (two minutes by
  default) is not stored again.
- After a failure the connection is closed with its unsent data; the next `send` opens another.
"""

import asyncio
import importlib
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from forge.deliver.entry import filled, headers, template, unfit_header, without_password
from forge.deliver.message import Message
from forge.errors import ConfigError, DeliveryRefused, NotDelivered
from forge.tasks import observed

_SUBJECT: Final = re.compile(r"[^\s.*>\0]+(\.[^\s.*>\0]+)*")
_STREAM: Final = re.compile(r"[^\s.*>/\\\0]+")
_PRINTED: Final = "".join(chr(code) for code in range(33, 127) if chr(code) not in "%.*>")
_AT_ONCE: Final = 256
_TOO_LARGE: Final = 10054
_EMPTY: Final = "-"


class Nats:
    """A sink that publishes to JetStream.

    `subject` is the template of a topic's subject, and may contain the key as a token: `forge.{topic}.{key}`. `stream`
    is created if it is missing, for every subject of this form, with about `maxlen` messages kept and ids remembered
    for `dedupe` seconds; with None no stream is created, and any stream with the subject is used. `timeout` is the
    maximum duration of one `send` in seconds.
    """

    def __init__(
        self,
        url: str,
        subject: str = "forge.{topic}",
        *,
        stream: str | None = "forge",
        maxlen: int | None = None,
        dedupe: float = 120.0,
        timeout: float = 10.0,
    ) -> None:
        self._subject = template(subject, "subject", "topic", "key")
        if not _fit(filled(subject, topic="t", key="k")):
            raise ConfigError(f"the subject {subject!r} is none", fix="write it as forge.{topic}")
        if stream is not None and not _STREAM.fullmatch(stream):
            raise ConfigError(f"the stream {stream!r} has no name that NATS takes", fix="leave out . * > / and spaces")
        if maxlen is not None and maxlen < 1:
            raise ConfigError(f"maxlen is {maxlen}", fix="give maxlen as 1 or more")
        if dedupe <= 0 or timeout <= 0:
            raise ConfigError("dedupe and timeout are seconds", fix="give them as more than 0")
        if not url.startswith(("nats://", "tls://", "ws://", "wss://")):
            raise ConfigError(f"{without_password(url)!r} is no URL of NATS", fix="write it as nats://host:4222")
        try:
            self._nats: Any = importlib.import_module("nats")
            self._js: Any = importlib.import_module("nats.js")
        except ModuleNotFoundError:
            raise ConfigError("messages to NATS need a library", fix='pip install "forge-changes[nats]"') from None
        self._servers = _servers(url)
        self._where = without_password(url)
        self._stream = stream
        self._maxlen = maxlen
        self._dedupe = dedupe
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._client: Any = None
        self._inbox = ""
        self._why: Exception | None = None
        self._lost = asyncio.Event()
        self._sending: _Sending | None = None

    def __repr__(self) -> str:
        return f"Nats({self._where!r}, {self._subject!r})"

    async def send(self, messages: Sequence[Message], /) -> None:
        async with self._turn:
            if not messages:
                return
            sending = _Sending(messages)
            try:
                async with asyncio.timeout(self._timeout):
                    if self._client is None:
                        await self._connect()
                    if self._client.is_closed:
                        raise NotDelivered(f"{self._where} has closed the connection", fix="see to NATS")
                    self._sending = sending
                    self._look(sending)
                    await self._start(sending)
                    await sending.over
            except BaseException as error:
                await self._give_up()
                if isinstance(error, (NotDelivered, OSError, self._nats.errors.Error)):
                    raise self._not_delivered(error, sending) from error
                raise
            finally:
                self._sending = None
            if sending.trouble is not None:
                raise sending.trouble

    async def close(self) -> None:
        async with self._turn:
            await self._give_up()

    def _look(self, sending: "_Sending") -> None:
        """Stop at the first message that NATS cannot accept, before any is sent."""
        for place, message in enumerate(sending.messages):
            unfit = self._unfit(message)
            if unfit is not None:
                sending.stop(place, DeliveryRefused(f"message {message.id}: {unfit}", place=place))
                return

    def _unfit(self, message: Message) -> str | None:
        subject = self._subject_of(message)
        if not _fit(subject):
            return f"{subject!r} is no subject"
        if any(name.lower().startswith("nats-") for name in message.headers):
            return "headers named Nats-… are for NATS"
        size = len(message.payload) + sum(len(name) + len(value.encode()) + 4 for name, value in self._headers(message))
        if size + 12 > self._client.max_payload:
            return f"{size + 12} bytes are more than {self._where} takes, which is {self._client.max_payload}"
        return unfit_header(message)

    def _subject_of(self, message: Message) -> str:
        return filled(self._subject, topic=message.topic, key=token(message.key))

    def _headers(self, message: Message) -> list[tuple[str, str]]:
        found = headers(message)
        if message.key is not None:
            found["forge-key"] = quote(message.key, safe=_PRINTED + ".*> ") if _odd(message.key) else message.key
        found["Nats-Msg-Id"] = f"{self._subject_of(message)} {message.id}"
        if self._stream is not None:
            found["Nats-Expected-Stream"] = self._stream
        return list(found.items())

    async def _start(self, sending: "_Sending") -> None:
        """Publish the first message of as many keys as may be in flight; acknowledgements trigger the others."""
        for _ in range(_AT_ONCE):
            place = sending.first_of_next_key()
            if place is None:
                break
            await self._publish(sending, place)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # publish() swallows a cancellation
                raise asyncio.CancelledError
        sending.settle()

    async def _publish(self, sending: "_Sending", place: int) -> None:
        message = sending.messages[place]
        sending.under_way += 1
        await self._client.publish(
            self._subject_of(message),
            message.payload,
            reply=f"{self._inbox}.{sending.number}.{place}",
            headers=dict(self._headers(message)),
        )

    async def _answered(self, answer: Any) -> None:
        sending = self._sending
        number, place = (int(word) for word in answer.subject.split(".")[-2:])
        if sending is None or number != sending.number:
            return
        sending.under_way -= 1
        trouble = self._trouble(answer, sending.messages[place], place)
        if trouble is None:
            sending.taken[place] = True
        else:
            sending.stop(place, trouble)
        following = sending.next_after(place)
        if following is not None:
            try:
                await self._publish(sending, following)
            except self._nats.errors.Error as error:
                sending.fail(error)
        sending.settle()

    def _trouble(self, answer: Any, message: Message, place: int) -> NotDelivered | DeliveryRefused | None:
        if answer.headers and answer.headers.get("Status") == "503":
            return NotDelivered(
                f"no stream of {self._where} takes {self._subject_of(message)!r}",
                fix="make a stream with this subject, or name one for the sink to make",
                delivered=place,
            )
        said = msgspec.json.decode(answer.data).get("error")
        if said is None:
            return None
        text = f"{self._where}: {said.get('description')} (message {message.id})"
        if said.get("err_code") == _TOO_LARGE:
            return DeliveryRefused(text, place=place)
        return NotDelivered(text, fix="see to the stream's limits and NATS's room", delivered=place)

    def _not_delivered(self, error: BaseException, sending: "_Sending") -> NotDelivered:
        delivered = sending.delivered
        if isinstance(error, NotDelivered):
            return NotDelivered(str(error), fix=error.fix, delivered=delivered)
        if isinstance(error, TimeoutError):
            said = f"{self._where} did not answer within {self._timeout:g} s"
            return NotDelivered(said, fix="see whether NATS is up, with JetStream", delivered=delivered)
        said = " ".join(str(error).split()) or type(error).__name__
        return NotDelivered(f"{self._where}: {said}", fix="see to NATS and the URL", delivered=delivered)

    async def _connect(self) -> None:
        client = self._client = self._nats.NATS()
        self._lost.clear()
        try:
            await client.connect(
                self._servers,
                name="forge",
                allow_reconnect=False,
                max_reconnect_attempts=1,  # per server; without it servers that refuse are retried forever
                reconnect_time_wait=0.05,
                connect_timeout=self._timeout / (len(self._servers) + 1),
                closed_cb=self._closed,
                error_cb=self._failed,
            )
        except self._nats.errors.NoServersError:
            why = " ".join(str(self._why).split())
            raise NotDelivered(f"{self._where}: {why}", fix="see to NATS and the URL") from None
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*.*", cb=self._answered)
        if self._stream is not None:
            made = observed(asyncio.ensure_future(self._made(client.jetstream(timeout=self._timeout), self._stream)))
            lost = asyncio.ensure_future(self._lost.wait())  # a request does not notice a lost connection
            try:
                await asyncio.wait({made, lost}, return_when=asyncio.FIRST_COMPLETED)
                if not made.done():
                    raise ConnectionResetError("the connection is lost")
                made.result()
            finally:
                made.cancel()
                lost.cancel()

    async def _made(self, jetstream: Any, stream: str) -> None:
        try:
            await jetstream.stream_info(stream)
        except self._js.errors.NotFoundError:
            await jetstream.add_stream(
                name=stream,
                subjects=[_pattern(self._subject)],
                max_msgs=self._maxlen or -1,
                duplicate_window=self._dedupe,
            )

    async def _closed(self) -> None:
        self._lost.set()
        if self._sending is not None:
            self._sending.fail(ConnectionResetError("the connection is lost"))

    async def _failed(self, error: Exception) -> None:
        """Record an error of the connection; it ends the current send."""
        self._why = error
        if self._sending is not None:
            self._sending.fail(error)

    async def _give_up(self) -> None:
        client, self._client, self._sending = self._client, None, None
        if client is None:
            return
        # close() alone would send the pending data, and wait for it
        client._pending, client._pending_data_size = [], 0
        writer = getattr(client._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await client.close()


class _Sending:
    """The results of the messages of one `send`.

    No message at `end` or after it is published; `trouble` is the reason.
    """

    _numbers = 0

    def __init__(self, messages: Sequence[Message]) -> None:
        _Sending._numbers += 1
        self.number = _Sending._numbers
        self.messages = messages
        self.taken = [False] * len(messages)
        self.end = len(messages)
        self.trouble: NotDelivered | DeliveryRefused | None = None
        self.under_way = 0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        chains: dict[str | None, deque[int]] = {}
        for place, message in enumerate(messages):
            chains.setdefault(message.key, deque()).append(place)
        self._chains = chains
        self._waiting = deque(chains.values())

    @property
    def delivered(self) -> int:
        """The number of delivered messages, from the first on."""
        return next((place for place, taken in enumerate(self.taken) if not taken), len(self.taken))

    def stop(self, place: int, trouble: NotDelivered | DeliveryRefused) -> None:
        """Note that the message at a position was not delivered; those before it may still be."""
        if place < self.end:
            self.end, self.trouble = place, trouble

    def fail(self, error: BaseException) -> None:
        """Note that no more answers will come."""
        if not self.over.done():
            self.over.set_exception(error)

    def first_of_next_key(self) -> int | None:
        while self._waiting:
            chain = self._waiting.popleft()
            if chain[0] < self.end:
                return chain.popleft()
        return None

    def next_after(self, place: int) -> int | None:
        """Return the message to publish after an answer: the next of its key, or the first of another key."""
        chain = self._chains[self.messages[place].key]
        if self.taken[place] and chain and chain[0] < self.end:
            return chain.popleft()
        return self.first_of_next_key()

    def settle(self) -> None:
        if self.under_way == 0 and not self.over.done():
            self.over.set_result(None)


def token(key: str | None) -> str:
    """Return a key as one token of a subject.

    >>> token("a.b c"), token("4711"), token(None), token("-"), token("")
    ('a%2Eb%20c', '4711', '-', '%2D', '%')
    """
    if key is None:
        return _EMPTY
    if key == _EMPTY:
        return "%2D"
    return quote(key, safe=_PRINTED).replace(".", "%2E") or "%"


def _odd(text: str) -> bool:
    return "%" in text or text != text.strip() or not text.isprintable()


def _fit(subject: str) -> bool:
    return _SUBJECT.fullmatch(subject) is not None and not subject.startswith(("$", "_INBOX."))


def _pattern(subject: str) -> str:
    """Return the subjects of a template; a topic may have several tokens.

    >>> _pattern("forge.{topic}"), _pattern("shop.{key}.paid"), _pattern("{topic}.x")
    ('forge.>', 'shop.*.paid', '>')
    """
    tokens: list[str] = []
    for word in subject.split("."):
        if "{topic}" in word:
            return ".".join([*tokens, ">"])
        tokens.append("*" if "{" in word else word)
    return ".".join(tokens)


def _servers(url: str) -> list[str]:
    """
    >>> _servers("nats://a:1,b:2")
    ['nats://a:1', 'nats://b:2']
    """
    scheme, _, rest = url.partition("://")
    return [f"{scheme}://{host}" for host in rest.rstrip("/").split(",")]
