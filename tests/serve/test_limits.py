"""Limits of sessions, subscriptions and messages: reached exactly, given back once, nothing left behind."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.errors import ConfigError, LimitReached
from forge.react.registry import Auth
from forge.serve.auth import TokenIdentity
from forge.serve.limits import Bucket, Gate, Hold, Limits
from forge.serve.node import _person

USERS = st.sampled_from([None, "ada", "bob", "192.0.2.1"])
ADDRESSES = st.sampled_from(["192.0.2.1", "192.0.2.2"])
SMALL = Limits(sessions_per_user=2, sessions_per_ip=3, subscriptions_per_user=4)


def test_defaults() -> None:
    limits = Limits()
    assert (limits.sessions_per_user, limits.sessions_per_ip, limits.subscriptions_per_user) == (8, 32, 500)
    assert (limits.requests_per_user, limits.waiting_per_user) == (8, 32)
    assert (limits.request_bytes, limits.argument_bytes) == (1024 * 1024, 64 * 1024)
    assert (limits.messages_per_second, limits.message_burst) == (50, 100)


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_a_limit_that_lets_nothing_or_everything_through_is_refused(name: str, wrong: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: wrong})  # type: ignore[arg-type]


def test_a_user_has_8_sessions_from_anywhere() -> None:
    gate = Gate()
    for number in range(8):
        gate.session("ada", f"192.0.2.{number}")
    with pytest.raises(LimitReached, match="a user may have 8 sessions") as refused:
        gate.session("ada", "192.0.2.99")
    assert refused.value.retry_after_secs > 0
    gate.session("bob", "192.0.2.99")


def test_a_user_of_a_tenant_is_not_one_whose_name_looks_like_it() -> None:
    people = [Auth("ada", "acme"), Auth("acme/ada"), Auth("ada"), Auth("ada", "None"), Auth("None/ada")]
    assert len({_person(TokenIdentity(auth)) for auth in people}) == len(people)
    assert _person(TokenIdentity(Auth(tenant="acme"))) is None


def test_an_address_has_32_sessions_of_anybody() -> None:
    gate = Gate()
    for number in range(32):
        gate.session(f"user{number}" if number % 2 else None, "192.0.2.1")
    for user in ("eve", None):
        with pytest.raises(LimitReached, match="an address may have 32 sessions"):
            gate.session(user, "192.0.2.1")
    gate.session("eve", "192.0.2.2")


def test_a_session_refused_by_address_does_not_count_for_the_user() -> None:
    gate = Gate(Limits(sessions_per_user=1, sessions_per_ip=1))
    held = gate.session(None, "192.0.2.1")
    with pytest.raises(LimitReached):
        gate.session("ada", "192.0.2.1")
    gate.session("ada", "192.0.2.2").release()
    held.release()
    assert len(gate) == 0


def test_subscriptions_count_by_user_and_of_nobody_known_by_address() -> None:
    gate = Gate()
    for number in range(500):
        gate.subscription("ada", f"192.0.2.{number % 250}")
        gate.subscription(None, "192.0.2.1")
    with pytest.raises(LimitReached, match="a user may have 500 subscriptions"):
        gate.subscription("ada", "192.0.2.1")
    with pytest.raises(LimitReached, match="an address may have 500 subscriptions"):
        gate.subscription(None, "192.0.2.1")
    gate.subscription(None, "192.0.2.2")
    gate.subscription("192.0.2.1", "192.0.2.1")


def test_releasing_twice_gives_back_once() -> None:
    gate = Gate(Limits(sessions_per_user=2))
    first, second = gate.session("ada", "192.0.2.1"), gate.session("ada", "192.0.2.1")
    first.release()
    first.release()
    third = gate.session("ada", "192.0.2.1")
    with pytest.raises(LimitReached):
        gate.session("ada", "192.0.2.1")
    second.release()
    third.release()
    assert len(gate) == 0


def test_a_block_that_raises_gives_back() -> None:
    gate = Gate()
    with contextlib.suppress(LookupError), gate.session("ada", "192.0.2.1"), gate.subscription("ada", "192.0.2.1"):
        assert len(gate) == 3
        raise LookupError
    assert len(gate) == 0


Steps = st.lists(
    st.tuples(st.sampled_from(["session", "subscription", "release"]), USERS, ADDRESSES, st.integers(0, 20))
)


@given(Steps)
def test_the_gate_agrees_with_a_list_of_what_is_held(steps: list[tuple[str, str | None, str, int]]) -> None:
    gate = Gate(SMALL)
    made: list[tuple[Hold, str, str | None, str]] = []
    held: list[tuple[Hold, str, str | None, str]] = []
    for kind, user, address, choice in steps:
        if kind == "release":
            if made:
                entry = made[choice % len(made)]  # perhaps one that was released before
                entry[0].release()
                held = [other for other in held if other is not entry]
            continue
        mine = [entry for entry in held if entry[1] == kind]
        of_user = sum(entry[2] == user for entry in mine)
        of_address = sum(entry[3] == address for entry in mine)
        nobody_there = sum(entry[2] is None and entry[3] == address for entry in mine)
        if kind == "session":
            allowed = of_address < SMALL.sessions_per_ip and (user is None or of_user < SMALL.sessions_per_user)
            take = gate.session
        else:
            allowed = (nobody_there if user is None else of_user) < SMALL.subscriptions_per_user
            take = gate.subscription
        if allowed:
            entry = (take(user, address), kind, user, address)
            made.append(entry)
            held.append(entry)
        else:
            with pytest.raises(LimitReached):
                take(user, address)
    counters = {(kind, "user", user) for _, kind, user, _ in held if user is not None}
    counters |= {(kind, "address", at) for _, kind, user, at in held if kind == "session" or user is None}
    assert len(gate) == len(counters)
    for entry in made:
        entry[0].release()
    assert len(gate) == 0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_goes_through_then_the_rate() -> None:
    clock = Clock()
    rate = Gate(clock=clock).rate()
    for _ in range(100):
        rate.take()
    with pytest.raises(LimitReached, match="50 messages per second") as refused:
        rate.take()
    assert refused.value.retry_after_secs == 1
    clock.now += 0.1
    for _ in range(5):
        rate.take()
    with pytest.raises(LimitReached):
        rate.take()


def test_waiting_as_long_as_told_is_enough() -> None:
    clock = Clock()
    bucket = Bucket(rate=0.3, burst=1, clock=clock)
    bucket.take()
    with pytest.raises(LimitReached) as refused:
        bucket.take()
    assert refused.value.retry_after_secs == 4
    clock.now += refused.value.retry_after_secs
    bucket.take()


def test_sessions_have_rates_of_their_own() -> None:
    gate = Gate(Limits(message_burst=1), clock=Clock())
    first, second = gate.rate(), gate.rate()
    first.take()
    second.take()
    with pytest.raises(LimitReached):
        first.take()


@given(
    st.lists(st.floats(-1, 5, allow_nan=False), max_size=200),
    st.floats(0.1, 20, allow_nan=False),
    st.integers(1, 10),
)
def test_never_more_than_the_burst_and_the_rate(pauses: list[float], rate: float, burst: int) -> None:
    clock = Clock()
    bucket = Bucket(rate, burst, clock)
    passed, latest = 0, clock.now
    for pause in pauses:
        clock.now += pause
        latest = max(latest, clock.now)
        with contextlib.suppress(LimitReached):
            bucket.take()
            passed += 1
        assert passed <= burst + (latest - 1000.0) * rate + 1e-6
