"""Tamper evidence: a chain of seals over the log that reveals any row changed, removed or inserted later.

    start(connection)                 # off unless this was called
    seal(connection)                  # maintenance does it
    verify(connection, head="5c0f…").broken

A *seal* covers rows of one day that were committed by a snapshot and are in no earlier seal, in the reader's order. It
has a digest of each row, computed from a salted digest of every value; its head is a digest of the previous head and of
the rows' digests. So one head, kept elsewhere, proves everything before it: rewriting a row and its seal requires
rewriting all later heads.

Invariants:

- Writers do no extra work. Each round of maintenance seals what was committed by then; unsealed rows are not protected.
- Every row is in one seal: batches go from snapshot to snapshot, so none is missed, however late its transaction
  commits, and a round that is killed leaves only complete seals.
- A redaction deletes the salt, so that nobody can guess the values from their digests, and keeps the proof of the rest
  of the row. It is accepted if a tombstone of the log, which is sealed too, accounts for it.
- The meaning of rows is sealed with them: the versions of their tables (`forge.table_version`), each in one seal.
- When retention drops a day, its heads stay, and so do the versions of tables.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final, Literal

import msgspec
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from forge.changelog import partitions
from forge.errors import HistoryUnavailable
from forge.postgres.connection import Connection, typed_errors
from forge.postgres.queries import queries

PAGE: Final = 1_000
"""Maximum number of rows per seal."""
MOST_FINDINGS: Final = 1_000
OVERFLOW: Final = date.max
"""Stands for the day of rows that are in no daily partition."""

_QUERIES: Final = queries("forge.history", "chain.sql")

What = Literal["changed", "removed", "inserted", "redacted", "definition", "seal", "head"]


class SealFinding(msgspec.Struct, frozen=True):
    """One deviation from what was sealed. `event` is the id of a row of the log, `seal` the number of a seal.

    For a `definition`, `version` is the id of the table version.
    """

    what: What
    detail: str
    day: date | None = None
    event: int | None = None
    seal: int | None = None
    version: int | None = None

    def __str__(self) -> str:
        return self.detail


class SealHead(msgspec.Struct, frozen=True):
    """The newest head of a day: it proves all seals up to its own."""

    day: date
    seal: int
    head: str
    rows: int
    """Number of sealed rows of that day."""


class Verified(msgspec.Struct, frozen=True):
    """Result: `rows` were compared; of `dropped` days only heads are left; `unsealed` rows wait for a seal.

    `definitions` is the number of compared table versions, which define how to read rows.
    """

    enabled: bool
    seals: int
    rows: int
    redacted: int
    dropped: Sequence[date]
    unsealed: int
    head: str | None
    broken: Sequence[SealFinding]
    definitions: int = 0


def start(connection: Connection) -> None:
    """Seal the log from now on, including all that it holds."""
    with typed_errors():
        connection.execute("SELECT forge.start_sealing(true)")


def stop(connection: Connection) -> None:
    """Create no further seals; existing ones stay and can be verified."""
    with typed_errors():
        connection.execute("SELECT forge.start_sealing(false)")


def seal(connection: Connection, most: int = PAGE) -> int:
    """Seal committed rows that are not sealed yet, `most` rows per seal and up to 20 seals; return the number of rows.

    Return 0 if all of them are sealed, or sealing is off.
    """
    row = connection.cursor(row_factory=tuple_row).execute("SELECT forge.seal_page(%s)", (most,)).fetchone()
    assert row is not None
    return int(row[0])


def heads(connection: Connection) -> list[SealHead]:
    """Return the newest head of every day with seals, oldest first. Keep them where no writer of this database can."""
    with typed_errors():
        rows = connection.cursor(row_factory=tuple_row).execute(
            "SELECT DISTINCT ON (day) CASE WHEN isfinite(day) THEN day ELSE NULL END, id, encode(head, 'hex'),"
            " sum(rows) OVER (PARTITION BY day) FROM forge.log_seal WHERE rows > 0 ORDER BY day, id DESC"
        )
        return [SealHead(day or OVERFLOW, id, head, count) for day, id, head, count in rows]


def verify(connection: Connection, *, day: date | None = None, head: str | None = None) -> Verified:
    """Recompute the chain and the digests of all rows, or of one day's; look for `head` in the chain."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise HistoryUnavailable(
            "the connection is inside a transaction", fix="commit first, or use a connection in autocommit mode"
        )
    with typed_errors():
        with connection.transaction():
            connection.execute("SELECT forge.current_identity()")
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return _Chain(connection).verified(day, head)


