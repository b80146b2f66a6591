"""Source over HTTP: a resource of a server that answers change queries. The results equal those of a database.

Errors of the server are raised as the matching error of `forge.versions.errors`, or as the client's own.
"""

import builtins
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from forge.client.http import certificates, failure
from forge.errors import (
    ForgeError,
    ProtocolError,
    Refused,
    TokenInvalid,
    UnknownResource,
    Unreachable,
    VersionsMissing,
    WindowExpired,
    WindowInvalid,
)
from forge.versions.nouns import DEFAULT_VERSION, Event, Page, Resource
from forge.versions.sync.source import Reach
from forge.versions.wire import read

TIMEOUT: Final = 60.0
"""Seconds that a server may take for a page."""

_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)
_TOLD: Final[dict[str, type[ForgeError]]] = {
    "token_invalid": TokenInvalid,
    "unknown_resource": UnknownResource,
    "versions_missing": VersionsMissing,
    "window_invalid": WindowInvalid,
}


class HttpSource:
    """A resource of a server, as visible to the holder of a token."""

    def __init__(
        self, url: str, resource: Resource, *, token: str | None = None, http: httpx.Client | None = None
    ) -> None:
        self.resource = resource
        self._base = url.rstrip("/")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = http or httpx.Client(verify=certificates(url), timeout=TIMEOUT)
        self._most: int | None = None
        self._version = {} if resource.version == DEFAULT_VERSION else {"resourceVersion": resource.version}
        self._path = "/".join(("/versions", quote(resource.project, safe=""), quote(resource.name, safe="")))

    def available(self) -> Reach:
        try:
            return msgspec.convert(self._get("/versions/available", {"resource": str(self.resource)}), Reach)
        except msgspec.ValidationError as error:
            raise _misunderstood(str(error)) from None

    def page(self, min: int | None, max: int, *, after: str | None, limit: int) -> Page[Event]:
        """Return a page; if it is too large for the server, request smaller ones, and let the next ones grow again."""
        while True:
            size = limit if self._most is None else builtins.min(limit, self._most)
            try:
                found = self._page(min, max, after, size)
            except Refused as refused:
                if refused.code != "too_large" or size == 1:
                    raise
                self._most = size // 2
            else:
                self._most = None if size == limit else size * 2
                return found

    def _page(self, min: int | None, max: int, after: str | None, limit: int) -> Page[Event]:
        window = {"maxChangeVersion": str(max), "limit": str(limit), **self._version}
        if min is not None:
            window["minChangeVersion"] = str(min)
        if after is not None:
            window["pageToken"] = after
        answer = self._get(f"{self._path}/stream", window)
        try:
            items, token, epoch = answer["items"], answer["next"], answer["epoch"]
            if not isinstance(token, str | None) or not isinstance(items, list) or not isinstance(epoch, int):
                raise TypeError("items, next or epoch")
        except (KeyError, TypeError) as error:
            raise _misunderstood(str(error)) from None
        return Page([read(self.resource, item) for item in items], token, epoch)

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str, parameters: dict[str, str]) -> Any:
        try:
            response = self._http.get(self._base + path, params=parameters, headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = "does not answer in time" if isinstance(error, httpx.TimeoutException) else "cannot be reached"
            raise Unreachable(
                f"{self._base} {what}: {str(error) or type(error).__name__}",
                fix="see that the server runs and the URL is right",
            ) from error
        if not response.is_success:
            raise _refused(response)
        try:
            return _decoder.decode(response.content)
        except msgspec.DecodeError as error:
            raise _misunderstood(str(error)) from None


def _refused(response: httpx.Response) -> ForgeError:
    error = failure(response)
    code = getattr(error, "code", None)
    if code == "window_expired":
        try:
            return WindowExpired(str(error), fix=error.fix, oldest=int(_decoder.decode(response.content)["oldest"]))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as unread:
            return _misunderstood(repr(unread))
    return _TOLD[code](str(error), fix=error.fix) if code in _TOLD else error


def _misunderstood(why: str) -> ProtocolError:
    return ProtocolError(
        f"the server's answer is not understood: {why}", fix="use the URL of a Forge server of this version"
    )
