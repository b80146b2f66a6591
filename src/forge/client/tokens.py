"""Where a client's token comes from: nowhere, a text, or an async function that is asked when a newer one is needed."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx

from forge.client.errors import Unauthorized, Unreachable

Token = str | Callable[[], Awaitable[str]] | None


class Tokens:
    """The token in use. What the function raises goes to the caller, unless it says that something does not answer."""

    def __init__(self, source: Token) -> None:
        self._source = source
        self._token = source if isinstance(source, str) else None
        self._asking = asyncio.Lock()

    @property
    def renewable(self) -> bool:
        """Whether there can be a newer one."""
        return callable(self._source)

    async def current(self) -> str | None:
        """The token to use."""
        return await self.newer(None) if self._token is None else self._token

    async def replace(self, reason: str) -> None:
        """The server does not take it any more: have another, or raise Unauthorized."""
        if not self.renewable:
            raise Unauthorized(f"the token is {reason}", fix="connect with a newer token", code=reason)
        await self.newer(self._token)

    async def newer(self, than: str | None) -> str | None:
        """A token that is not this one, as far as there can be one; many who ask at once get the same."""
        if not callable(self._source):
            return self._token
        async with self._asking:
            if self._token is None or self._token == than:
                try:
                    self._token = await self._source()
                except (OSError, httpx.HTTPError) as error:
                    raise Unreachable(f"no token can be had: {error!r}", fix="see the token function") from error
            return self._token
