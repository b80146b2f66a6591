"""Which days have partitions, which should, which of them writers are told about, and which go."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.changelog.partitions import AHEAD, contiguous, missing, partition_day, partition_name, window
from forge.changelog.retention import Policy, doomed

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


NOON = datetime.combine(TODAY, time(12), UTC)


def log(*numbers: int, each: int = 100, overflow: int = 0) -> dict[str, int]:
    """A log with these days, all of one size."""
    return {"forge_event_overflow": overflow} | {partition_name(day(number)): each for number in numbers}


@pytest.mark.contract("R9")
def test_thirty_days_are_kept_and_looked_after_every_minute_unless_told_otherwise() -> None:
    assert Policy() == Policy(30, None, 60.0, 1.0)


@pytest.mark.contract("R9")
def test_days_past_retention_go_and_no_others() -> None:
    have = log(-32, -31, -30, -1, 0, 1)
    assert doomed(have, NOON, Policy()) == {day(-32): "retention", day(-31): "retention"}
    assert doomed(have, NOON, Policy(retention_days=90)) == {}


def test_a_day_that_ended_within_the_hour_stays() -> None:
    midnight = datetime.combine(TODAY, time(), UTC)
    for policy in (Policy(retention_days=0), Policy(size_limit=1)):
        assert doomed(log(-1, 0), midnight + timedelta(minutes=59), policy) == {}
        assert list(doomed(log(-1, 0), midnight + timedelta(minutes=60), policy)) == [day(-1)]


def test_over_the_size_limit_the_oldest_days_go_until_the_rest_fits() -> None:
    have = log(-40, -3, -2, -1, 0, 1)
    assert doomed(have, NOON, Policy(size_limit=500)) == {day(-40): "retention"}
    assert doomed(have, NOON, Policy(size_limit=499)) == {day(-40): "retention", day(-3): "size"}
    assert doomed(have, NOON, Policy(size_limit=300)) == {day(-40): "retention", day(-3): "size", day(-2): "size"}


def test_the_overflow_counts_and_today_and_the_days_to_come_never_go() -> None:
    assert doomed(log(-1, 0, 1, overflow=10**6), NOON, Policy(size_limit=1)) == {day(-1): "size"}


@given(st.sets(near), st.integers(0, 20), st.none() | st.integers(1, 3000))
def test_what_goes_is_never_newer_than_what_stays(numbers: set[int], retention: int, limit: int | None) -> None:
    have = log(*numbers)
    going = doomed(have, NOON, Policy(retention_days=retention, size_limit=limit))
    staying = {day(number) for number in numbers} - going.keys()
    assert not going or not staying or max(going) < min(staying)
    left = {partition_name(each): have[partition_name(each)] for each in staying}
    assert doomed(left, NOON, Policy(retention_days=retention, size_limit=limit)) == {}
