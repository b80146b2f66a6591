"""Where entries are kept. A store may forget anything at any time; it never raises for being unreachable."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from forge.cache.entry import Entry, Stamps


class Lease(msgspec.Struct, frozen=True):
    """The right to compute an entry, or the entry that another computed meanwhile.

    Who holds it has a `token`; without one somebody else computes. `stamps` are those before the computation; None when
    the store cannot be reached, and then nothing is kept.
    """

    token: str | None
    stamps: Stamps | None
    entry: Entry | None = None


class Store(Protocol):
    """A store. `shared` when other processes use it too; `up` is false while it cannot be reached."""

    shared: bool
    stamped: int
    """How often `stamp` was called in this process."""
    on_gone: Callable[[str, Entry], None]
    """Called with what the store forgets by itself, where it can tell."""

    @property
    def up(self) -> bool: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, key: str) -> Entry | None:
        """An entry whose stamps stand."""
        ...

    async def lease(self, key: str) -> Lease:
        """Ask for the right to compute an entry."""
        ...

    async def put(self, key: str, entry: Entry, ttl: float, token: str) -> bool:
        """Keep an entry and give the lease back; not when the lease is no longer held."""
        ...

    async def release(self, key: str, token: str) -> None:
        """Give the lease back without an entry."""
        ...

    async def drop(self, key: str) -> None:
        """Forget an entry, and take the lease away from whoever computes it."""
        ...

    def touched(self, key: str) -> None:
        """What is kept under the key will not be shown again by this process; a store of its own may forget it."""
        ...

    def stamp(self, names: Sequence[str]) -> None:
        """Void what these stamps concern; an empty sequence voids everything. From any thread, done when it returns."""
        ...
