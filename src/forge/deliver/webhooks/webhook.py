"""Sink for a webhook: signed HTTP requests of the Standard Webhooks specification.

    app.deliver("orders-to-crm", to=Webhook("https://crm.example.com/hook", secret="whsec_…"), tables=["orders"])

Invariants:

- A message is delivered when its request was answered with 2xx, whatever follows. `webhook-id` and `idempotency-key`
  are its id, the same at every try; the body is the same too. Only the timestamp, and with it the signature, is new.
- Messages of one key are sent one after the other; up to `in_flight` requests of different keys are concurrent, across
  all callers of `send`.
- Redirects are not followed, answers are read up to a limit, and no request goes to an address that is not allowed.
- A message that the endpoint cannot use (413, 415, 422) is refused and parked. All other failures are retried: the
  endpoint or the operator may fix them, and nothing is lost meanwhile.

With `batch` a body is a JSON array of `{"id", "topic", "key", "data"}`, and its id is derived from theirs: a batch that
is sent again may contain others, so a receiver must use the ids inside.
"""

import asyncio
import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

import msgspec

from forge.deliver.entry import HEADER, unfit_header
from forge.deliver.message import JSON, Message
from forge.deliver.webhooks.breaker import Breaker
from forge.deliver.webhooks.guard import Guard
from forge.deliver.webhooks.signature import key_of, sign
from forge.errors import AddressRefused, ConfigError, DeliveryRefused, NotDelivered

LARGEST: Final = 4 << 20
"""The maximum size of one body in bytes."""
BUDGET: Final = 15.0
"""Seconds after which one `send` begins no other request, so that the caller can save its progress."""
MOST_TIMEOUT: Final = 30.0
MOST_WAIT: Final = 3600.0
_ANSWER: Final = 16 << 10
_DRAIN: Final = 1.0
_UNFIT: Final = (413, 415, 422)
_OWN: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "idempotency-key"}
    | {"expect", "upgrade", "te", "trailer"}
)


class EndpointResponse(msgspec.Struct, frozen=True):
    """The answer of an endpoint."""

    status: int
    text: str
    seconds: float
    retry_after: float | None = None


