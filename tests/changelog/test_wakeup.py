"""The wake-up protocol, driven through every interleaving with writers.

The model is PostgreSQL as far as the protocol sees it: a writer inserts (and holds its lock on the log from then
on), tries K, commits (its change becomes visible), is heard if it NOTIFYs, and only then lets go of its locks.
A state is lost when every writer has finished, the reader sleeps without having been notified, and a committed
change has not been read.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from forge.changelog.wakeup import Load, Protocol, WakeupStep, listener, pacemaker


class Always(Load):
    """Heavy from the first wake-up on, so that the pacemaker takes K as early as it may."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)

    def heavy(self, found: int) -> bool:
        return True


@dataclass
class Writer:
    """One transaction: insert, try K, commit or roll back, be heard, let go."""

    commits: bool = True
    at: int = 0
    loud: bool = False
    shares: bool = False

    STEPS = 5

    @property
    def done(self) -> bool:
        return self.at == self.STEPS

    @property
    def locks_log(self) -> bool:
        return 0 < self.at < self.STEPS


@dataclass
class World:
    """The database and one reader, after a schedule of choices."""

    writers: list[Writer]
    protocol: Protocol
    step: WakeupStep
    answers: list[object] = field(default_factory=list)
    asked: bool = False
    held: bool = False
    visible: int = 0
    read: int = 0
    heard: bool = False

    def choices(self) -> list[int]:
        """Who can move: a writer by its number, the reader as -1."""
        ready = [n for n, writer in enumerate(self.writers) if not writer.done]
        return ready if self.step is WakeupStep.SLEEP and not self.heard else [*ready, -1]

    def lost(self) -> bool:
        """Whether a change is committed that nobody will be told of."""
        sleeping = self.step is WakeupStep.SLEEP and not self.heard
        return sleeping and self.read < self.visible and all(writer.done for writer in self.writers)

    def move(self, who: int) -> None:
        if who < 0:
            self._reader()
        else:
            self._writer(self.writers[who])
        if self.asked and not self.held and not any(writer.shares for writer in self.writers):
            self.held = True

    def _writer(self, writer: Writer) -> None:
        if writer.at == 1 and not (self.held or self.asked):
            writer.loud = writer.shares = True
        elif writer.at == 2 and writer.commits:
            self.visible += 1
        elif writer.at == 3 and writer.commits and writer.loud:
            self.heard = True
        elif writer.at == 4:
            writer.shares = False
        writer.at += 1

    def _reader(self) -> None:
        answer: int | bool | None = None
        if self.step is WakeupStep.HOLD:
            self.asked = True
        elif self.step is WakeupStep.RELEASE:
            self.asked = self.held = False
        elif self.step is WakeupStep.READ:
            self.heard = False
            answer, self.read = self.visible - self.read, self.visible
        elif self.step is WakeupStep.WRITERS:
            answer = any(writer.locks_log for writer in self.writers)
        elif self.step is WakeupStep.SLEEP:
            answer, self.heard = True, False
        self.answers.append(answer)
        self.step = self.protocol.send(answer)

    def key(self) -> tuple[object, ...]:
        writers = tuple((w.at, w.loud, w.shares) for w in self.writers)
        return (tuple(self.answers), self.step, writers, self.asked, self.held, self.visible, self.read, self.heard)


def explore(
    protocol: Callable[[], Protocol], writers: Callable[[], list[Writer]], *, reader_steps: int
) -> tuple[int, list[int] | None]:
    """Try every schedule; returns how many states there are, and the first schedule that loses a change."""
    seen: set[tuple[object, ...]] = set()
    pending: list[list[int]] = [[]]
    while pending:
        schedule = pending.pop()
        started = protocol()
        world = World(writers(), started, next(started))
        for who in schedule:
            world.move(who)
        if world.key() in seen:
            continue
        seen.add(world.key())
        if world.lost():
            return len(seen), schedule
        for who in world.choices():
            if who >= 0 or schedule.count(-1) < reader_steps:
                pending.append([*schedule, who])
    return len(seen), None


def pace() -> Protocol:
    return pacemaker(Always(), patience=1)


@pytest.mark.contract("X1")
@pytest.mark.parametrize(
    "writers",
    [
        lambda: [Writer(), Writer()],
        lambda: [Writer(), Writer(), Writer()],
        lambda: [Writer(), Writer(commits=False), Writer()],
    ],
    ids=["two", "three", "one rolls back"],
)
def test_no_interleaving_leaves_a_change_unread(writers: Callable[[], list[Writer]]) -> None:
    states, schedule = explore(pace, writers, reader_steps=14)
    assert schedule is None
    assert states > 500


def test_a_listener_alone_misses_nothing() -> None:
    states, schedule = explore(listener, lambda: [Writer(), Writer(), Writer()], reader_steps=10)
    assert schedule is None
    assert states > 100


def _without(skipped: WakeupStep) -> Protocol:
    """The pacemaker, with one step left out and answered as if all were well."""
    inner = pace()
    step = next(inner)
    while True:
        step = inner.send(0) if step is skipped else inner.send((yield step))


@pytest.mark.parametrize("skipped", [WakeupStep.WRITERS, WakeupStep.RELEASE])
def test_each_step_of_falling_asleep_is_needed(skipped: WakeupStep) -> None:
    _, schedule = explore(lambda: _without(skipped), lambda: [Writer(), Writer()], reader_steps=14)
    assert schedule is not None


def test_the_last_read_is_needed() -> None:
    def careless() -> Protocol:
        inner = pace()
        step = next(inner)
        asked_writers = False
        while True:
            if asked_writers and step is WakeupStep.READ:
                asked_writers = False
                step = inner.send(0)
                continue
            asked_writers = step is WakeupStep.WRITERS
            step = inner.send((yield step))

    _, schedule = explore(careless, lambda: [Writer(), Writer()], reader_steps=14)
    assert schedule is not None


def test_load_is_heavy_only_when_wakeups_come_close_together() -> None:
    now = 0.0
    load = Load(lambda: now, gap=0.01, times=3)
    verdicts = []
    for gap in (1.0, 0.005, 0.005, 0.005, 1.0, 0.005):
        now += gap
        verdicts.append(load.heavy(9))
    assert verdicts == [False, False, False, True, False, False]


def test_single_changes_are_no_load_however_close_together() -> None:
    now = 0.0
    load = Load(lambda: now, gap=0.01, times=3, many=4)
    verdicts = []
    for found in (1, 1, 2, 1, 1, 9, 9, 9, 1, 9):
        now += 0.005
        verdicts.append(load.heavy(found))
    assert verdicts == [False, False, False, False, False, False, False, True, False, False]


def test_a_pacemaker_that_always_polls_never_sleeps_and_never_lets_go() -> None:
    protocol = pacemaker(Always(), always=True)
    steps = [next(protocol)]
    for _ in range(50):
        steps.append(protocol.send(0))
    assert WakeupStep.SLEEP not in steps
    assert WakeupStep.RELEASE not in steps
