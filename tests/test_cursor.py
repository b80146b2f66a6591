"""Cursors: their text form says all, anything else is refused, and a snapshot sees what PostgreSQL's does."""

import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge.cursor import Cursor, LogIdentity, Position, Snapshot
from forge.errors import CursorInvalid

XIDS = st.integers(1, 2**64 - 1)
IDS = st.integers(0, 2**63 - 1)


@st.composite
def snapshots(draw: st.DrawFn, xids: st.SearchStrategy[int] = XIDS) -> Snapshot:
    xmin, xmax = sorted((draw(xids), draw(xids)))
    if xmin == xmax:
        return Snapshot(xmin, xmax)
    running = draw(st.sets(st.integers(xmin, xmax - 1), max_size=5))
    return Snapshot(xmin, xmax, tuple(sorted(running)))


LOGS = st.builds(LogIdentity, st.uuids().map(str), st.integers(0, 2**64 - 1).map(str), st.integers(0, 2**32 - 1))
CURSORS = st.builds(Cursor, LOGS, snapshots()) | st.builds(
    Cursor, LOGS, snapshots(), snapshots(), st.builds(Position, IDS, IDS)
)
VALID = "forge1_6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11_7310000000000000001_1_5:9:6,7_7:12:7_118.120"


@given(CURSORS)
def test_a_cursor_is_read_from_its_text(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor
    assert Cursor.parse(f" {cursor}\n") == cursor
    assert str(Cursor.parse(str(cursor))) == str(cursor)


@given(CURSORS)
def test_the_text_of_a_cursor_can_be_pasted_into_a_shell(cursor: Cursor) -> None:
    assert set(str(cursor)) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-:,.")


@given(CURSORS, CURSORS)
def test_cursors_with_the_same_text_are_equal(one: Cursor, two: Cursor) -> None:
    assert (str(one) == str(two)) == (one == two)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    start, length = draw(st.integers(0, len(VALID))), draw(st.integers(0, 4))
    return VALID[:start] + draw(st.text("0123456789:,._-fx٣\n ", max_size=3)) + VALID[start + length :]


@given(st.text() | mutated())
@example("")
@example("forge1_" + "-" * 36 + "_1_1_1:1:")
@example("forge1_6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11_1_1_::,_::,_1.1")
@example("forge1_6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11_1_1_" + "9" * 50 + ":1:")
def test_garbage_is_an_invalid_cursor_or_a_cursor(garbage: str) -> None:
    refusal = None
    try:
        cursor = Cursor.parse(garbage)
    except CursorInvalid as error:
        refusal = error
    if refusal is None:
        assert Cursor.parse(str(cursor)) == cursor
    else:
        assert refusal.fix
        assert "\n" not in str(refusal)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:2",
        "0:1:",
        "2:1:",
        "1:5:5",
        "3:5:1",
        "1:9:4,3",
        "1:9:3,3",
        "1:2:,",
        f"1:{2**64}:",
        "1:2:3:4",
    ],
)
def test_what_is_no_snapshot(text: str) -> None:
    with pytest.raises(CursorInvalid):
        Snapshot.parse(text)


@given(snapshots())
def test_a_snapshot_is_read_from_its_text(snapshot: Snapshot) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots(st.integers(1, 20)), st.integers(1, 25))
def test_a_snapshot_sees_what_was_finished(snapshot: Snapshot, xid: int) -> None:
    if xid < snapshot.xmin:
        finished = True
    elif xid >= snapshot.xmax:
        finished = False
    else:
        finished = xid not in snapshot.running
    assert snapshot.sees(xid) == finished


def test_a_log_identity_needs_a_uuid() -> None:
    assert str(uuid.UUID(Cursor.parse(VALID).log.uuid)) in VALID
    with pytest.raises(CursorInvalid):
        Cursor.parse(VALID.replace("-", "0"))
