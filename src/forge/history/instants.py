"""Instants as users write them, and the snapshots that answer for them.

An instant has a time zone, or is relative: `2026-11-10 09:00+00`, `2026-11-10T09:00Z`, `1h ago`, `2d`, `now`. A time
without a zone is refused, because it is ambiguous.

The last recorded snapshot at or before an instant answers for it. For now, and for instants after the newest recorded
one, the reader's own snapshot answers, minus the transactions that wrote something after the instant.

Invariants:

- All that was committed before `Answered.at` is in the answer; nothing that was written after the instant is. What was
  written before the instant and may have been committed after it is in an answer from the reader's own snapshot only,
  and `Gap.unsure` counts it.
- The answering snapshot is chosen once, in the reader's own snapshot. Every table of an answer uses the same one.
- An instant in the future means now.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from psycopg import Cursor as Rows

from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.postgres.queries import fragment
from forge.wire import timestamp

_AGO: Final = re.compile(
    r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)(?:\s+ago)?"
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
EXAMPLE: Final = "write it as '2026-11-10 09:00+00', or as '1h ago'"


NOW: Final = "now"
LATER: Final = 10_000
"""Maximum number of transactions since the newest recorded instant that an answer can exclude."""
COUNTED: Final = 1_000
"""Maximum number of changes between the answer and the instant that are counted."""


class Answered(msgspec.Struct, frozen=True):
    """The snapshot that answers for an instant: all that `snapshot` sees was committed by `at`, at or before `asked`.

    `next` is the next recorded snapshot, if there is one: what it does not see was committed after the instant. What
    `sure` does not see may have been committed after the instant, too.
    """

    asked: datetime
    at: datetime
    snapshot: Snapshot
    next: Snapshot | None = None
    sure: Snapshot | None = None


class Gap(msgspec.Struct, frozen=True):
    """The distance from an answer to the requested instant.

    `changes` counts the table's changes that were written by the instant and are not in the answer; None if withheld.
    `unsure` counts changes in the answer that were written by the instant but may have been committed after it, which
    is unknown since the newest recorded instant. Both are counted up to `COUNTED`; `capped`: there are more.

    >>> noon = datetime(2026, 11, 10, 12, tzinfo=UTC)
    >>> str(Gap(noon, noon - timedelta(seconds=0.7), 0))
    'as of 2026-11-10 11:59:59.300Z (0.7 s before; no change lies between)'
    >>> str(Gap(noon, noon - timedelta(seconds=2.9), 14))
    'as of 2026-11-10 11:59:57.100Z (2.9 s before; 14 changes lie between)'
    >>> str(Gap(noon, noon - timedelta(days=1), 1000, capped=True))
    'as of 2026-11-09 12:00:00.000Z (86400 s before; more than 1000 changes lie between)'
    >>> str(Gap(noon, noon, 0))
    'as of 2026-11-10 12:00:00.000Z'
    >>> str(Gap(noon, noon, 0, unsure=2))
    'as of 2026-11-10 12:00:00.000Z (2 changes may have been committed after)'
    """

    asked: datetime
    at: datetime
    changes: int | None
    unsure: int | None = 0
    capped: bool = False

    @property
    def seconds(self) -> float:
        """Return the seconds from the answer to the requested instant."""
        return (self.asked - self.at).total_seconds()

    def wire(self) -> dict[str, Any]:
        """Return the fields that every JSON answer has."""
        return {
            "asked": timestamp(self.asked),
            "at": timestamp(self.at),
            "gap_seconds": self.seconds,
            "changes_between": self.changes,
            "changes_unsure": self.unsure,
            "changes_capped": self.capped,
        }

    def and_of(self, other: "Gap") -> "Gap":
        """Return the gap of several tables answered by one snapshot: the changes of all of them."""
        if self.changes is None or other.changes is None or self.unsure is None or other.unsure is None:
            return self.untold()
        changes, unsure = self.changes + other.changes, self.unsure + other.unsure
        return Gap(self.asked, self.at, changes, unsure, self.capped or other.capped)

    def untold(self) -> "Gap":
        """Return the gap without the number of changes, for callers that may not see all rows of the table."""
        return Gap(self.asked, self.at, None, None)

    def __str__(self) -> str:
        parts = []
        if self.asked != self.at:
            digits = 3 if self.seconds < 0.1 else 1 if self.seconds < 100 else 0
            parts.append(f"{self.seconds:.{digits}f} s before")
            if self.changes is not None:
                parts.append(f"{self._number(self.changes)} {'lies' if self.changes < 2 else 'lie'} between")
        if self.unsure:
            parts.append(f"{self._number(self.unsure)} may have been committed after")
        return f"as of {moment(self.at)}" + (f" ({'; '.join(parts)})" if parts else "")

    def _number(self, changes: int) -> str:
        if not changes:
            return "no change"
        number = f"more than {changes}" if self.capped and changes >= COUNTED else changes
        return f"{number} {'change' if changes == 1 else 'changes'}"


def moment(at: datetime) -> str:
    """Format a time for people, in the form that --at accepts.

    >>> moment(datetime(2026, 11, 10, 9, 0, 1, 250_000, tzinfo=UTC))
    '2026-11-10 09:00:01.250Z'
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds") + "Z"


def instant_or_now(text: str) -> datetime | None:
    """Parse an instant; None for now, because the database's clock counts and not this machine's.

    >>> instant_or_now(" Now"), instant_or_now("2026-11-10 09:00+00").isoformat()
    (None, '2026-11-10T09:00:00+00:00')
    """
    return None if text.strip().lower() == NOW else instant(text)


