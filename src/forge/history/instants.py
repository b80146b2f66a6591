"""Instants as people write them, and the recorded ones that answer for them.

An instant names its zone, or is so long ago: `2026-11-10 09:00+00`, `2026-11-10T09:00Z`, `1h ago`, `2d`, `now`. A time
without a zone is refused: whose nine o'clock it is nobody can tell.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from psycopg import Cursor as Rows

from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable

_AGO: Final = re.compile(
    r"(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)(?:\s+ago)?"
)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
EXAMPLE: Final = "write it as '2026-11-10 09:00+00', or as '1h ago'"


class Pair(NamedTuple):
    """A recorded instant, and what was committed by then."""

    at: datetime
    snapshot: Snapshot


def instant(text: str, now: datetime | None = None) -> datetime:
    """The instant that a text stands for; HistoryUnavailable when it has no zone or is none.

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
    if word.lower() == "now":
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
    """The instant itself in UTC, if it names its zone.

    >>> aware(datetime.fromisoformat("2026-11-10T09:00+02:00")).isoformat()
    '2026-11-10T07:00:00+00:00'
    """
    if at.tzinfo is None:
        raise HistoryUnavailable("the instant has no time zone", fix="pass an aware datetime")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise HistoryUnavailable(f"{at.isoformat()} is beyond all times", fix=EXAMPLE) from None


def pair_before(rows: Rows[Any], asked: datetime, since: Sequence[datetime] = ()) -> Pair:
    """The last recorded pair at or before an instant; those that can be answered are all `since` some others."""
    found = rows.execute(
        "SELECT at, snapshot::text FROM forge.instant WHERE at <= %s ORDER BY at DESC LIMIT 1", (asked,)
    ).fetchone()
    if found is not None:
        return Pair(found[0], Snapshot.parse(found[1]))
    first = rows.execute("SELECT min(at) FROM forge.instant WHERE at >= ALL (%s)", (list(since),)).fetchone()
    oldest = first[0] if first else None
    raise HistoryUnavailable(
        f"{asked.isoformat()} is unknown: it is before the first recorded instant",
        fix=oldest_fix(oldest),
        oldest=oldest,
    )


def oldest_fix(oldest: datetime | None) -> str:
    """What to do about an instant that is too old."""
    if oldest is None:
        return "there is none yet that can be answered: forge maintain records them while something changes"
    return f"ask for an instant from {oldest.astimezone(UTC).isoformat()} on, the oldest that can be answered"
