"""Synchronize a copy: one call brings a mirror from its position to the newest version of its source.

- A new copy begins with the newest settled version N: all documents that have not changed after N are listed, and
  changes after N are read as windows. So nothing is lost between them under concurrent writes.
- A window [last + 1, newest] is read in pages. Each page is stored with the start of the next one: an interrupted sync
  continues from there.
- The copy begins again when the source cannot answer a window any longer, is another installation than the copied one,
  has another reader, or when the resource was switched to or from access control. Until the new listing is complete,
  documents of the old copy stay; then those that are not listed are removed.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from forge.errors import AccessChanged, TokenInvalid, WindowExpired
from forge.versions.nouns import Deletion, Event, KeyChange
from forge.versions.sync.mirror import Mirror, MirrorState
from forge.versions.sync.source import Reach, VersionsSource

LIMIT: Final = 500
ATTEMPTS: Final = 3
"""The number of times that one call begins a copy again before it raises the reason."""


class SyncProgress(msgspec.Struct, frozen=True):
    """The progress of a call: its phase, the version that it has reached, and its target version."""

    listing: bool
    version: int
    newest: int
    items: int


class Synced(msgspec.Struct):
    """The result of one call. `upto` is the version of the copy; `again` is why it was begun again, if it was."""

    upto: int = 0
    upserts: int = 0
    deletions: int = 0
    key_changes: int = 0
    removed: int = 0
    pages: int = 0
    again: str | None = None

    @property
    def items(self) -> int:
        return self.upserts + self.deletions + self.key_changes


def sync(
    source: VersionsSource,
    mirror: Mirror,
    *,
    limit: int = LIMIT,
    tell: Callable[[SyncProgress], None] = lambda progress: None,
) -> Synced:
    """Bring the mirror up to the newest version of the source."""
    done = Synced()
    for attempt in range(1, ATTEMPTS + 1):
        reach = source.available()
        state = mirror.state()
        if state is not None and (why := _other(state, reach)) is not None:
            state, done.again = None, why
        if state is None:
            state = _begun(mirror, reach)
        try:
            state = _kept(source, mirror, state, reach, limit, done, tell)
        except (WindowExpired, AccessChanged) as expired:
            if attempt == ATTEMPTS:
                raise
            done.again = str(expired)
            _begun(mirror, source.available())
            continue
        done.upto = state.upto
        break
    return done


def _other(state: MirrorState, reach: Reach) -> str | None:
    """Return why the source cannot be the copied one; None when it may be."""
    if state.install != reach.install:
        return "the source is another installation than the one that was copied"
    if state.subject != reach.subject:
        return f"it was copied as {state.subject or 'nobody'} sees it, and {reach.subject or 'nobody'} asks now"
    if state.epoch != reach.epoch:
        return "who may see the resource was changed since"
    if max(state.upto, state.until or 0) > reach.newest:
        return f"the source is at version {reach.newest} and was at {max(state.upto, state.until or 0)} before"
    return None


def _begun(mirror: Mirror, reach: Reach) -> MirrorState:
    before = mirror.state()
    generation = 1 if before is None else before.generation + 1
    state = MirrorState(
        upto=reach.newest,
        listing=True,
        generation=generation,
        install=reach.install,
        subject=reach.subject,
        epoch=reach.epoch,
    )
    mirror.take([], state)
    return state


def _kept(
    source: VersionsSource,
    mirror: Mirror,
    state: MirrorState,
    reach: Reach,
    limit: int,
    done: Synced,
    tell: Callable[[SyncProgress], None],
) -> MirrorState:
    while True:
        if not state.listing and state.until is None:
            if state.upto >= reach.newest:
                return state
            state = msgspec.structs.replace(state, until=reach.newest)
        first = None if state.listing else state.upto + 1
        last = state.until if state.until is not None else state.upto
        try:
            page = source.page(first, last, after=state.token, limit=limit)
        except TokenInvalid:
            if state.token is None:
                raise
            state = msgspec.structs.replace(state, token=None)  # the page was not the source's: read all of it again
            continue
        if page.epoch != state.epoch:
            raise AccessChanged("who may see the resource was changed meanwhile", fix="try again")
        _count(done, page.items)
        if page.next is not None:
            state = msgspec.structs.replace(state, token=page.next)
            mirror.take(page.items, state)
        else:
            ended = msgspec.structs.replace(state, upto=last, until=None, token=None, listing=False)
            if state.listing:
                mirror.take(page.items, state)
                done.removed += mirror.listed(ended)
                reach = source.available()
            else:
                mirror.take(page.items, ended)
            state = ended
        tell(SyncProgress(state.listing, page.items[-1].version if page.items else last, reach.newest, done.items))


def _count(done: Synced, items: list[Event]) -> None:
    done.pages += 1
    for item in items:
        match item:
            case Deletion():
                done.deletions += 1
            case KeyChange():
                done.key_changes += 1
            case _:
                done.upserts += 1
