"""Turns of requests: so many run and wait, in order, one of each key, and nothing is left behind."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.errors import LimitReached
from forge.serve.limits import Holder
from forge.serve.turns import Turns

ADA: Holder = ("a user", "ada")
BOB: Holder = ("a user", "bob")


class Request:
    """A request that runs until it is told to end."""

    def __init__(self, turns: Turns, holder: Holder, key: str | None = None) -> None:
        self.started = asyncio.Event()
        self.end = asyncio.Event()
        self.key = key
        self.task = asyncio.create_task(self._run(turns, holder))

    async def _run(self, turns: Turns, holder: Holder) -> None:
        async with turns.turn(holder, self.key):
            self.started.set()
            await self.end.wait()


async def settle() -> None:
    """Let everything happen that waits for nothing outside."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_so_many_run_and_wait_in_order_and_others_are_refused() -> None:
    turns = Turns(2, 2)
    requests = [Request(turns, ADA) for _ in range(5)]
    await settle()
    assert [request.started.is_set() for request in requests] == [True, True, False, False, False]
    assert (turns.running, turns.waiting, turns.refused) == (2, 2, 1)
    with pytest.raises(LimitReached, match="a user may have 2 requests running and 2 waiting") as refused:
        await requests[4].task
    assert refused.value.retry_after_secs > 0
    other = Request(turns, BOB)
    await settle()
    assert other.started.is_set(), "another user's turn does not depend on hers"
    requests[1].end.set()
    await settle()
    assert [request.started.is_set() for request in requests] == [True, True, True, False, False]
    for request in (*requests, other):
        request.end.set()
    await asyncio.gather(*(request.task for request in (*requests[:4], other)))
    assert (turns.running, turns.waiting, len(turns)) == (0, 0, 0)


async def test_a_key_runs_once_at_a_time_and_its_copies_take_no_turn() -> None:
    turns = Turns(2, 10)
    copies = [Request(turns, ADA, "k") for _ in range(4)]
    another = Request(turns, ADA)
    await settle()
    assert [request.started.is_set() for request in (*copies, another)] == [True, False, False, False, True]
    for request in (*copies, another):
        request.end.set()
    await asyncio.gather(*(request.task for request in (*copies, another)))
    assert len(turns) == 0


async def test_who_waits_too_long_is_refused() -> None:
    turns = Turns(1, 1, patience=0.01)
    running = Request(turns, ADA)
    await settle()
    with pytest.raises(LimitReached, match=r"were running for 0\.01 s"):
        async with turns.turn(ADA):
            raise AssertionError("there is no room")
    assert (turns.waiting, turns.refused) == (0, 1)
    running.end.set()
    await running.task
    assert len(turns) == 0


KEYS = st.sampled_from([None, "k", "l"])
STEPS = st.lists(st.tuples(st.sampled_from(["ask", "end", "cancel"]), st.sampled_from([ADA, BOB]), KEYS), max_size=30)


@settings(max_examples=60)
@given(STEPS)
def test_whatever_happens_nobody_has_more_and_nothing_is_left(steps: list[tuple[str, Holder, str | None]]) -> None:
    async def play() -> None:
        turns = Turns(2, 3)
        asked: list[tuple[Holder, Request]] = []
        for step, holder, key in steps:
            if step == "ask":
                asked.append((holder, Request(turns, holder, key and f"{holder[1]} {key}")))
            elif asked:
                request = asked[len(steps) % len(asked)][1]
                request.end.set() if step == "end" else request.task.cancel()
            await settle()
            alive = [(of, request) for of, request in asked if not request.task.done()]
            running = [(of, request.key) for of, request in alive if request.started.is_set()]
            assert len(running) == turns.running
            assert len(alive) - len(running) == turns.waiting
            for who in (ADA, BOB):
                assert sum(of == who for of, _ in running) <= 2
                assert sum(of == who for of, _ in alive) <= 5
            keys = [key for key in running if key[1] is not None]
            assert len(keys) == len(set(keys))
        for _, request in asked:
            request.end.set()
        for _, request in asked:
            with contextlib.suppress(LimitReached, asyncio.CancelledError):
                await request.task
        assert (turns.running, turns.waiting, len(turns)) == (0, 0, 0)

    asyncio.run(play())
