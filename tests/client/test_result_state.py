"""What a client holds after any sequence of results is what the server holds, whole or by deltas; else it is told."""

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forge.client.messages import DeltaMessage, Whole, decode_result, read
from forge.client.result_state import HeldResult, digest
from forge.client.sse import Parser
from forge.cursor import Snapshot
from forge.errors import ProtocolError, ResultMismatch
from forge.react import result as server
from forge.react.push import Push
from forge.serve import messages

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.integers() | TEXTS | st.floats(allow_nan=False) | st.binary(max_size=4) | st.just(Decimal("1.50"))
)
KEYS = st.integers(0, 7) | st.sampled_from(["a", "\n", 'quote"', 2**60])
ROWS = st.builds(lambda key, kind, value: {"id": key, "kind": kind, "v": value}, KEYS, st.booleans(), VALUES)
RESULTS = st.lists(ROWS, max_size=8)
NAMES = st.sampled_from([("id",), ("id", "kind"), ("kind", "id")])
SNAPSHOT = Snapshot(3, 9, (4,))


def sent(event: str, body: bytes) -> bytes:
    """The body after a way through a stream."""
    (found,) = Parser().feed(messages.sse(event, b"{" + body))
    assert found.name == event
    return found.data


def whole(push: Push) -> Whole:
    return read(Whole, sent("update", messages.whole(push)))


@pytest.mark.contract("R14")
@given(results=st.lists(RESULTS, min_size=2, max_size=6), names=NAMES)
def test_deltas_lead_to_what_the_server_holds(results: list[list[dict[str, Any]]], names: tuple[str, ...]) -> None:
    held: HeldResult | None = None
    previous: server.Result | None = None
    for rows in results:
        result = server.encode(rows, key=names)
        push = Push(result, previous, SNAPSHOT, (), 0)
        body = messages.delta(push)
        held = (
            HeldResult.of(whole(push))
            if body is None or held is None
            else held.after(read(DeltaMessage, sent("delta", body)))
        )
        assert (held.rows, held.hash) == (result.rows, result.hash)
        assert held.value() == [{**row} for row in rows]
        previous = result


@given(old=RESULTS, new=RESULTS, other=RESULTS)
def test_a_delta_on_another_result_is_told(old: Any, new: Any, other: Any) -> None:
    before, after, wrong = (server.encode(rows, key=("id", "kind")) for rows in (old, new, other))
    body = messages.delta(Push(after, before, SNAPSHOT, (), 0))
    assume(body is not None and wrong.hash != before.hash)
    assert body is not None
    delta = read(DeltaMessage, sent("delta", body))
    held = HeldResult.of(whole(Push(wrong, None, SNAPSHOT, (), 0)))
    with pytest.raises(ResultMismatch, match="is of another result"):
        held.after(delta)
    lying = msgspec.structs.replace(delta, before=held.hash)
    with contextlib.suppress(ResultMismatch):
        found = held.after(lying)
        assert (found.rows, found.hash) == (after.rows, after.hash)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ([{"id": 1, "v": "x"}, {"id": 2, "v": "b"}], None),
        ([{"id": 2, "v": "b"}], "the delta does not fit the result"),
        ([{"id": 1, "v": "a"}, {"id": 2, "v": "x"}], "the result does not have its hash"),
        ([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}], "the result does not have its hash"),
    ],
)
def test_a_delta_that_lies_about_its_result_leads_to_the_right_rows_or_is_told(other: Any, told: str | None) -> None:
    old = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    before, after, wrong = (
        server.encode(rows, key=("id",)) for rows in (old, [{"id": 1, "v": "new"}, {"id": 2, "v": "b"}], other)
    )
    body = messages.delta(Push(after, before, SNAPSHOT, (), 0))
    assert body is not None
    held = HeldResult.of(whole(Push(wrong, None, SNAPSHOT, (), 0)))
    lying = msgspec.structs.replace(read(DeltaMessage, sent("delta", body)), before=held.hash)
    if told is None:
        assert held.after(lying).rows == after.rows
    else:
        with pytest.raises(ResultMismatch, match=told):
            held.after(lying)


@given(st.dictionaries(TEXTS, VALUES, max_size=3) | VALUES)
def test_one_value_comes_back(value: Any) -> None:
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)).startswith("$"):
        return  # on the wire such a row can be a tagged value too
    result = server.encode(value)
    held = HeldResult.of(whole(Push(result, None, SNAPSHOT, (), 0)))
    assert held.single
    assert held.value() == value
    assert held.hash == result.hash


def test_a_result_that_was_altered_on_the_way_is_told() -> None:
    result = server.encode([{"id": 1}], key=("id",))
    body = messages.whole(Push(result, None, SNAPSHOT, (), 0)).replace(b'{"id":1}', b'{"id": 1}')
    with pytest.raises(ResultMismatch):
        HeldResult.of(read(Whole, sent("update", body)))


def test_values_are_made_anew_each_time() -> None:
    held = HeldResult.of(whole(Push(server.encode([{"id": 1}]), None, SNAPSHOT, (), 0)))
    held.value()[0]["id"] = 2
    assert held.value() == [{"id": 1}]


def test_the_hash_is_the_servers() -> None:
    assert digest([b"1", b"2"]) == server.digest([b"1", b"2"])
    assert digest([]) == server.digest([])


def test_column_names_are_no_tags() -> None:
    assert decode_result(b'[{"$int":"7","b":{"$int":"8"}}]') == [{"$int": "7", "b": 8}]
    assert decode_result(b'[{"$other":1}]') == [{"$other": 1}]
    with pytest.raises(ProtocolError):
        decode_result(b'[{"a":{"$other":1}}]')


def test_times_stay_the_text_that_the_server_wrote() -> None:
    result = server.encode([{"at": datetime(2026, 1, 31, tzinfo=UTC)}])
    assert HeldResult.of(whole(Push(result, None, SNAPSHOT, (), 0))).value() == [{"at": "2026-01-31T00:00:00Z"}]
