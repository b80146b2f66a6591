"""What a cache knows of the log: how far it was followed, what came, and when it knows nothing."""

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from forge.cache import recent_changes as ledger_module
from forge.cache.recent_changes import MOST_BYTES, MOST_PENDING, Ledger
from forge.change import Change, ChangeSource, Op
from forge.cursor import Cursor, LogIdentity, Position, Snapshot

LOG = LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "1", 1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def change(xid: int, table: str = "t", text: str = "") -> Change:
    return Change(
        id=str(xid),
        op=Op.INSERT,
        schema="public",
        table=table,
        source=ChangeSource("log", "x", str(xid), str(xid)),
        at=datetime.now(UTC),
        after={"id": xid, "text": text},
    )


def at(xmax: int, *running: int, until: Snapshot | None = None) -> Cursor:
    snapshot = Snapshot(min(running, default=xmax), xmax, running)
    return Cursor(LOG, snapshot) if until is None else Cursor(LOG, snapshot, until, Position(1, 1))


def xids(changes: Iterable[Change] | None) -> list[int] | None:
    return None if changes is None else [int(one.source.transaction or 0) for one in changes]


def alive(ledger: Ledger) -> bool:
    return ledger.alive


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    found = Ledger(clock, most=4)
    found.read(at(10), "start")
    return found


def test_it_is_alive_while_the_log_is_read(ledger: Ledger, clock: Clock) -> None:
    assert alive(ledger)
    clock.now += ledger_module.SILENCE + 0.1
    assert not alive(ledger)
    ledger.read(at(10), "start")
    assert alive(ledger)


def test_what_a_snapshot_lacks_is_told_only_if_all_of_it_is_known(ledger: Ledger) -> None:
    ledger.take([change(11), change(12)])
    ledger.read(at(13), "start")
    assert xids(ledger.lacking(Snapshot(12, 12))) == [12]
    assert xids(ledger.lacking(Snapshot(11, 13, (11,)))) == [11]
    assert xids(ledger.lacking(Snapshot(9, 9))) is None
    ledger.take([change(14), change(15), change(16)])
    ledger.read(at(17), "start")
    assert xids(ledger.lacking(Snapshot(12, 12))) is None, "its record begins later now"
    assert xids(ledger.lacking(Snapshot(13, 13))) == [14, 15, 16]


def test_in_the_midst_of_a_large_read_nothing_is_followed_that_did_not_come(ledger: Ledger) -> None:
    ledger.take([change(11)])
    ledger.read(at(10, until=Snapshot(20, 20)), "start")
    assert ledger.followed == Snapshot(10, 10)
    ledger.take([change(n) for n in range(12, 17)])
    ledger.read(at(10, until=Snapshot(20, 20)), "start")
    assert xids(ledger.lacking(Snapshot(10, 10))) is None
    ledger.read(at(20), "start")
    assert ledger.followed == Snapshot(20, 20)
    assert xids(ledger.lacking(Snapshot(20, 20))) == []


def test_what_came_since_a_moment_is_told_only_if_all_of_it_is_known(ledger: Ledger) -> None:
    mark = ledger.mark()
    ledger.take([change(11), change(12)])
    assert xids(ledger.after(mark)) == [11, 12]
    ledger.read(at(13), "start")
    ledger.take([change(n) for n in (14, 15, 16)])
    ledger.read(at(17), "start")
    assert xids(ledger.after(mark)) is None
    mark = ledger.mark()
    ledger.skip([change(18)])
    assert xids(ledger.after(mark)) is None
    mark = ledger.mark()
    ledger.lose()
    assert xids(ledger.after(mark)) is None


def test_after_a_loss_nothing_is_known_until_a_read_that_began_later(ledger: Ledger) -> None:
    ledger.lose()
    assert not alive(ledger)
    ledger.read(at(11), "start")
    assert not alive(ledger), "this read may have begun before"
    ledger.read(at(12), "start")
    assert alive(ledger)
    assert ledger.since == Snapshot(12, 12)


def test_another_start_of_the_server_is_a_loss(ledger: Ledger) -> None:
    mark = ledger.mark()
    ledger.read(at(11), "another start")
    assert not alive(ledger)
    assert ledger.after(mark) is None


def test_own_writes_wait_for_the_log(ledger: Ledger) -> None:
    ledger.wrote(12, frozenset({"public.t"}))
    ledger.wrote(13, None)
    old, new = Snapshot(12, 12), Snapshot(13, 13)
    assert ledger.waits(old, ["public.t"])
    assert ledger.waits(new, ["public.u"]), "the tables of 13 are not known"
    ledger.read(at(14, 12), "start")
    assert ledger.waits(old, ["public.t"])
    assert not ledger.waits(old, ["public.u"])
    assert not ledger.waits(new, ["public.t"]), "it shows 12"
    assert ledger.waits(old, ["*"])
    ledger.read(at(14), "start")
    assert not ledger.waits(old, ["public.t"])


def test_writes_that_never_come_are_bounded(ledger: Ledger) -> None:
    for xid in range(20, 20 + MOST_PENDING + 1):
        ledger.wrote(xid, frozenset())
    assert not list(ledger.pending)
    assert not alive(ledger)


def test_a_large_row_is_kept_without_its_images(ledger: Ledger) -> None:
    mark = ledger.mark()
    ledger.take([change(11, text="x" * MOST_BYTES)])
    (kept,) = list(ledger.after(mark) or [])
    assert (kept.op, kept.after) == (Op.INVALIDATE, None)