class Webhook:
    """A sink that posts to one URL.

    `secret` signs; several secrets all sign, the newest first. `headers` are sent with each request. `allow` names
    internal networks and hosts that requests may go to. `timeout` is the maximum duration of a request in seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | Sequence[str],
        batch: int = 1,
        in_flight: int = 16,
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        self._keys = [key_of(each) for each in ([secret] if isinstance(secret, str) else secret)]
        if not self._keys:
            raise ConfigError("the webhook has no secret", fix="make one with forge.deliver.webhooks.new_secret()")
        for name, value, least, most in (
            ("batch", batch, 1, 1000),
            ("in_flight", in_flight, 1, 256),
            ("timeout", timeout, 0.001, MOST_TIMEOUT),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name} of the webhook is {value}", fix=f"give {name} as {least} to {most:g}")
        try:
            self._http: Any = importlib.import_module("aiohttp")
            url_of: Any = importlib.import_module("yarl").URL
        except ModuleNotFoundError:
            raise ConfigError("webhooks need a library", fix='pip install "forge-changes[webhooks]"') from None
        guard = Guard(allow)
        self._host = guard.check(url)
        self._guard = guard
        self._url: Any = url_of(url, encoded=url.isascii())  # unchanged: it may be signed
        self._batch = batch
        self._in_flight = in_flight
        self._timeout = timeout
        self._headers = _checked(headers or {})
        self._taken = _OWN | self._headers.keys()
        self._breaker = Breaker()
        self._room = asyncio.Semaphore(in_flight)
        self._session: Any = None

    def __repr__(self) -> str:
        return f"Webhook({self._host!r})"

    async def send(self, messages: Sequence[Message], /) -> None:
        if rest := self._breaker.rest():
            raise NotDelivered(
                f"{self._host} failed {self._breaker.failures} times in a row and is left alone for {rest:.1f} s",
                after=rest,
                tried=False,
            )
        sending = _Sending(messages, time.monotonic() + BUDGET)
        start = 0
        if messages and self._breaker.trial():
            try:
                await self._try(sending, [0])
            finally:
                self._breaker.abandoned()
            start = 1
        while start < len(messages) and not sending.stopped:
            end = start + 1
            if not messages[start].alone:
                while end < len(messages) and not messages[end].alone:
                    end += 1
            await self._together(sending, range(start, end))
            start = end
        sending.conclude()

    async def ask(self, message: Message) -> EndpointResponse:
        """Send one request and return any answer; raise NotDelivered where there is none."""
        return await self._post(*self._request([message]))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _together(self, sending: "_Sending", places: Sequence[int]) -> None:
        """Send messages concurrently, except those of one key."""
        lanes = _lanes(sending.messages, places, min(self._in_flight, -(-len(places) // self._batch)))
        if len(lanes) == 1:
            await self._lane(sending, lanes[0])
            return
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(self._lane(sending, lane))

    async def _lane(self, sending: "_Sending", lane: Sequence[int]) -> None:
        """Send one request after the other, until one fails here or in another lane."""
        for places in _parts(sending.messages, lane, self._batch):
            if not await self._try(sending, places):
                return

    async def _try(self, sending: "_Sending", places: Sequence[int]) -> bool:
        """Return whether the messages at these positions were delivered; if not, the result is recorded."""
        if not sending.goes_on(places[0]):
            return False
        try:
            await self._deliver([sending.messages[place] for place in places])
        except NotDelivered as error:
            sending.failed(error)
            return False
        except DeliveryRefused as error:
            if len(places) > 1:  # one of them is the cause: find it
                half = len(places) // 2
                return await self._try(sending, places[:half]) and await self._try(sending, places[half:])
            sending.refused(places[0], error)
            return False
        sending.done(places)
        return True

    async def _deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if unfit := _unfit(message):
                raise DeliveryRefused(f"message {message.id!r}: {unfit}")
        id, body, headers = self._request(messages)
        if len(body) > LARGEST:
            raise DeliveryRefused(f"{len(body):,} bytes are more than a webhook is sent, which is {LARGEST:,}")
        try:
            answer = await self._post(id, body, headers)
        except NotDelivered:
            self._breaker.failed()
            raise
        if 200 <= answer.status < 300:
            self._breaker.succeeded()
            return
        said = f"{self._host} answered {answer.status}" + (f": {answer.text}" if answer.text else "")
        if answer.status in _UNFIT:
            raise DeliveryRefused(said)
        self._breaker.failed()
        raise NotDelivered(said, fix=_fix(answer.status), after=answer.retry_after)

    def _request(self, messages: Sequence[Message]) -> tuple[str, bytes, Mapping[str, str]]:
        """Return the id, body and headers of one request."""
        if self._batch == 1:
            return messages[0].id, messages[0].payload, self._message_headers(messages[0])
        return _batch_id(messages), _batch_body(messages), {"content-type": JSON}

    async def _post(self, id: str, body: bytes, headers: Mapping[str, str]) -> EndpointResponse:
        async with self._room:
            began, at = time.monotonic(), int(time.time())
            signed = {
                **headers,
                **self._headers,
                "webhook-id": id,
                "webhook-timestamp": str(at),
                "webhook-signature": sign(self._keys, id, at, body),
                "idempotency-key": id,
            }
            try:
                async with self._opened().post(self._url, data=body, headers=signed, allow_redirects=False) as response:
                    answered = await self._read(response)
                    text = "" if response.status < 300 else _line(answered)
                    wait = _retry_after(response.headers.get("retry-after"))
                    return EndpointResponse(response.status, text, time.monotonic() - began, wait)
            except TimeoutError:
                raise NotDelivered(
                    f"{self._host} did not answer within {self._timeout:g} s",
                    fix="see whether the endpoint is overloaded",
                ) from None
            except (self._http.ClientError, OSError, ValueError) as error:
                why = getattr(error, "os_error", error)
                told = getattr(error, "message", None)  # the whole text of some has the URL, which may be secret
                said = told if isinstance(told, str) else type(error).__name__ if told else str(why)
                fix = "allow the host if you mean it" if isinstance(why, AddressRefused) else "see to the receiver"
                raise NotDelivered(f"{self._host} cannot be reached: {_line(said.encode())}", fix=fix) from None

    async def _read(self, response: Any) -> bytes:
        """Read the start of an answer. A 2xx answer counts however it ends: it is read to reuse the connection."""
        told = b""
        good = response.status < 300
        if response.content.at_eof():
            return told
        try:
            async with asyncio.timeout(_DRAIN if good else None):
                while len(told) < _ANSWER and (part := await response.content.read(_ANSWER)):
                    told += part
        except (TimeoutError, OSError, self._http.ClientError):
            if not good:
                raise
        if not response.content.at_eof():
            response.close()
        return told

    def _message_headers(self, message: Message) -> dict[str, str]:
        found = {name: _coded(value) for name, value in message.headers.items() if name.lower() not in self._taken}
        found["content-type"] = message.content_type
        found["forge-topic"] = _coded(message.topic)
        found["forge-at"] = message.at.isoformat()
        if message.key is not None:
            found["forge-key"] = _coded(message.key)
        return found

    def _opened(self) -> Any:
        """Return the session, created in the loop that uses it."""
        if self._session is None:
            http = self._http
            self._session = http.ClientSession(
                connector=http.TCPConnector(limit=0, ttl_dns_cache=30, socket_factory=self._guard.sockets(self._host)),
                timeout=http.ClientTimeout(total=self._timeout),
                headers={"user-agent": "Forge-Webhooks/1"},
                cookie_jar=http.DummyCookieJar(),
                skip_auto_headers=("accept", "accept-encoding"),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


class _Sending:
    """The results of the messages of one `send`."""

    def __init__(self, messages: Sequence[Message], deadline: float) -> None:
        self.messages = messages
        self._taken = [False] * len(messages)
        self._refused: dict[int, DeliveryRefused] = {}
        self._error: NotDelivered | None = None
        self._deadline = deadline

    @property
    def stopped(self) -> bool:
        return self._error is not None or bool(self._refused)

    def goes_on(self, place: int) -> bool:
        """Whether a request may begin for a position. After a refusal only those before it continue, which must be
        delivered."""
        if self._error is None and time.monotonic() > self._deadline:
            self._error = NotDelivered("the endpoint is slow: the rest goes with the next call", after=0.0, tried=False)
        return self._error is None and not any(refused < place for refused in self._refused)

    def done(self, places: Sequence[int]) -> None:
        for place in places:
            self._taken[place] = True

    def failed(self, error: NotDelivered) -> None:
        before = self._error
        if before is None or not before.tried or (error.after or 0.0) > (before.after or 0.0):
            self._error = error

    def refused(self, place: int, error: DeliveryRefused) -> None:
        self._refused[place] = error

    def conclude(self) -> None:
        """Raise for the first message that was not delivered, if any."""
        first = next((place for place, taken in enumerate(self._taken) if not taken), None)
        if first is None:
            return
        if (refused := self._refused.get(first)) is not None:
            refused.place = first
            raise refused
        assert self._error is not None
        self._error.delivered = first
        raise self._error


def _lanes(messages: Sequence[Message], places: Sequence[int], most: int) -> list[list[int]]:
    """Divide positions into lanes of about equal length; those of one key are in one lane, in order."""
    lanes: list[list[int]] = [[] for _ in range(min(most, len(places)))]
    of_key: dict[str, list[int]] = {}
    turn = 0
    for place in places:
        message = messages[place]
        lane = None if message.key is None else of_key.get(message.key)
        if lane is None:
            lane = lanes[turn]
            turn = (turn + 1) % len(lanes)
            if message.key is not None:
                of_key[message.key] = lane
        lane.append(place)
    return [lane for lane in lanes if lane]


def _parts(messages: Sequence[Message], lane: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """Divide a lane into parts, one per request, limited in messages and bytes."""
    start, size = 0, 0
    for end, place in enumerate(lane):
        bytes_ = len(messages[place].payload) + len(messages[place].topic) + 1024
        if end > start and (end - start >= most or size + bytes_ > LARGEST):
            yield lane[start:end]
            start, size = end, 0
        size += bytes_
    if start < len(lane):
        yield lane[start:]


def _batch_id(messages: Sequence[Message]) -> str:
    if len(messages) == 1:
        return messages[0].id
    return "batch_" + sha256("\n".join(message.id for message in messages).encode()).hexdigest()[:32]


def _batch_body(messages: Sequence[Message]) -> bytes:
    parts = []
    for message in messages:
        about = {"id": message.id, "topic": message.topic, "key": message.key}
        if message.content_type == JSON and _is_json(message.payload):
            parts.append(msgspec.json.encode({**about, "data": msgspec.Raw(message.payload)}))
        else:  # as base64 text, which is msgspec's encoding of bytes
            parts.append(
                msgspec.json.encode({**about, "content_type": message.content_type, "data_base64": message.payload})
            )
    return b"[" + b",".join(parts) + b"]"


def _is_json(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def _unfit(message: Message) -> str | None:
    """Return why a message cannot be a request, or None."""
    words = (message.id, message.content_type)
    if not all(word.isascii() and word.isprintable() and word == word.strip() for word in words):
        return "its id or content type is no text of ASCII"
    return unfit_header(message)


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in headers.items():
        own = name.lower() in _OWN or name.lower().startswith("webhook-")
        if own or not HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"the header {name!r} cannot be sent", fix="choose another name, with ASCII values")
        found[name.lower()] = value
    return found


def _coded(value: str) -> str:
    """Encode a header's value: ASCII except `%` unchanged, the rest percent-encoded."""
    if value.isascii() and value.isprintable() and "%" not in value:
        return value
    return quote(value, safe=" !#$&'()*+,/:;=?@[]{}\"<>|^`")


def _line(told: bytes) -> str:
    """Return the start of a text on one line, without terminal control characters."""
    text = " ".join(told.decode(errors="replace").split())[:200]
    return "".join(each if each.isprintable() else "�" for each in text)


def _retry_after(value: str | None) -> float | None:
    """Parse seconds from a number or a date.

    >>> _retry_after("7"), _retry_after("x"), _retry_after("1e9"), _retry_after(None)
    (7.0, None, 3600.0, None)
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(0.0, seconds), MOST_WAIT) if seconds == seconds else None


def _fix(status: int) -> str:
    if 300 <= status < 400:
        return "give the webhook the URL that it leads to: redirects are not followed"
    if status in (401, 403):
        return "let the endpoint accept the signature or the headers that are sent"
    if status in (404, 405, 410):
        return "see whether the URL is still right, or disable the webhook"
    return "see to the endpoint"
