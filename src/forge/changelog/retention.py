"""Retention of the log: which days are dropped, given the policy, the sizes of the partitions and the time.

Invariants:

- Whole days are dropped: each is kept until `retention_days` have passed since its end.
- The size cap drops the oldest whole days until the log is below it. Today and a day that ended within the last hour
  always stay, so the log may be larger than the cap.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec

from forge.changelog import partitions
from forge.errors import ConfigError

GRACE: Final = timedelta(hours=1)
"""Time after its end for which a day cannot be dropped."""


class Policy(msgspec.Struct, frozen=True):
    """Retention settings and intervals of maintenance; times in seconds."""

    retention_days: int = 30
    size_limit: int | None = None
    interval: float = 60.0
    instants: float = 1.0
    hold_days: int = 7
    """Number of days past retention for which a day is held that a consumer has not read."""

    def __post_init__(self) -> None:
        limits = [
            (self.retention_days >= 0, "retention_days", "0 or more"),
            (self.size_limit is None or self.size_limit > 0, "size_limit", "a number of bytes, or nothing"),
            (self.hold_days >= 0, "hold_days", "0 or more"),
            (self.interval > 0, "interval", "more than 0 seconds"),
            (self.instants > 0, "instants", "more than 0 seconds"),
        ]
        for holds, name, wanted in limits:
            if not holds:
                raise ConfigError(f"{name} cannot be {getattr(self, name)}", fix=f"set it to {wanted}")


def doomed(sizes: Mapping[str, int], now: datetime, policy: Policy) -> dict[date, str]:
    """Return the days to drop, in order, each with its reason: `retention` or `size`. `sizes` is by partition name."""
    days = sorted(day for name in sizes if (day := partitions.partition_day(name)) is not None and _ended(day, now))
    kept = first_kept(now, policy)
    going = {day: "retention" for day in days if day < kept}
    rest = rest_of(sizes, going)
    for day in days:
        if policy.size_limit is not None and rest > policy.size_limit and day not in going:
            going[day] = "size"
            rest -= sizes[partitions.partition_name(day)]
    return going


def rest_of(sizes: Mapping[str, int], going: Iterable[date]) -> int:
    """Return the size of the log without these days."""
    return sum(sizes.values()) - sum(sizes[partitions.partition_name(day)] for day in going)


def until_dropped(policy: Policy) -> Policy:
    """Return the policy under which days are dropped even if a consumer has not read them."""
    return msgspec.structs.replace(policy, retention_days=policy.retention_days + policy.hold_days)


def first_kept(now: datetime, policy: Policy) -> date:
    """Return the first day within retention."""
    return now.date() - timedelta(days=policy.retention_days)


def midnight(day: date) -> datetime:
    """Return the beginning of a day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _ended(day: date, now: datetime) -> bool:
    """Tell whether a day is over, so that no transaction can be about to write to it."""
    return now >= midnight(day + timedelta(days=1)) + GRACE
