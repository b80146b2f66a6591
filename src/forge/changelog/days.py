"""Select the daily partitions that a poll has to read.

Transactions numbered from a snapshot's xmin on wrote everything that the snapshot did not show. For each day, polls
remember the xmax they found: later numbers were assigned later, so their rows are in that day's partition or a later
one. One day of margin on either side allows for clock adjustments. The poll itself returns the server's date; if it is
not the expected one, the clock was adjusted or the reader was away, and the poll must be repeated for all days.
"""

from datetime import date, timedelta
from typing import Final, NamedTuple

from forge.cursor import Snapshot

_MARGIN: Final = timedelta(days=1)
_KEPT: Final = 40


class Days(NamedTuple):
    """The days from `since` up to `upto`, as PostgreSQL writes them."""

    since: str
    upto: str


ALL: Final = Days("-infinity", "infinity")


class Calendar:
    """Transaction numbers and days that a reader's polls have seen.

    >>> calendar = Calendar()
    >>> calendar.days(Snapshot(100, 100))
    Days(since='-infinity', upto='infinity')
    >>> calendar.note(Snapshot(100, 100), date(2026, 1, 10))
    >>> calendar.note(Snapshot(900, 900), date(2026, 1, 12))
    >>> calendar.days(Snapshot(150, 950))
    Days(since='2026-01-09', upto='2026-01-13')
    >>> calendar.days(Snapshot(99, 950)).since
    '-infinity'
    >>> calendar.expects(date(2026, 1, 13)), calendar.expects(date(2026, 1, 14)), calendar.expects(date(2026, 1, 11))
    (True, False, False)
    """

    def __init__(self) -> None:
        self._first: list[tuple[int, date]] = []

    def note(self, snapshot: Snapshot, today: date) -> None:
        """Remember what a poll found; drop all that was known if the clock went back."""
        if self._first and today < self._first[-1][1]:
            self._first.clear()
        if not self._first or today > self._first[-1][1]:
            self._first = [*self._first[-_KEPT:], (snapshot.xmax, today)]

    def days(self, after: Snapshot) -> Days:
        """Return the days that hold everything this snapshot did not show, as far as is known."""
        known = [day for xmax, day in self._first if xmax <= after.xmin]
        if not known:
            return ALL
        return Days(str(known[-1] - _MARGIN), str(self._first[-1][1] + _MARGIN))

    def expects(self, today: date) -> bool:
        """Tell whether the server's date is the last one seen, or the day after it."""
        return bool(self._first) and self._first[-1][1] <= today <= self._first[-1][1] + _MARGIN
