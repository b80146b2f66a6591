"""The wire form: the fields that consumers rely on, and every value back exactly."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge import debezium
from forge.change import JSON_NULL, UNAVAILABLE, Change, ChangeSource, Context, Op, same
from forge.errors import DecodeError, EncodeError
from forge.values import MOST_LEVELS, Column
from forge.wire import decode, decode_value, encode, encode_value

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = TEXTS | st.sampled_from(["$int", "$json", "$object", "$", "id"])
INTS = st.integers() | st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53), 1 - 2**53, 2**63 - 1, -(2**63)])
SPECIAL = st.sampled_from([UNAVAILABLE, JSON_NULL, -0.0, 1.0, Decimal("-0.00"), Decimal("1E+400")])
VALUES = st.recursive(
    st.none() | st.booleans() | INTS | st.floats() | st.decimals() | TEXTS | st.binary(max_size=8) | SPECIAL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "sNaN" not in repr(value))
ROWS = st.dictionaries(NAMES, VALUES, max_size=4)
MAYBE = st.none() | TEXTS
CHANGES = st.builds(
    Change,
    id=TEXTS,
    op=st.sampled_from(Op),
    schema=TEXTS,
    table=TEXTS,
    source=st.builds(ChangeSource, TEXTS, TEXTS, TEXTS, MAYBE),
    at=st.datetimes(timezones=st.just(UTC)),
    key=st.none() | ROWS,
    before=st.none() | ROWS,
    after=st.none() | ROWS,
    context=st.builds(Context, MAYBE, MAYBE, MAYBE, ROWS, MAYBE, MAYBE),
    hidden=st.lists(TEXTS, max_size=2).map(tuple),
)
UPDATE = Change(
    id="17-3",
    op=Op.UPDATE,
    schema="public",
    table="orders",
    source=ChangeSource("log", "shop", "17", "900"),
    at=datetime(2026, 1, 31, 12, 0, 0, tzinfo=timezone(timedelta(hours=2))),
    key={"id": 7},
    before={"id": 7, "price": Decimal("12.30"), "note": UNAVAILABLE, "tags": JSON_NULL},
    after={"id": 7, "price": Decimal("12.3"), "note": UNAVAILABLE, "tags": {"$int": "x"}},
    context=Context(user_id="ada", more={"ip": "::1"}),
    hidden=("card",),
)


def fields(change: Change) -> dict[str, Any]:
    return {name: getattr(change, name) for name in change.__struct_fields__ if name not in ("source", "context")}


@pytest.mark.contract("T2")
@pytest.mark.parametrize("rows", [True, False])
def test_an_update_names_itself_and_its_changed_columns(rows: bool) -> None:
    wire = json.loads(encode(UPDATE, rows=rows))
    assert list(wire)[:7] == [
        "table", "schema", "operation", "id", "timestamp", "changed_columns", "change_id",
    ]  # fmt: skip
    assert wire["table"] == "orders"
    assert wire["schema"] == "public"
    assert wire["operation"] == "UPDATE"
    assert wire["id"] == "7"
    assert wire["timestamp"] == "2026-01-31T10:00:00.000000Z"
    assert wire["changed_columns"] == ["price", "tags", "card"]
    assert wire["change_id"] == "17-3"
    assert ("after" in wire) == rows


@pytest.mark.contract("T2")
@given(CHANGES)
def test_every_change_has_the_named_fields(change: Change) -> None:
    for wire in (json.loads(encode(change)), json.loads(encode(change, rows=False))):
        assert wire["table"] == change.table
        assert wire["schema"] == change.schema
        assert wire["operation"] == change.op.value.upper()
        assert wire["id"] == (None if change.key is None else change.row_id)
        assert datetime.fromisoformat(wire["timestamp"]) == change.at
        assert wire["timestamp"].endswith("Z")
        assert ("changed_columns" in wire) == (change.op is Op.UPDATE)


def test_what_forge_adds() -> None:
    wire = json.loads(encode(UPDATE))
    assert wire["key"] == {"id": 7}
    assert wire["before"]["price"] == {"$numeric": "12.30"}
    assert wire["before"]["note"] == {"$unavailable": True}
    assert wire["before"]["tags"] == {"$json": None}
    assert wire["after"]["tags"] == {"$object": {"$int": "x"}}
    assert wire["source"] == {"kind": "log", "name": "shop", "position": "17", "transaction": "900"}
    assert wire["context"] == {
        "user_id": "ada", "function_name": None, "trace_id": None, "session_user": None,
        "application_name": None, "more": {"ip": "::1"},
    }  # fmt: skip
    assert wire["hidden"] == ["card"]


@given(CHANGES)
@example(UPDATE)
def test_a_change_comes_back_exactly(change: Change) -> None:
    raw = encode(change)
    back = decode(raw)
    ours, theirs = fields(change), fields(back)
    assert ours.pop("at") == theirs.pop("at")
    assert same(theirs, ours)
    assert back.source == change.source
    assert same(msgspec.structs.asdict(back.context), msgspec.structs.asdict(change.context))
    assert decode(raw.decode()).changed == change.changed
    assert encode(back) == raw


@given(VALUES)
def test_a_browser_harms_no_value(value: Any) -> None:
    """JSON.parse reads every number as a double; what it prints again must mean the same."""
    text = msgspec.json.encode(encode_value(value)).decode()
    parsed = json.loads(text, parse_int=float)

    def printed(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {name: printed(item) for name, item in inner.items()}
        if isinstance(inner, list):
            return [printed(item) for item in inner]
        return int(inner) if isinstance(inner, float) and inner.is_integer() else inner

    def wholes(inner: Any) -> Any:
        """Integral floats as ints, for that is how a browser prints them."""
        if isinstance(inner, dict):
            return {name: wholes(item) for name, item in inner.items()}
        if isinstance(inner, list):
            return [wholes(item) for item in inner]
        is_whole = isinstance(inner, float) and inner.is_integer() and str(inner) != "-0.0"
        return int(inner) if is_whole else inner

    assert same(decode_value(printed(parsed)), wholes(value))


@pytest.mark.parametrize(
    ("value", "coded"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**53, {"$int": "9007199254740992"}),
        (-(2**53), {"$int": "-9007199254740992"}),
        (True, True),
        (1.5, 1.5),
        (-0.0, {"$float": "-0"}),
        (float("nan"), {"$float": "NaN"}),
        (float("-inf"), {"$float": "-Infinity"}),
        (b"\xde\xad\xbe\xef", {"$bytes": "3q2+7w=="}),
        (Decimal("NaN"), {"$numeric": "NaN"}),
        ({"a": {"$b": [None]}}, {"a": {"$object": {"$b": [None]}}}),
    ],
)
def test_stated_forms(value: Any, coded: Any) -> None:
    assert encode_value(value) == coded
    assert same(decode_value(coded), value)


def nested(levels: int, tagged: bool) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"$a": value} if tagged else [value]
    return value


@pytest.mark.parametrize("tagged", [False, True])
def test_the_deepest_value_that_a_log_returns_comes_back_in_both_forms(tagged: bool) -> None:
    deep = msgspec.structs.replace(UPDATE, after={"id": 7, "v": nested(MOST_LEVELS, tagged)})
    back = decode(encode(deep))
    assert same(back.after, deep.after)
    assert "v" in back.changed
    columns = [Column("id", "integer"), Column("v", "jsonb", "jsonb")]
    for known in (columns, None):
        raw = debezium.encode(deep, columns=known)
        assert raw is not None
        assert same(debezium.decode(raw, known).after, deep.after)


def test_a_value_nested_too_deep_to_be_written_is_a_typed_error() -> None:
    deep = msgspec.structs.replace(UPDATE, after={"id": 7, "v": nested(5000, tagged=False)})
    for write in (encode, debezium.encode):
        with pytest.raises(EncodeError, match=r"public\.orders is nested too deep") as caught:
            write(deep)
        assert str(MOST_LEVELS) in caught.value.fix


def test_a_value_without_a_stated_form_is_refused() -> None:
    with pytest.raises(TypeError, match="datetime"):
        encode_value(datetime(2026, 1, 1, tzinfo=UTC))


RAW = encode(UPDATE)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    start, length = draw(st.integers(0, len(RAW))), draw(st.integers(0, 6))
    piece = draw(st.binary(max_size=3) | st.sampled_from([b"null", b"{}", b'"', b"1e999", b"\\ud800", b"9" * 5000]))
    return RAW[:start] + piece + RAW[start + length :]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    wire = json.loads(RAW)
    inside = draw(st.sampled_from([wire, wire["source"], wire["context"], wire["before"], wire["key"]]))
    inside[draw(st.sampled_from(sorted(inside)))] = draw(JSON)
    return json.dumps(wire).encode()


TAGS = ["$int", "$numeric", "$float", "$bytes", "$object", "$unavailable", "$json", "$other"]


@given(st.binary() | damaged() | altered())
@example(b"")
@example(b"\xff\xfe")
@example(encode(UPDATE, rows=False))
@example(RAW.replace(b'"UPDATE"', b'"update"'))
@example(RAW.replace(b"12.30", b"1E99999999999999999999"))
@example(RAW.replace(b'{"id":7}', b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
def test_malformed_input_is_a_decode_error(raw: bytes) -> None:
    refusal = None
    try:
        change = decode(raw)
    except DecodeError as error:
        refusal = error
    if refusal is None:
        assert encode(decode(encode(change))) == encode(change)
    else:
        assert refusal.fix
        assert "\n" not in str(refusal)


@given(st.sampled_from(TAGS), JSON)
def test_a_tag_is_read_or_refused(tag: str, value: Any) -> None:
    try:
        decoded = decode_value({tag: value})
    except DecodeError:
        return
    assert not isinstance(decoded, dict) or tag == "$object"


@pytest.mark.parametrize(
    "coded",
    [{"$int": "1_0"}, {"$int": 1}, {"$numeric": " 1"}, {"$float": "1.5"}, {"$bytes": "a"},
     {"$unavailable": False}, {"$json": 1}, {"$other": 1}, {"$int": "1", "a": 1}, {"$object": [1]},
     {"$int": "9" * 5000}],
)  # fmt: skip
def test_tags_that_no_encoder_writes_are_refused(coded: Any) -> None:
    with pytest.raises(DecodeError):
        decode_value(coded)
