"""Read changes: the documents of a resource whose version is in a window, deletions, and changes of keys.

    found = changes(connection, Resource("ed-fi", "students"), 98_000, 99_120, limit=100)
    rest = changes(connection, Resource("ed-fi", "students"), after=found.next)

The input is a resource and a window [min, max] of versions; the output is pages in the order of version and document,
each continuing after the last. Without `max` the window ends at the newest settled version; without `min` it is the
whole resource, in the order of documents: the start of a copy. `min` may be one above the newest: nothing yet.

Invariants:

- An item is a document's present state. A document that changes after the window's end leaves the window and is in the
  next one; documents that stay in the window are returned once, however many writes happen between the pages. All
  stamps up to the newest are settled, so none enters a window later.
- A document's version is derived: the highest of its own two stamps and the identity stamps of the documents that it
  refers to. Where a resource is by access, `subject` sees the documents that it has access to, from the version of that
  access on; None sees all. The statement that reads a page also reads whether the resource is by access.
- All strategies give the same results. The statement that depends on a strategy also reads which one is in use.
- The cost of a page is proportional to the events between its first and last item, whatever the size of the window or
  the journals: events come in order from indexes, are merged, and are read until the page is full. Where most of a
  window has changed since, or is invisible to the subject, many events lie between two items: one statement reads at
  most CANDIDATES of each kind, and after PATIENCE a page is returned incomplete, possibly empty. Only a page without
  `next` is the last. This also holds inside one version, however many documents have it: see `Way`.
- A page has at most `max_bytes` of JSON, or one item. At most that, plus one item, leaves the database at a time.
- A window that begins below the oldest raises WindowExpired, at its first page or a later one, and never returns a page
  with gaps. This holds under READ COMMITTED, and under one snapshot as long as it is younger than the last `maintain`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8

from forge.errors import DecodeError, TokenInvalid, UnknownResource, WindowExpired, WindowInvalid
from forge.postgres.connection import Connection
from forge.postgres.queries import queries
from forge.postgres.text import unstorable
from forge.versions.nouns import (
    Deletion,
    Document,
    Event,
    Json,
    KeyChange,
    Page,
    Reference,
    Resource,
    Upsert,
    decode,
    decode_list,
    unreadable,
)
from forge.versions.operation import typed
from forge.versions.page_statements import DELETIONS, KEYS, UPSERTS, Way, statement_of
from forge.versions.pages import VersionsQuery, WindowPosition, opened, sealed
from forge.versions.stamps import newest, outside, settled

LIMIT: Final = 100
MOST: Final = 10_000
BYTES: Final = 16 * 1024 * 1024
MOST_BYTES: Final = 2**40
STEP: Final = 128
"""The number of items requested before their size is known."""
CANDIDATES: Final = 10_000
"""The maximum number of events of each kind that one statement reads."""
FEW: Final = 16
"""The maximum number of identities of one version whose referrers are merged."""
PATIENCE: Final = 1.0
"""Seconds after which a page is returned even if it is not full."""

T = TypeVar("T")
Subject = str | Callable[[bool], str | None] | None
"""The reader: a subject, None to see everything, or a function from whether the resource is by access to these."""


class PageRow(NamedTuple):
    """A row of a page: an item if it is `shown`. Everything up to the `last` was read, and nothing after it."""

    oldest: int
    strategy: str
    epoch: int
    version: int
    document: int
    kind: int
    identity: str
    old_identity: str | None
    body: str
    content_version: int
    identity_version: int
    refers: str | None
    shown: bool
    last: bool
    size: int


class Standing(NamedTuple):
    """The settings of the database and the queried resource; `epoch` changes when access to the resource changes."""

    oldest: int
    strategy: str
    key: bytes
    resource: int
    by_access: bool
    epoch: int


class Most(NamedTuple):
    """The limits of a page: items, and bytes unless it has one item."""

    items: int
    bytes: int


class _Switched(Exception):
    """The resource was switched to or from access control."""


def changes(
    connection: Connection,
    resource: Resource,
    min: int | None = None,
    max: int | None = None,
    *,
    after: str | None = None,
    limit: int = LIMIT,
    subject: Subject = None,
    max_bytes: int = BYTES,
) -> Page[Upsert]:
    """Return a page of the created or changed documents; `after` is the token of the previous page."""
    return _page(connection, "changes", (UPSERTS,), resource, (min, max), after, Most(limit, max_bytes), subject)


def deletes(
    connection: Connection,
    resource: Resource,
    min: int | None = None,
    max: int | None = None,
    *,
    after: str | None = None,
    limit: int = LIMIT,
    subject: Subject = None,
    max_bytes: int = BYTES,
) -> Page[Deletion]:
    """Return a page of the documents deleted, or hidden from the subject; without `min`, from the oldest on."""
    return _page(connection, "deletes", (DELETIONS,), resource, (min, max), after, Most(limit, max_bytes), subject)


def key_changes(
    connection: Connection,
    resource: Resource,
    min: int | None = None,
    max: int | None = None,
    *,
    after: str | None = None,
    limit: int = LIMIT,
    subject: Subject = None,
    max_bytes: int = BYTES,
) -> Page[KeyChange]:
    """Return a page of all changes of identities; without `min`, from the oldest on."""
    return _page(connection, "key_changes", (KEYS,), resource, (min, max), after, Most(limit, max_bytes), subject)


def stream(
    connection: Connection,
    resource: Resource,
    min: int | None = None,
    max: int | None = None,
    *,
    after: str | None = None,
    limit: int = LIMIT,
    subject: Subject = None,
    max_bytes: int = BYTES,
) -> Page[Event]:
    """Return a page of all three in the order of versions. Applying them in that order gives the present resource.

    A document with a new key is first returned as a key change, then as changed. Without `min` there is nothing to
    delete yet: the page is that of `changes`.
    """
    kinds = (KEYS, DELETIONS, UPSERTS)
    return _page(connection, "stream", kinds, resource, (min, max), after, Most(limit, max_bytes), subject)


def pages(ask: Callable[[str | None], Page[T]]) -> Iterator[Page[T]]:
    """Yield every page of an answer: `pages(lambda after: changes(connection, students, 5, after=after))`."""
    page = ask(None)
    yield page
    while page.next is not None:
        page = ask(page.next)
        yield page


def representation(document: Document) -> Json:
    """Return a document's representation: its identity, its body, and the identities of its references."""
    references = {name: reference.identity for name, reference in sorted(document.references.items())}
    return {"identity": document.identity, "body": document.body, "references": references}


