"""Tell whether an exception came from the consumer closing the generator; for generators that survive failures."""

import asyncio
from types import TracebackType


class Closing:
    """Surrounds each `yield`, and knows afterwards whether the consumer closed the generator there.

    >>> async def lasting():
    ...     closing = Closing()
    ...     while True:
    ...         try:
    ...             try:
    ...                 with closing:
    ...                     yield 1
    ...             finally:
    ...                 raise OSError("the connection was gone already")
    ...         except OSError as error:
    ...             if closing.ends(error):
    ...                 return
    >>> async def first():
    ...     numbers = lasting()
    ...     found = await anext(numbers)
    ...     await numbers.aclose()
    ...     return found
    >>> asyncio.run(first())
    1
    """

    def __init__(self) -> None:
        self._closed = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed = self._closed or kind is GeneratorExit

    def ends(self, error: BaseException) -> bool:
        """Tell whether a failure came from closing, so the generator must end; a cancelled task stays cancelled."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        return self._closed
