"""Feed: the interface through which a worker reads changes, from the log or from any other source.

The output is batches, in order. A worker makes a page of each batch, handles its changes one after the other, and saves
the cursor after those that it has handled; when it asks for the next batch, the end of the last one is saved. The
content of a cursor is private to the feed. Where a cursor alone is not enough to continue, the feed writes the rest in
the same transaction (`settle`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from forge.change import Change
from forge.cursor import Cursor
from forge.deliver.consumers.lag import ConsumerLag
from forge.deliver.consumers.lease import ShardLease
from forge.postgres.connection import AsyncConnection

SAVE: Final = 0.1
Place = Cursor | str
"""The position of a consumer; its text is saved."""


class FeedPage(Protocol):
    """The wanted changes of a batch."""

    @property
    def changes(self) -> Sequence[Change]: ...

    @property
    def end(self) -> Place:
        """The cursor after all of them."""

    def cursor(self, place: int) -> Place:
        """Return the cursor after the given number of handled changes."""


class ConsumerFeed(ABC):
    """One reader, from one position on. Only the abstract methods are required."""

    at: Place
    """Everything before it is handled or was not wanted."""

    @property
    def save_after(self) -> float:
        """Seconds after which a cursor inside a page is worth saving."""
        return SAVE

    @asynccontextmanager
    async def opened(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """Allow reading within the block; state stored in the database is first read from the connection."""
        yield

    @abstractmethod
    def batches(self) -> AsyncGenerator[Any]:
        """Yield batches without end. Raise permanent failures: CursorError where a retry cannot help."""

    @abstractmethod
    def page(self, batch: Any) -> FeedPage:
        """Return the wanted changes of the last batch."""

    def settles(self, cursor: Place) -> bool:
        """Whether the feed must write data together with this cursor."""
        return False

    async def settle(self, connection: AsyncConnection, text: str) -> None:
        """Write that data, in the transaction that saves the cursor."""
        return None

    def saved(self, text: str) -> None:
        """Note that the cursor is saved, with all its data."""
        return None

    async def tend(self, flush: Callable[[], Awaitable[None]], failed: Callable[[Exception], None]) -> None:
        """Run background work until cancelled. `flush` brings everything saved to disk; transient failures are reported
        to `failed`."""
        await asyncio.get_running_loop().create_future()

    @abstractmethod
    async def lag(self, lease: ShardLease, saved: str) -> ConsumerLag | None:
        """Return the lag of a saved cursor; None where it is not known yet."""
