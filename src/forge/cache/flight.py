"""Share one computation among concurrent callers that want the same result.

A flight continues while a caller waits for it; when the last caller leaves, it is cancelled. A later caller never joins
a flight that has finished or is about to be cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """The computations in progress, by key."""

    def __init__(self) -> None:
        self.begun = 0
        """Number of flights started so far."""
        self._flights: dict[str, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def join(self, key: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, int, bool]:
        """Return the result of the flight for this key, its sequence number, and whether this caller started it."""
        flight = self._flights.get(key)
        own = flight is None or flight.task.done()
        if flight is None or flight.task.done():
            self.begun += 1
            flight = self._flights[key] = _Flight(asyncio.get_running_loop().create_task(begin()), self.begun)
            flight.task.add_done_callback(lambda task, landed=flight: self._gone(key, landed))  # type: ignore[misc]
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), flight.number, own
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._gone(key, flight)
                flight.task.cancel()

    async def end(self) -> None:
        """Cancel all computations in progress."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _gone(self, key: str, flight: "_Flight[T]") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.task.done() and not flight.task.cancelled():
            flight.task.exception()  # the waiting callers have received it


class _Flight(Generic[T]):
    def __init__(self, task: "asyncio.Task[T]", number: int) -> None:
        self.task = task
        self.number = number
        self.waiting = 0
