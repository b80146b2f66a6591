"""Protocol of entry stores. A store may lose anything at any time; it never raises because it is unreachable."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from forge.cache.entry import CacheEntry, Stamps


class ComputeLease(msgspec.Struct, frozen=True):
    """The right to compute an entry, or the entry that another process computed in the meantime.

    The holder has a `token`; without one, another process computes the entry. `stamps` are those from before the
    computation; None if the store is unreachable, and then nothing is stored.
    """

    token: str | None
    stamps: Stamps | None
    entry: CacheEntry | None = None


class Store(Protocol):
    """A store. `shared`: other processes use it too; `up` is false while it is unreachable."""

    shared: bool
    stamped: int
    """Number of calls of `stamp` in this process."""
    on_gone: Callable[[str, CacheEntry], None]
    """Called with each entry that the store removes on its own, if it can tell."""

    @property
    def up(self) -> bool: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, key: str) -> CacheEntry | None:
        """Return an entry whose stamps are unchanged."""
        ...

    async def lease(self, key: str) -> ComputeLease:
        """Request the right to compute an entry."""
        ...

    async def put(self, key: str, entry: CacheEntry, ttl: float, token: str) -> bool:
        """Store an entry and release the lease; store nothing if the lease is lost."""
        ...

    async def release(self, key: str, token: str) -> None:
        """Release the lease without an entry."""
        ...

    async def drop(self, key: str) -> None:
        """Remove an entry, and revoke the lease of the process that computes it."""
        ...

    def touched(self, key: str) -> None:
        """Note that this process will not return the entry of this key again; a private store may remove it."""
        ...

    def stamp(self, names: Sequence[str]) -> None:
        """Invalidate everything with these stamps; an empty sequence means all. Thread-safe, complete on return."""
        ...
