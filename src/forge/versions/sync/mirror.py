"""Where a copy is kept: documents by their id, and how far the copy has come, which moves with them.

A mirror takes a page of events and the state behind it, and keeps both or neither; where it cannot, it keeps the events
first, since a page may be taken twice. An upsert is what a document is now and always taken. A deletion or a change of
key is taken unless the document was seen at a later version.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from forge.errors import ForgeError
from forge.versions.nouns import Event, Resource


class MirrorUnusable(ForgeError):
    """The copy cannot be kept there; what is there is as it was."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy has come."""

    upto: int
    """All that happened up to this version is in the copy, or will be when all documents are listed."""
    listing: bool = False
    """Whether the documents that had not changed after `upto` are still being listed."""
    until: int | None = None
    """The end of the window that is being read."""
    token: str | None = None
    """Where in the listing or the window the next page begins."""
    generation: int = 1
    """How often the copy was begun. What is left of an earlier one when the listing ends is no more."""
    install: str | None = None
    """Which installation it is a copy of."""
    subject: str | None = None
    """As who sees it."""
    epoch: int = 0
    """How often it had been changed who sees the resource."""


class Mirror(Protocol):
    """A copy of one resource."""

    resource: Resource

    def state(self) -> State | None:
        """How far it has come; None for a new one."""
        ...

    def take(self, events: Sequence[Event], state: State) -> None:
        """Keep a page, and that it was kept."""
        ...

    def listed(self, state: State) -> int:
        """All documents were listed: remove those of earlier generations; returns how many."""
        ...

    def close(self) -> None: ...