class _Chain:
    """The chain in one snapshot of the database."""

    def __init__(self, connection: Connection) -> None:
        self._cursor = connection.cursor(row_factory=tuple_row)
        self._broken: list[SealFinding] = []

    def verified(self, day: date | None, head: str | None) -> Verified:
        enabled = bool(self._one("SELECT forge.is_sealed()")[0])
        seals, newest = self._links(head)
        if not seals:
            if head is not None:
                self._find(SealFinding("head", "there are no seals, and so not that head"))
            elif not enabled:
                raise HistoryUnavailable("the log is not sealed", fix="forge verify-log --start")
        definitions = self._definitions()
        present = {found for (found,) in self._all("SELECT d FROM forge.log_days() d WHERE isfinite(d)")}
        dropped = self._dropped(present)
        counts = [0, 0, 0]
        for each in [*sorted(present), OVERFLOW] if day is None else [day]:
            if seals and (each in present or each == OVERFLOW):
                found = self._day("infinity" if each == OVERFLOW else each.isoformat())
                counts = [one + other for one, other in zip(counts, found, strict=True)]
        rows, redacted, unsealed = counts
        return Verified(enabled, seals, rows, redacted, dropped, unsealed, newest, self._broken, definitions)

    def _links(self, head: str | None) -> tuple[int, str | None]:
        """Check every seal's place in the chain; return the number of seals and the newest head."""
        rows = self._cursor.execute(_QUERIES["links"])
        number, newest, seen = 0, None, False
        for id, day, found, own, linked, next_one, whole in rows.fetchall():
            number += 1
            newest = found
            seen = seen or found == head
            if not next_one:
                self._find(SealFinding("seal", f"a seal before seal {id} is missing", day, seal=id))
            elif not linked:
                self._find(SealFinding("seal", f"seal {id} does not follow from the one before it", day, seal=id))
            if not own or not whole:
                self._find(SealFinding("seal", f"seal {id} is not as it was made", day, seal=id))
        if head is not None and number and not seen:
            self._find(
                SealFinding("head", f"the head {head[:16]}… is not in the chain: seals were removed or made again")
            )
        return number, newest

    def _definitions(self) -> int:
        """Compare the table versions with their seals; return how many are sealed."""
        (*_, count), *found = self._cursor.execute(_QUERIES["definitions"]).fetchall()
        for seal, version, gone, _ in found:
            detail = f"table version {version} is {'gone' if gone else 'not as it was sealed'}"
            self._find(SealFinding("definition", detail, seal=seal, version=version))
        return int(count)

    def _dropped(self, present: set[date]) -> list[date]:
        """Return days with only heads left, as retention leaves them; any other day without rows is a finding."""
        trimmed = {partitions.partition_day(name) for (name,) in self._all("SELECT partition FROM forge.trimmed")}
        dropped = []
        for day, forgotten, count in self._cursor.execute(_QUERIES["sealed_days"]).fetchall():
            if day not in present and day in trimmed:
                dropped.append(day)
            elif day not in present or forgotten:
                self._find(SealFinding("removed", f"the {count} sealed rows of {day} are gone, not by retention", day))
        return dropped

    def _day(self, day: str) -> tuple[int, int, int]:
        """Compare a day's rows with their seals; return how many are sealed, redacted among these, and unsealed."""
        known = None if day == "infinity" else date.fromisoformat(day)
        values = {"day": day, "most": MOST_FINDINGS}
        counts, *found = self._cursor.execute(_QUERIES["day"], values).fetchall()
        for event, seal, what in found:
            detail = {
                "changed": f"row {event} is not as it was sealed",
                "removed": f"row {event} is gone",
                "redacted": f"row {event} lacks values, and no tombstone accounts for it",
                "inserted": f"row {event} was put in after its time was sealed",
            }[what]
            self._find(SealFinding(what, f"{detail} ({known or 'overflow'})", known, event, seal))
        return counts[0], counts[1], int(counts[2])

    def _find(self, finding: SealFinding) -> None:
        if len(self._broken) < MOST_FINDINGS:
            self._broken.append(finding)

    def _one(self, statement: str) -> Any:
        return self._cursor.execute(statement.encode()).fetchone()

    def _all(self, statement: str) -> Iterator[tuple[Any, ...]]:
        yield from self._cursor.execute(statement.encode()).fetchall()