def standing(connection: Connection, resource: Resource) -> Standing:
    """Return the settings and the resource's number; raise UnknownResource when it has none."""
    named = {"project": resource.project, "name": resource.name, "version": resource.version}
    if any(unstorable(part) for part in named.values()):
        raise UnknownResource("there can be no resource of such a name", fix="write it without U+0000")
    with typed():
        row = _rows(connection, queries("forge.versions", "queries.sql")["standing"], named)[0]
    if row[3] is None:
        raise UnknownResource(f"there is no resource {resource}", fix="declare it, or correct its name")
    return Standing(*row)


def _page(
    connection: Connection,
    query: str,
    kinds: Sequence[int],
    resource: Resource,
    window: tuple[int | None, int | None],
    token: str | None,
    most: Most,
    subject: Subject,
) -> Page[Any]:
    _check(window, token, most, subject)
    while True:
        found = standing(connection, resource)
        who = subject(found.by_access) if callable(subject) else subject
        try:
            return _page_of(
                connection, query, kinds, resource, window, token, most, found, who if found.by_access else None
            )
        except _Switched:
            continue
        except WindowExpired:  # the oldest, used as the default start, rose meanwhile
            if token is not None or window[0] is not None:
                raise


def _page_of(
    connection: Connection,
    query: str,
    kinds: Sequence[int],
    resource: Resource,
    window: tuple[int | None, int | None],
    token: str | None,
    most: Most,
    found: Standing,
    subject: str | None,
) -> Page[Any]:
    question = VersionsQuery(query, found.resource, subject)
    if token is None:
        place = _window(connection, window, None if UPSERTS in kinds else found.oldest)
    else:
        place = opened(found.key, question, token)
        _same(place, window)
    if place.min is not None and place.min > place.max:
        return Page([], epoch=found.epoch)
    rows, following = _full(connection, found, kinds, place, most, subject)
    items = _items(connection, resource, subject, rows)
    return Page(items, None if following is None else sealed(found.key, question, following), found.epoch)


