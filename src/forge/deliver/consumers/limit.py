"""Time limit for calls in quick succession: one timer for all of them."""

import asyncio
from types import TracebackType
from typing import Self


class Limit:
    """Cancel the task of the block when a call within it takes too long; `begin` starts the time of a call.

    async with Limit(60) as limit:
        limit.begin()
        await call()                 # raises TimeoutError
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._expires = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        if self._seconds is not None:
            self._timer = self._loop.call_later(self._seconds, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def begin(self) -> None:
        """Start the time of a call."""
        if self._seconds is not None:
            self._expires = self._loop.time() + self._seconds

    def end(self) -> None:
        """Note that no call is running."""
        self._expires = float("inf")

    def _look(self) -> None:
        assert self._seconds is not None
        now = self._loop.time()
        if now >= self._expires:
            self._over = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(min(self._expires, now + self._seconds), self._look)
