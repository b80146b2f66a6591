"""Mirror: the storage of a copy. It has documents by id, and the copy's progress, which is stored with them.

A mirror stores a page of events and the state after it, both or neither; where it cannot, it stores the events first,
since a page may be applied twice. An upsert is a document's present state and is always applied. A deletion or a change
of key is applied unless the document was seen at a later version.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from forge.versions.nouns import Event, Resource


class MirrorState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a copy."""

    upto: int
    """Everything up to this version is in the copy, or will be when all documents are listed."""
    listing: bool = False
    """Whether the documents that had not changed after `upto` are still being listed."""
    until: int | None = None
    """The end of the window that is being read."""
    token: str | None = None
    """The token of the next page of the listing or the window."""
    generation: int = 1
    """The number of times that the copy was begun. Documents of earlier ones are removed when the listing ends."""
    install: str | None = None
    """The id of the copied installation."""
    subject: str | None = None
    """The subject whose view is copied."""
    epoch: int = 0
    """The epoch of the resource's access rules."""


class Mirror(Protocol):
    """A copy of one resource."""

    resource: Resource

    def state(self) -> MirrorState | None:
        """The progress; None for a new copy."""
        ...

    def take(self, events: Sequence[Event], state: MirrorState) -> None:
        """Store a page and the state after it."""
        ...

    def listed(self, state: MirrorState) -> int:
        """After all documents were listed: remove those of earlier generations; return their number."""
        ...

    def close(self) -> None: ...
