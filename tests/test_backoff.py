"""Waits grow up to a limit, differ between clients, and never come before what the server asked for."""

from hypothesis import given
from hypothesis import strategies as st

from forge.backoff import Backoff


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.floats(0, 100))
def test_waits_stay_within_their_limits(chances: list[float], asked: float) -> None:
    left = iter(chances)
    backoff = Backoff(first=0.25, most=30.0, chance=lambda: next(left))
    limits = [min(30.0, 0.25 * 2**tried) for tried in range(12)]
    for limit in limits:
        wait = backoff.next(asked) - asked
        assert limit / 2 - 1e-9 <= wait <= limit + 1e-9


def test_two_clients_do_not_come_back_together() -> None:
    assert len({Backoff().next() for _ in range(20)}) > 10
