"""Sources of a client's token: none, a text, or an async function that is called when a newer token is needed."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from forge.errors import Unauthorized, Unreachable

Token = str | Callable[[], Awaitable[str]] | None


class Tokens:
    """The token in use. Exceptions of the function reach the caller, unless they report an unreachable service."""

    def __init__(self, source: Token) -> None:
        self._source = source
        self._token = source if isinstance(source, str) else None
        self._asking = asyncio.Lock()

    @property
    def renewable(self) -> bool:
        """Whether a newer token may be available."""
        return callable(self._source)

    async def current(self) -> str | None:
        """Return the token to use."""
        return await self.newer(None) if self._token is None else self._token

    async def replace(self, reason: str) -> None:
        """Replace a token that the server does not accept, or raise Unauthorized."""
        if not self.renewable:
            raise Unauthorized(f"the token is {reason}", fix="connect with a newer token", code=reason)
        await self.newer(self._token)

    async def newer(self, than: str | None) -> str | None:
        """Return another token than this one, if possible; concurrent callers get the same token."""
        if not callable(self._source):
            return self._token
        async with self._asking:
            if self._token is None or self._token == than:
                try:
                    self._token = await self._source()
                except (OSError, httpx.HTTPError) as error:
                    raise Unreachable(f"no token can be had: {error!r}", fix="see the token function") from error
            return self._token
