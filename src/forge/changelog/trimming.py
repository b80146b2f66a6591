"""Trim the log: drop whole days by policy, and delete old rows of the tables beside it.

In: the session that maintains, and the policy. Out: what happened, in the report of the round.

Invariants:

- Trimming is recorded in `forge.trimmed`, and the record is committed, before any trimmed row disappears: a reader that
  misses a trimmed row sees the record. So a partition that a running transaction has written to is not trimmed, and
  no partition is removed while a transaction's snapshot is older than the record.
- A day past retention that a consumer has not read is held for `hold_days`, unless the log is over its cap; every
  round's report lists such days, and also what will be dropped unread within a day.
- What cannot be locked in time waits for the next round.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg import sql

from forge.changelog import partitions, unread
from forge.changelog.queries import maintenance
from forge.changelog.report import MaintenanceReport
from forge.changelog.retention import Policy, doomed, first_kept, midnight, rest_of, until_dropped
from forge.postgres.connection import Connection

BUDGET: Final = 5.0
"""Seconds after which a step leaves the rest to the next round."""
_BATCH: Final = 1000
_SETTLE: Final = 1.0
_COUNTED_PAGES: Final = 10_000


class Trimmer:
    """Trims the log in one session, for one round."""

    def __init__(self, connection: Connection, policy: Policy, report: MaintenanceReport) -> None:
        self._connection = connection
        self._policy = policy
        self._report = report

    def finish(self) -> None:
        """Complete what earlier rounds started."""
        for day in partitions.detaching(self._connection):
            with self._giving_way(day):
                partitions.finish(self._connection, day)
        for day in partitions.detached(self._connection):
            with self._giving_way(day):
                self._drop(day)

    def days(self, now: datetime) -> None:
        """Drop the days that the policy does not keep."""
        report, sizes = self._report, partitions.sizes(self._connection)
        report.size = sum(sizes.values())
        going = self._held_back(sizes, now)
        limit, rest = self._policy.size_limit, rest_of(sizes, going)
        if limit is not None and rest > limit:
            report.problems.append(
                f"the log has {rest} bytes, more than its limit of {limit}: all of it is too new to drop"
            )
        if not going:
            return
        partitions.announce(self._connection, now.date(), since=max(going) + timedelta(days=1))
        recorded = [day for day in sorted(going) if self._record(day, going[day])]
        self._settle(recorded)
        for day in recorded:
            if partitions.detaching(self._connection) or not self._settled(day):
                report.waiting.append(partitions.partition_name(day))
                continue
            with self._giving_way(day):
                partitions.detach(self._connection, day)
                self._drop(day)

    def overflow(self, kept: date) -> int:
        """Delete the overflow's rows from before `kept`, oldest transactions first."""
        before = midnight(kept)
        oldest = self._value("oldest_overflow")
        if oldest is None or oldest >= before:
            return 0
        record = self._value("record_overflow", partition=partitions.OVERFLOW)
        return self.rows("trim_overflow", before=before, record=record)

    def rows(self, statement: str, **values: Any) -> int:
        """Repeat a statement that deletes rows and returns their number, until nothing is left or time is up."""
        deadline = time.monotonic() + BUDGET
        total = 0
        while time.monotonic() < deadline:
            deleted: int = self._value(statement, **values, batch=_BATCH)
            total += deleted
            if deleted < _BATCH:
                break
        return total

    def _held_back(self, sizes: Mapping[str, int], now: datetime) -> dict[date, str]:
        """Return the days to drop, without held ones; report consumers that lose unread days, or soon will."""
        policy, report = self._policy, self._report
        going = doomed(sizes, now, policy)
        last = doomed(sizes, now + timedelta(days=1), until_dropped(policy))
        waiting = unread.unread(self._connection, {**going, **last})
        held = unread.hold(going, waiting, first_kept(now, policy), policy.hold_days)
        for day in sorted(held.kept):
            rest = rest_of(sizes, going) + sum(sizes[partitions.partition_name(each)] for each in held.kept)
            if policy.size_limit is not None and rest > policy.size_limit:
                held.lost[day] = held.kept.pop(day)
        for day, who in sorted(held.lost.items()):
            report.problems.append(f"{day} is dropped though {', '.join(who)} has not read it: it has to be rewound")
        for day, who in sorted(waiting.items()):
            if day in held.kept:
                report.held.append(partitions.partition_name(day))
            if day not in held.lost and day in last:
                report.problems.append(
                    f"{', '.join(who)} has not read {day}, which is dropped within a day: see forge consumers"
                )
            elif day in held.kept:
                report.problems.append(
                    f"{', '.join(who)} has not read {day}, which is past retention and held until"
                    f" {day + timedelta(days=policy.retention_days + policy.hold_days + 1)}: see forge consumers"
                )
        return {day: reason for day, reason in going.items() if day not in held.kept}

    def _record(self, day: date, reason: str) -> bool:
        """Record that a partition is trimmed; return False while a running transaction has written to it."""
        name = partitions.partition_name(day)
        if self._value("writers_of", relation=f"forge.{name}"):
            self._report.waiting.append(name)
            return False
        # Only at this point, in a snapshot that sees the rows of those writers.
        statement = sql.SQL(maintenance("last_of")).format(partition=sql.Identifier("forge", name))
        last_id, last = self._connection.execute(statement).fetchone() or (None, None)
        if not self._value("recorded", partition=name, last_transaction=last):
            rows = self._count(name)
            self._connection.execute(
                maintenance("record_trim"),
                {"partition": name, "reason": reason, "rows": rows, "last_id": last_id, "last_transaction": last},
            )
            self._report.trimmed_rows += rows
        return True

    def _count(self, name: str) -> int:
        """Return the number of rows in a partition: counted if it is small, else the planner's estimate."""
        asked = {"relation": f"forge.{name}"}
        estimate, pages = self._connection.execute(maintenance("estimated_rows"), asked).fetchone() or (0, 0)
        if pages > _COUNTED_PAGES and estimate >= 0:
            return int(estimate)
        count = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("forge", name))
        row = self._connection.execute(count).fetchone()
        assert row is not None
        return int(row[0])

    def _settle(self, days: list[date]) -> None:
        """Give transactions that began before the records a moment to end."""
        deadline = time.monotonic() + _SETTLE
        while days and time.monotonic() < deadline and not all(map(self._settled, days)):
            time.sleep(0.02)

    def _settled(self, day: date) -> bool:
        """Tell whether every transaction that reads this database can see the record."""
        return not self._value("unsettled", partition=partitions.partition_name(day))

    def _drop(self, day: date) -> None:
        partitions.drop(self._connection, day)
        self._report.dropped.append(partitions.partition_name(day))

    def _value(self, name: str, **values: Any) -> Any:
        row = self._connection.execute(maintenance(name), values).fetchone()
        return row[0] if row else None

    @contextlib.contextmanager
    def _giving_way(self, day: date) -> Iterator[None]:
        """Leave to the next round what cannot be locked in time."""
        try:
            yield
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            self._report.waiting.append(partitions.partition_name(day))