def instant(text: str, now: datetime | None = None) -> datetime:
    """Parse an instant; raise HistoryUnavailable if it has no zone or is invalid.

    >>> noon = datetime(2026, 11, 10, 12, tzinfo=UTC)
    >>> [instant(text, noon).isoformat() for text in ("2026-11-10 09:00+00", "90m ago", "2d", "now")]
    ['2026-11-10T09:00:00+00:00', '2026-11-10T10:30:00+00:00', '2026-11-08T12:00:00+00:00', '2026-11-10T12:00:00+00:00']
    >>> instant("2026-11-10 09:00")
    Traceback (most recent call last):
    forge.errors.HistoryUnavailable: the time '2026-11-10 09:00' has no time zone
    fix: write it as '2026-11-10 09:00+00', or as '1h ago'
    """
    word = text.strip()
    now = now or datetime.now(UTC)
    if word.lower() == NOW:
        return now
    if match := _AGO.fullmatch(word.lower()):
        unit = "ms" if match[2] == "ms" else match[2][0]
        try:
            return now - timedelta(seconds=float(match[1]) * _UNITS[unit])
        except OverflowError:
            raise HistoryUnavailable(f"{text[:60]!r} is before all times", fix=EXAMPLE) from None
    try:
        found = datetime.fromisoformat(word)
    except ValueError:
        raise HistoryUnavailable(f"{text[:60]!r} is not an instant", fix=EXAMPLE) from None
    if found.tzinfo is None:
        example = f"{found:%Y-%m-%d %H:%M}+00"
        raise HistoryUnavailable(
            f"the time {text[:60]!r} has no time zone", fix=f"write it as '{example}', or as '1h ago'"
        )
    return aware(found)


def aware(at: datetime) -> datetime:
    """Return the instant in UTC, if it has a time zone.

    >>> aware(datetime.fromisoformat("2026-11-10T09:00+02:00")).isoformat()
    '2026-11-10T07:00:00+00:00'
    """
    if at.tzinfo is None:
        raise HistoryUnavailable("the instant has no time zone", fix="pass an aware datetime")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise HistoryUnavailable(f"{at.isoformat()} is beyond all times", fix=EXAMPLE) from None


def current(rows: Rows[Any]) -> Answered:
    """Return the answer for now. Call it first in a transaction: its time is then that of the transaction's snapshot.

    That snapshot must stay the same: REPEATABLE READ.
    """
    row = rows.execute("SELECT clock_timestamp(), pg_current_snapshot()::text").fetchone()
    assert row is not None
    return Answered(row[0], row[0], Snapshot.parse(row[1]))


def answered(
    rows: Rows[Any], now: Answered, asked: datetime | None, first_id: int, since: Sequence[datetime] = ()
) -> Answered:
    """Return the answer for an instant, None for now, in the snapshot of the transaction that `rows` reads in.

    `now` is what `current` returned in that transaction. Only instants after every one of `since` can be answered.
    """
    if asked is None or asked >= now.at:
        return now if asked is None else msgspec.structs.replace(now, asked=asked)
    pair, following = (
        rows.execute(statement, (asked,)).fetchone()
        for statement in (
            "SELECT at, snapshot::text FROM forge.instant WHERE at <= %s ORDER BY at DESC LIMIT 1",
            "SELECT at, snapshot::text FROM forge.instant WHERE at > %s ORDER BY at LIMIT 1",
        )
    )
    before = None if pair is None else Snapshot.parse(pair[1])
    newest = following is None and (pair is None or pair[0] < asked)
    if newest and (less := _without_later(rows, now.snapshot, before, asked, first_id)) is not None:
        return Answered(asked, asked, less, sure=before or Snapshot(1, 1))
    if pair is not None and before is not None:
        return Answered(asked, pair[0], before, None if following is None else Snapshot.parse(following[1]))
    first = rows.execute("SELECT min(at) FROM forge.instant WHERE at >= ALL (%s)", (list(since),)).fetchone()
    oldest = first[0] if first else None
    raise HistoryUnavailable(
        f"{asked.isoformat()} is unknown: it is before the first recorded instant",
        fix=oldest_fix(oldest),
        oldest=oldest,
    )


def _without_later(
    rows: Rows[Any], snapshot: Snapshot, before: Snapshot | None, asked: datetime, first_id: int
) -> Snapshot | None:
    """Return a snapshot that does not see the transactions that wrote after an instant.

    `before` is the newest recorded one, all of this log. None if those transactions are too many, or not in the log.
    """
    known = before or Snapshot(1, 1)
    values = {
        "asked": asked,
        "first_id": first_id,
        **known.bounds,
        "most": LATER + 1,
    }
    whole = rows.execute(
        "SELECT NOT forge.trimmed_since(%(xmax)s::text::xid8, %(running)s::text[]::xid8[], %(first_id)s)"
        " AND %(asked)s >= ALL (SELECT i.recorded_at FROM forge.log_identity i)",
        values,
    ).fetchone()
    if whole != (True,):
        return None
    later = rows.execute(
        "SELECT DISTINCT l.transaction_id::text FROM forge.forge_event_log l"
        " WHERE l.at > %(asked)s AND l.day >= (%(asked)s AT TIME ZONE 'UTC')::date AND l.id >= %(first_id)s"
        f" AND {fragment('after_snapshot')} LIMIT %(most)s",
        values,
    ).fetchall()
    return None if len(later) > LATER else snapshot.without(int(xid) for (xid,) in later)


def oldest_fix(oldest: datetime | None) -> str:
    """Return the fix for an instant that is too old."""
    if oldest is None:
        return "ask as of now; forge maintain records instants while something changes"
    return f"ask for an instant from {oldest.astimezone(UTC).isoformat()} on, the oldest that can be answered"
