"""Turns to run: each user has a few running requests and a short queue.

Input: a holder (a user, or an address if there is no user) and optionally an idempotency key. The request runs inside
the block. The slow requests of one user therefore hold a bounded share of the connections, and a duplicate of a running
request holds none.

Invariants:

- At most `running` requests of a holder run and at most `waiting` more wait, in order of arrival. Others are refused.
- Among requests with one key, one runs. The others wait before they count as running.
- A holder without requests, and a key without calls, leave nothing behind.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import Final

from forge.errors import LimitReached
from forge.serve.limits import RETRY_AFTER_SECS, Holder

PATIENCE: Final = 30.0
"""Maximum wait for a turn, in seconds."""


class _Queue:
    """A semaphore, and the number of requests that hold it or wait."""

    def __init__(self, places: int) -> None:
        self.room = asyncio.Semaphore(places)
        self.users = 0


class Turns:
    """The turns of one node."""

    def __init__(self, running: int, waiting: int, patience: float = PATIENCE) -> None:
        self._most_running = running
        self._most_waiting = waiting
        self._patience = patience
        self._holders: dict[Hashable, _Queue] = {}
        self._keys: dict[Hashable, _Queue] = {}
        self.running = 0
        """Number of running requests."""
        self.waiting = 0
        """Number of waiting requests."""
        self.refused = 0
        """Number of refused requests since the start."""

    def __len__(self) -> int:
        """The number of known holders and keys."""
        return len(self._holders) + len(self._keys)

    def free(self, holder: Holder) -> bool:
        """Whether a request of this holder would run at once."""
        known = self._holders.get(holder)
        return known is None or not known.room.locked()

    @contextlib.asynccontextmanager
    async def turn(self, holder: Holder, key: Hashable = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it for the block; raise LimitReached if too many wait or the wait times out."""
        async with contextlib.AsyncExitStack() as stack:
            mine = stack.enter_context(_using(self._holders, holder, self._most_running))
            if mine.users > self._most_running + self._most_waiting:
                raise self._refuse(
                    f"{holder[0]} may have {self._most_running} requests running and {self._most_waiting} waiting"
                )
            self.waiting += 1
            try:
                async with asyncio.timeout(self._patience):
                    if key is not None:
                        await stack.enter_async_context(stack.enter_context(_using(self._keys, key, 1)).room)
                    await stack.enter_async_context(mine.room)
            except TimeoutError:
                raise self._refuse(f"others of {holder[0]} were running for {self._patience:g} s") from None
            finally:
                self.waiting -= 1
            self.running += 1
            stack.callback(self._end)
            yield

    def _end(self) -> None:
        self.running -= 1

    def _refuse(self, message: str) -> LimitReached:
        self.refused += 1
        return LimitReached(message, fix="wait for some to end", retry_after_secs=RETRY_AFTER_SECS)


@contextlib.contextmanager
def _using(queues: dict[Hashable, _Queue], name: Hashable, places: int) -> Iterator[_Queue]:
    """Yield the queue of a name; it exists while it is in use."""
    queue = queues.setdefault(name, _Queue(places))
    queue.users += 1
    try:
        yield queue
    finally:
        queue.users -= 1
        if not queue.users:
            del queues[name]
