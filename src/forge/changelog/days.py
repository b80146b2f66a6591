"""Which days' partitions a poll has to look at.

What a snapshot did not show was written by transactions numbered from its xmin on. Polls remember, for each day, the
xmax they found: numbers from there on were given later, so what they wrote lies in that day or after it. A day of
margin on either side is for clocks that are set. The poll itself says what day the server has; when that is not what
was expected, the clock was set or the reader was away, and the poll must be made again for all days.
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
    """What a reader's polls have shown of transaction numbers and days.

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
        """Remember what a poll found; a clock that went back makes all that was known worthless."""
        if self._first and today < self._first[-1][1]:
            self._first.clear()
        if not self._first or today > self._first[-1][1]:
            self._first = [*self._first[-_KEPT:], (snapshot.xmax, today)]

    def days(self, after: Snapshot) -> Days:
        """The days in which everything lies that this snapshot did not show, as far as is known."""
        known = [day for xmax, day in self._first if xmax <= after.xmin]
        if not known:
            return ALL
        return Days(str(known[-1] - _MARGIN), str(self._first[-1][1] + _MARGIN))

    def expects(self, today: date) -> bool:
        """Whether the server's day is the last one seen, or the next."""
        return bool(self._first) and self._first[-1][1] <= today <= self._first[-1][1] + _MARGIN
