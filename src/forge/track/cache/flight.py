"""One computation for all who want the same at the same time.

A flight goes on while somebody waits for it; when the last one leaves it is cancelled. Whoever comes later finds no
flight that is about to be cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flights(Generic[T]):
    """The computations under way, by key."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def join(self, key: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """What the flight for this key brings, and whether it was begun for this caller."""
        flight = self._flights.get(key)
        begun = flight is None
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.get_running_loop().create_task(begin()))
            flight.task.add_done_callback(lambda task, landed=flight: self._gone(key, landed))  # type: ignore[misc]
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task), begun
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._gone(key, flight)
                flight.task.cancel()

    async def end(self) -> None:
        """End all that is under way."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _gone(self, key: str, flight: "_Flight[T]") -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.task.done() and not flight.task.cancelled():
            flight.task.exception()  # whoever waited has it


class _Flight(Generic[T]):
    def __init__(self, task: "asyncio.Task[T]") -> None:
        self.task = task
        self.waiting = 0
