"""Requests to the server: each with the token, each error typed.

A 401 is retried once with a newer token, if one is available: the server has done nothing yet.
"""

import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Self

import httpx

from forge.backoff import Backoff
from forge.client.error_responses import NOT_FORGE, told
from forge.client.messages import ErrorResponse, read
from forge.client.sse import Parser, ServerSentEvent
from forge.client.tokens import Tokens
from forge.errors import Closed, ForgeError, ProtocolError, Unauthorized, Unreachable

PATIENT: Final = partial(Backoff, 0.25, 30.0)
"""Backoff between reconnects."""

Parameters = Sequence[tuple[str, str]]
_NONE: Final[Mapping[str, str]] = {}
_STREAM = {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"}


class EventStream:
    """The events of an open stream, in order."""

    def __init__(self, response: httpx.Response) -> None:
        self.last_id = ""
        """The id to resume after the last event returned."""
        self._pieces = response.aiter_bytes()
        self._parser = Parser()
        self._found: deque[ServerSentEvent] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ServerSentEvent:
        while not self._found:
            self.last_id = self._parser.last_id
            self._found.extend(self._parser.feed(await anext(self._pieces)))
        event = self._found.popleft()
        self.last_id = event.id if self._found else self._parser.last_id
        return event


def certificates(url: str) -> ssl.SSLContext | bool:
    """Return the certificates for verification. Loading the CAs takes 25 ms: for http:// none is loaded or trusted."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http://") else True


class Http:
    """The connection to one server. Times in seconds: `timeout` per answer, `silence` until a stream counts as dead."""

    def __init__(
        self, url: str, tokens: Tokens, *, http: httpx.AsyncClient | None, timeout: float, silence: float
    ) -> None:
        self.tokens = tokens
        self._base = url.rstrip("/")
        self._http = http or httpx.AsyncClient(verify=certificates(url), limits=httpx.Limits(max_connections=None))
        self._owned = http is None
        self._timeout = httpx.Timeout(timeout)
        self._stream_timeout = httpx.Timeout(timeout, read=silence)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str] = _NONE) -> bytes:
        """POST JSON and return the answer."""
        token = await self.tokens.current()
        try:
            return await self._post(path, body, token, headers)
        except Unauthorized:
            if not self.tokens.renewable:
                raise
        return await self._post(path, body, await self.tokens.newer(token), headers)

    async def _post(self, path: str, body: bytes, token: str | None, more: Mapping[str, str]) -> bytes:
        headers = {"content-type": "application/json", **more, **_bearer(token)}
        try:
            response = await self._http.post(self._base + path, content=body, headers=headers, timeout=self._timeout)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except RuntimeError as error:
            if self._http.is_closed:
                raise _closed() from error
            raise
        if not response.is_success:
            raise failure(response)
        return response.content

    @asynccontextmanager
    async def stream(
        self, path: str, params: Parameters = (), last_id: str | None = None
    ) -> AsyncIterator[EventStream]:
        """Open a GET stream and yield its events inside this block."""
        token = await self.tokens.current()
        try:
            async with self._stream(path, params, last_id, token) as events:
                yield events
                return
        except _Rejected as rejected:
            if not self.tokens.renewable:
                raise rejected.error from None
        try:
            async with self._stream(path, params, last_id, await self.tokens.newer(token)) as events:
                yield events
        except _Rejected as rejected:
            raise rejected.error from None

    @asynccontextmanager
    async def _stream(
        self, path: str, params: Parameters, last_id: str | None, token: str | None
    ) -> AsyncIterator[EventStream]:
        headers = {**_STREAM, **_bearer(token), **({"last-event-id": last_id} if last_id else {})}
        asked = self._http.stream(
            "GET", self._base + path, params=list(params), headers=headers, timeout=self._stream_timeout
        )
        try:
            async with asked as response:
                if response.status_code != 200:
                    await response.aread()
                    error = failure(response)
                    raise _Rejected(error) if isinstance(error, Unauthorized) else error
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise told(NOT_FORGE, f"{path} is no stream of events", "use the URL of a Forge server", status=200)
                yield EventStream(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except RuntimeError as error:
            if self._http.is_closed:
                raise _closed() from error
            raise

    async def aclose(self) -> None:
        """Close the connections, unless they belong to the application's own HTTP client."""
        if self._owned:
            await self._http.aclose()

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        what = "does not answer in time" if isinstance(error, httpx.TimeoutException) else "cannot be reached"
        reason = str(error) or type(error).__name__
        return Unreachable(f"{self._base} {what}: {reason}", fix="see that the server runs and the URL is right")


class _Rejected(Exception):
    """The stream was not opened because the token is missing or invalid."""

    def __init__(self, error: Unauthorized) -> None:
        super().__init__()
        self.error = error


def failure(response: httpx.Response) -> ForgeError:
    """Convert an error response to an exception."""
    status = response.status_code
    after = response.headers.get("retry-after", "")
    header = float(after) if after.isdecimal() else None
    try:
        error = read(ErrorResponse, response.content).error
    except ProtocolError:
        message = f"{response.request.url.path} was answered with {status} {response.reason_phrase}".rstrip()
        return told(NOT_FORGE, message, "use the URL of a Forge server", status=status, retry_after_secs=header)
    secs = header if error.retry_after_secs is None else error.retry_after_secs
    return told(error.code, error.message, error.fix, status=status, retry_after_secs=secs)


def _closed() -> Closed:
    return Closed("the client was closed", fix="make a new client")


def _bearer(token: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}
