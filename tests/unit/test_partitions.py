"""Which days have partitions, which should, and which of them writers are told about."""

from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.changelog.partitions import AHEAD, contiguous, missing, partition_day, partition_name, window

days = st.dates(date(1970, 1, 1), date(9990, 1, 1))
near = st.integers(-20, 20)
TODAY = date(2026, 11, 15)


def day(number: int) -> date:
    return TODAY + timedelta(days=number)


@given(days)
def test_a_name_tells_its_day(a_day: date) -> None:
    assert partition_day(partition_name(a_day)) == a_day


@pytest.mark.parametrize(
    "name", ["forge_event_overflow", "forge_event_log_", "forge_event_log_20261301", "forge_event_log_2026111", "x"]
)
def test_another_name_is_no_day(name: str) -> None:
    assert partition_day(name) is None


@pytest.mark.contract("T5")
@given(st.sets(near))
def test_after_making_what_is_missing_a_week_ahead_is_there(numbers: set[int]) -> None:
    have = sorted(map(day, numbers))
    made = missing(have, TODAY)
    assert not set(made) & set(have)
    assert {day(n) for n in range(AHEAD + 1)} <= set(have) | set(made)
    assert missing(sorted([*have, *made]), TODAY) == []


@given(st.sets(near))
def test_runs_are_the_days_and_have_no_hole(numbers: set[int]) -> None:
    have = sorted(map(day, numbers))
    runs = contiguous(have)
    assert [first + timedelta(days=n) for first, last in runs for n in range((last - first).days + 1)] == have
    assert all(left[1] + timedelta(days=1) < right[0] for left, right in pairwise(runs))


@given(st.sets(near), st.none() | near)
def test_writers_are_told_only_of_days_that_have_a_partition(numbers: set[int], since: int | None) -> None:
    have = sorted(map(day, numbers))
    first, end = window(have, TODAY, None if since is None else day(since))
    told = [first + timedelta(days=n) for n in range((end - first).days)]
    assert set(told) <= set(have)
    assert since is None or not told or told[0] >= day(since)
    if TODAY in have and (since is None or since <= 0):
        assert TODAY in told
