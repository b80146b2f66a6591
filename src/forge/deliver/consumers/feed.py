"""Where a worker's changes come from: what it asks of the log, and of any other source, in the same words.

Batches come out, in order. A worker makes a page of each, handles its changes one after the other, and saves the
cursor behind those that it has handled; when it asks for the next batch, the end of the last one is saved. What a
cursor says is the feed's own affair. Where it takes more than a text to go on from there, the feed writes the rest in
the same transaction (`settle`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from forge.change import Change
from forge.cursor import Cursor
from forge.deliver.consumers.lag import Lag
from forge.deliver.consumers.lease import Lease
from forge.postgres.connection import AsyncConnection

SAVE: Final = 0.1
Place = Cursor | str
"""Where a consumer stands; its text is what is saved."""


class Page(Protocol):
    """The changes of a batch that are wanted."""

    @property
    def changes(self) -> Sequence[Change]: ...

    @property
    def end(self) -> Place:
        """Behind all of them."""

    def cursor(self, place: int) -> Place:
        """Where a consumer stands that has handled so many of them."""


class Feed(ABC):
    """One reader, from one place on. What is not said otherwise here is not needed."""

    at: Place
    """All before it is handled, be it found to be nothing."""

    @property
    def save_after(self) -> float:
        """Seconds after which a cursor inside of a page is worth to be saved."""
        return SAVE

    @asynccontextmanager
    async def opened(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """Read within the block only; what is kept in the database for it is read from the connection at first."""
        yield

    @abstractmethod
    def batches(self) -> AsyncGenerator[Any]:
        """For ever. Raises what reading cannot go on from: CursorError where nobody can, by trying again."""

    @abstractmethod
    def page(self, batch: Any) -> Page:
        """What is wanted of the batch that came last."""

    def settles(self, cursor: Place) -> bool:
        """Whether something must be written with this cursor."""
        return False

    async def settle(self, connection: AsyncConnection, text: str) -> None:
        """Write it, in the transaction that saves the cursor."""
        return None

    def saved(self, text: str) -> None:
        """The cursor is saved, with all that belongs to it."""
        return None

    async def tend(self, flush: Callable[[], Awaitable[None]], failed: Callable[[Exception], None]) -> None:
        """Do what there is to do beside reading, for ever. `flush` brings all that is saved to disk; what goes wrong
        and may pass is told to `failed`."""
        await asyncio.get_running_loop().create_future()

    @abstractmethod
    async def lag(self, lease: Lease, saved: str) -> Lag | None:
        """How far behind a saved cursor is; None where that is not known yet."""