def _check(window: tuple[Any, Any], token: Any, most: Most, subject: Any) -> None:
    """Raise for arguments that are invalid for any database; types are checked too, because values may come from
    clients."""
    for name, value in (("begins", window[0]), ("ends", window[1])):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise WindowInvalid(f"the window {name} at {_short(value)}, which is no version", fix="give a whole number")
    given: Any
    for given, what, highest in ((most.items, "items", MOST), (most.bytes, "bytes", MOST_BYTES)):
        if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= highest:
            raise WindowInvalid(f"a page cannot have {_short(given)} {what}", fix=f"ask for 1 to {highest:,}")
    if token is not None and not isinstance(token, str):
        raise TokenInvalid(f"a page token is a text, not {_short(token)}", fix="give `next` of the page before")
    if subject is not None and not callable(subject) and (not isinstance(subject, str) or unstorable(subject)):
        raise WindowInvalid(f"nobody can be named {_short(subject)}", fix="name the subject by a text without U+0000")


def _short(value: Any) -> str:
    """Return the value's repr, shortened, on one line.

    >>> _short(2**70), _short("a" * 50)
    ('1180591620717411303424', "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…")
    """
    text = ascii(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _full(
    connection: Connection,
    standing: Standing,
    kinds: Sequence[int],
    place: WindowPosition,
    most: Most,
    subject: str | None,
) -> tuple[list[PageRow], WindowPosition | None]:
    """Return the rows of a page and the position after it, None at the end: statement by statement, within PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    told: list[PageRow] = []
    left = most.bytes
    while True:
        end = place.max if place.way == Way.WINDOW else place.version
        step = Most(_step(told, most, left), left)
        rows = _found(connection, standing, kinds, place._replace(max=end), step, subject)
        for row in rows:
            if row.shown:
                if told and (len(told) == most.items or row.size > left):
                    return told, _behind(place, told[-1])
                told.append(row)
                left -= row.size
                if left <= 0:
                    return told, _behind(place, row)
            if row.last:
                place = _further(connection, place, row)
                break
        else:
            if len(rows) == step.items:
                place = _behind(place, rows[-1])
            elif end == place.max:
                return told, None
            else:
                place = place._replace(version=end + 1, document=0, kind=UPSERTS, way=Way.WINDOW)
        if time.monotonic() >= deadline:
            return told, place


def _step(told: Sequence[PageRow], most: Most, left: int) -> int:
    """Return the number of rows to request: one more than the page, to detect the last page, if there seems to be room.

    The database converts all requested rows to text, to find out how many fit.
    """
    room = 0 if not told else left * len(told) // max(most.bytes - left, 1)
    return min(most.items + 1 - len(told), max(STEP, room))


def _behind(place: WindowPosition, row: PageRow) -> WindowPosition:
    version = 0 if place.min is None else row.version
    return place._replace(version=version, document=row.document, kind=row.kind)


def _further(connection: Connection, place: WindowPosition, row: PageRow) -> WindowPosition:
    """Return the position after the last row that was read; document 0 is before all of its version."""
    if row.document:
        return _behind(place, row)
    if row.version > (place.version or place.min or 0):
        return place._replace(version=row.version, document=0, kind=UPSERTS)
    asked = {"version": Int8(row.version), "enough": Int8(FEW + 1)}
    with typed():
        (count,) = _rows(connection, queries("forge.versions", "queries.sql")["changed_by"], asked)[0]
    return place._replace(version=row.version, way=Way.FEW if count <= FEW else Way.MANY)


def _window(connection: Connection, window: tuple[int | None, int | None], otherwise: int | None) -> WindowPosition:
    """Return a window with a valid end; [newest + 1, newest] when there is nothing yet."""
    first, last = window
    if (first is not None and first < 0) or (last is not None and last < 0):
        raise WindowInvalid("a version cannot be below zero", fix="begin at the oldest that is available")
    if first is not None and last is not None and first > last:
        raise WindowInvalid(f"the window ends at {last}, before it begins at {first}", fix="turn it round")
    end = newest(connection) if last is None or outside(connection) else settled(connection)
    if last is not None and last > end:
        raise WindowInvalid(
            f"the window ends at {last}, beyond the newest {end}", fix=f"end it at {end}, or leave it out"
        )
    if first is not None and first > end + 1:
        raise WindowInvalid(
            f"the window begins at {first}, beyond the newest {end}", fix=f"begin it at {end + 1} at most"
        )
    return WindowPosition(otherwise if first is None else first, end if last is None else last)


def _same(place: WindowPosition, window: tuple[int | None, int | None]) -> None:
    for given, known, name in zip(window, (place.min, place.max), ("begins", "ends"), strict=True):
        if given is not None and given != known:
            raise WindowInvalid(
                f"the window {name} at {given}, that of the page token at {known}",
                fix="leave the window out, or begin without a page token",
            )


def _found(
    connection: Connection,
    standing: Standing,
    kinds: Sequence[int],
    place: WindowPosition,
    most: Most,
    subject: str | None,
) -> list[PageRow]:
    """Return the rows of a page, under the settings that were in force when they were read."""
    strategy, begin = standing.strategy, place.min
    while True:
        values = {
            "strategy": strategy,
            "resource": standing.resource,
            "subject": subject,
            "first": Int8(begin if begin else 1),
            "from": Int8(place.version or begin or 0),
            "max": Int8(place.max),
            "after": Int8(place.document),
            **{f"after_{name}": Int8(place.after(kind)) for kind, name in enumerate(("key", "deletion", "upsert"))},
            "limit": Int8(most.items),
            "bytes": Int8(most.bytes),
            "epoch": standing.epoch,
            "candidates": Int8(CANDIDATES),
        }
        statement = statement_of(strategy, None if begin is None else tuple(kinds), subject is not None, place.way)
        rows = _planned(connection, statement, values)
        if not rows:
            raise _Switched
        oldest, strategy, epoch = rows[0][:3]
        if epoch != standing.epoch:
            raise _Switched
        if begin is not None and oldest > values["first"]:
            raise WindowExpired(
                f"the window begins at {begin}, and the oldest that is known is {oldest}",
                fix="read the whole resource again, without a beginning",
                oldest=oldest,
            )
        if strategy == values["strategy"]:
            return [PageRow(*row) for row in rows if row[4] is not None]


def _planned(connection: Connection, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a page. The planner settings are undone with the block, also inside the caller's transaction.

    Only in that case by a ROLLBACK, at which psycopg discards its prepared statements.
    """
    inside = connection.info.transaction_status != TransactionStatus.IDLE
    with typed(), connection.pipeline(), connection.transaction(force_rollback=inside):
        connection.execute(queries("forge.versions", "queries.sql")["settings"])
        return _rows(connection, statement, values)


def _rows(connection: Connection, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(statement.encode(), values).fetchall()


def _items(connection: Connection, resource: Resource, subject: str | None, rows: Sequence[PageRow]) -> list[Event]:
    decoding = 0
    try:
        references = []
        for row in rows:
            decoding = row.document
            references.append(decode_list(row.refers) if row.refers else [])
        kinds = _kinds(connection, {number for found in references for _, _, number, _, _ in found})
        items = []
        for row, found in zip(rows, references, strict=True):
            decoding = row.document
            items.append(_item(resource, subject, row, found, kinds))
        return items
    except DecodeError as error:
        raise unreadable(decoding, error) from error


def _kinds(connection: Connection, numbers: set[int]) -> dict[int, Resource]:
    if not numbers:
        return {}
    with typed():
        named = _rows(connection, queries("forge.versions", "queries.sql")["kinds"], {"numbers": sorted(numbers)})
    return {number: Resource(*names) for number, *names in named}


def _item(
    resource: Resource, subject: str | None, row: PageRow, references: list[Any], kinds: Mapping[int, Resource]
) -> Event:
    if row.kind == KEYS:
        return KeyChange(row.version, row.document, resource, decode(row.old_identity or ""), decode(row.identity))
    if row.kind == DELETIONS:
        return Deletion(row.version, row.document, resource, decode(row.identity), subject)
    refers = {
        name: Reference(child, kinds[number], key, in_identity) for name, child, number, key, in_identity in references
    }
    stamps = row.content_version, row.identity_version
    document = Document(row.document, resource, decode(row.identity), decode(row.body), refers, *stamps)
    return Upsert(row.version, document)
