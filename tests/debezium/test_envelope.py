"""Debezium's envelope: its fields, the forms that its PostgreSQL connector gives, and the way back."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge.change import JSON_NULL, UNAVAILABLE, Change, ChangeSource, Context, Op, same
from forge.debezium import PLACEHOLDER, Order, decode, encode
from forge.errors import DecodeError
from forge.values import Column

LETTERS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r", Op.TRUNCATE: "t"}


def change(op: Op = Op.UPDATE, **fields: Any) -> Change:
    base: dict[str, Any] = {
        "id": "17-3",
        "op": op,
        "schema": "public",
        "table": "orders",
        "source": ChangeSource("log", "shop", "17", "900"),
        "at": datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        "key": {"id": 7},
        "context": Context(user_id="ada", more={"big": 2**60}),
        "hidden": ("card",),
    }
    return Change(**base | fields)


def envelope(of: Change, columns: list[Column] | None = None, order: Order | None = None) -> dict[str, Any]:
    raw = encode(of, columns=columns, order=order)
    assert raw is not None
    decoded: dict[str, Any] = json.loads(raw)
    return decoded


def test_the_envelope_of_an_update() -> None:
    event = envelope(change(before={"id": 7, "n": 1}, after={"id": 7, "n": 2}))
    source = event.pop("source")
    assert source.pop("version")
    assert source == {
        "connector": "postgresql", "name": "shop", "ts_ms": 1769860800123, "ts_us": 1769860800123456,
        "ts_ns": 1769860800123456000, "snapshot": "false", "db": "", "sequence": '[null,"17"]',
        "schema": "public", "table": "orders", "txId": 900, "lsn": None, "xmin": None,
        "origin": None, "origin_lsn": None,
    }  # fmt: skip
    assert event.pop("forge")["change_id"] == "17-3"
    assert event == {
        "before": {"id": 7, "n": 1}, "after": {"id": 7, "n": 2}, "op": "u", "transaction": None,
        "ts_ms": 1769860800123, "ts_us": 1769860800123456, "ts_ns": 1769860800123456000,
    }  # fmt: skip


@pytest.mark.parametrize("op", list(Op))
def test_each_operation_has_its_letter_or_no_event(op: Op) -> None:
    raw = encode(change(op))
    assert (raw is None) == (op not in LETTERS)
    if raw is not None:
        assert json.loads(raw)["op"] == LETTERS[op]
        assert json.loads(raw)["source"]["snapshot"] == ("true" if op is Op.READ else "false")
        assert decode(raw) == change(op)


def test_a_delete_has_no_after_and_a_truncate_no_rows() -> None:
    assert envelope(change(Op.DELETE, before={"id": 7}))["after"] is None
    truncate = envelope(change(Op.TRUNCATE, key=None))
    assert truncate["before"] is None
    assert truncate["after"] is None


def test_the_transaction_block_needs_an_order() -> None:
    block = envelope(change(), order=Order(5, 2))["transaction"]
    assert block == {"id": "900", "total_order": 5, "data_collection_order": 2}
    assert envelope(change(source=ChangeSource("log", "shop", "1")), order=Order(1, 1))["transaction"] is None


FORMS: list[tuple[str, str, Any, Any]] = [
    ("numeric(10,2)", "numeric", Decimal("12.30"), "12.30"),
    ("numeric", "numeric", Decimal("NaN"), "NAN"),
    ("numeric", "numeric", Decimal("-Infinity"), "NEGATIVE_INFINITY"),
    ("numeric[]", "numeric[]", [Decimal("1.0"), None], ["1.0", None]),
    ("bigint", "plain", 2**63 - 1, 2**63 - 1),
    ("boolean", "plain", True, True),
    ("double precision", "float", 1.0, 1.0),
    ("double precision", "float", float("inf"), "Infinity"),
    ("real[]", "float[]", [float("nan"), [-0.0]], ["NaN", [-0.0]]),
    ("bytea", "bytea", b"\xde\xad\xbe\xef", "3q2+7w=="),
    ("jsonb", "jsonb", {"b": [1, Decimal("1.50"), None], "é\n": "x"}, '{"b": [1, 1.50, null], "é\\n": "x"}'),
    ("jsonb", "jsonb", JSON_NULL, "null"),
    ("jsonb", "jsonb", "text", '"text"'),
    ("json", "plain", '{"a":1,"a":2}', '{"a":1,"a":2}'),
    ("uuid", "plain", "6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11"),
    ("text[]", "plain[]", ["a", None, ["b"]], ["a", None, ["b"]]),
    ("text[]", "plain[]", "[0:1]={a,b}", "[0:1]={a,b}"),
    ("int4range", "plain", "[1,5)", "[1,5)"),
    ("date", "plain", "2000-03-01", 11017),
    ("date", "plain", "1969-12-31", -1),
    ("date", "plain", "4714-11-24 BC", -2440588),
    ("date", "plain", "infinity", -2147472692),
    ("date", "plain", "-infinity", -2147472691),
    ("date[]", "plain[]", ["1970-01-02", None], [1, None]),
    ("timestamp without time zone", "plain", "1970-01-02T00:00:00.5", 86400500000),
    ("timestamp without time zone", "plain", "1969-12-31T23:59:59.999999", -1),
    ("timestamp without time zone", "plain", "infinity", 9223372036825200000),
    ("timestamp without time zone", "plain", "-infinity", -9223372036832400000),
    ("timestamp(3) without time zone", "plain", "1970-01-02T00:00:00.5", 86400500),
    ("timestamp(0) without time zone", "plain", "infinity", 9223372036825200),
    ("timestamp without time zone[]", "plain[]", ["1970-01-01T00:00:01"], [1000000]),
    ("timestamp with time zone", "plain", "2026-01-31T12:00:00.5+00:00", "2026-01-31T12:00:00.500000Z"),
    ("timestamp(3) with time zone", "plain", "2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00.000Z"),
    ("timestamp(0) with time zone", "plain", "2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00Z"),
    ("timestamp with time zone", "plain", "294276-12-31T23:59:59+00:00", "+294276-12-31T23:59:59.000000Z"),
    ("timestamp with time zone", "plain", "0044-03-15T00:00:00+00:00 BC", "-0043-03-15T00:00:00.000000Z"),
    ("timestamp with time zone", "plain", "infinity", "infinity"),
    ("time without time zone", "plain", "12:34:56.789", 45296789000),
    ("time(3) without time zone", "plain", "24:00:00", 86400000),
    ("interval", "plain", "PT26H3M4.5S", 93784500000),
    ("interval", "plain", "PT-1H-0.5S", -3600500000),
    ("interval day to second(3)", "plain", "PT0S", 0),
    ("integer", "masked", "***", "***"),
    ("bytea", "bytea", UNAVAILABLE, b64encode(PLACEHOLDER.encode()).decode()),
    ("text", "plain", UNAVAILABLE, PLACEHOLDER),
    ("text[]", "plain[]", UNAVAILABLE, [PLACEHOLDER]),
    ("integer[]", "plain[]", UNAVAILABLE, list(PLACEHOLDER.encode())),
    ("integer", "plain", None, None),
]


@pytest.mark.parametrize(("type_name", "kind", "value", "coded"), FORMS)
def test_values_take_the_connectors_forms_and_come_back(type_name: str, kind: str, value: Any, coded: Any) -> None:
    columns = [Column("v", type_name, kind)]
    event = change(Op.INSERT, after={"v": value})
    written = envelope(event, columns)["after"]["v"]
    assert same(written, coded)
    raw = encode(event, columns=columns)
    assert raw is not None
    assert same(decode(raw, columns).after, {"v": value})


@pytest.mark.parametrize(
    ("interval", "micros"),
    [
        ("P1D", 86400000000),
        ("P1M", 2629800000000),
        ("P-1Y", -31557600000000),
        ("P1Y2M3DT4H5M6.789S", 37091106789000),
    ],
)
def test_a_month_has_an_average_length(interval: str, micros: int) -> None:
    row = envelope(change(Op.INSERT, after={"v": interval}), [Column("v", "interval")])["after"]
    assert row == {"v": micros}


@given(st.dates(), st.times())
def test_times_are_counted_as_the_calendar_does(day: date, time: Any) -> None:
    moment = datetime.combine(day, time)
    columns = [
        Column("d", "date"),
        Column("t", "timestamp without time zone"),
        Column("c", "time without time zone"),
    ]
    row = {"d": day.isoformat(), "t": moment.isoformat(), "c": time.isoformat()}
    after = envelope(change(Op.INSERT, after=row), columns)["after"]
    assert after["d"] == (day - date(1970, 1, 1)).days
    assert after["t"] == (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert after["c"] == (datetime.combine(date.min, time) - datetime.min) // timedelta(microseconds=1)


@given(st.integers(-2451507, 106751991))
def test_every_date_of_postgresql_comes_back(days: int) -> None:
    columns = [Column("d", "date")]
    raw = json.dumps({"op": "c", "source": SOURCE, "after": {"d": days}})
    text = (decode(raw, columns).after or {})["d"]
    assert envelope(change(Op.INSERT, after={"d": text}), columns)["after"] == {"d": days}


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
FRACTIONS = st.integers().map(lambda digits: Decimal(digits).scaleb(-2) if abs(digits) < 10**20 else digits)
JSONB = st.recursive(
    st.none() | st.booleans() | st.integers() | FRACTIONS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
).map(lambda value: JSON_NULL if value is None else value)
NULLABLE: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("numeric", "numeric"): st.decimals(allow_nan=False) | st.just(Decimal("NaN")),
    ("bigint", "plain"): st.integers(-(2**63), 2**63 - 1),
    ("double precision", "float"): st.floats(),
    ("real[]", "float[]"): st.lists(st.none() | st.floats(), max_size=3),
    ("text", "plain"): TEXTS,
    ("bytea", "bytea"): st.binary(max_size=8),
    ("jsonb", "jsonb"): JSONB,
    ("date", "plain"): st.dates().map(date.isoformat),
    ("timestamp without time zone", "plain"): st.datetimes().map(lambda at: _trim(at.isoformat())),
    ("timestamp with time zone", "plain"): st.datetimes().map(lambda at: _trim(at.isoformat()) + "+00:00"),
    ("time without time zone", "plain"): st.times().map(lambda at: _trim(at.isoformat())),
}


def _trim(text: str) -> str:
    """Decimals as PostgreSQL prints them."""
    return text.rstrip("0") if "." in text else text


COLUMNS = [Column(f"{number}", *names) for number, names in enumerate(NULLABLE)]
ROWS = st.fixed_dictionaries(
    {column.name: st.none() | st.just(UNAVAILABLE) | values
     for column, values in zip(COLUMNS, NULLABLE.values(), strict=True)}
)  # fmt: skip
MAYBE = st.none() | TEXTS


@given(
    st.builds(
        Change,
        id=TEXTS,
        op=st.sampled_from(list(LETTERS)),
        schema=TEXTS,
        table=TEXTS,
        source=st.builds(ChangeSource, TEXTS, TEXTS, TEXTS, MAYBE | st.integers(0, 2**63).map(str)),
        at=st.datetimes(timezones=st.just(UTC)),
        key=st.none() | ROWS,
        before=st.none() | ROWS,
        after=st.none() | ROWS,
        context=st.builds(Context, MAYBE, MAYBE, MAYBE, ROWS, MAYBE, MAYBE),
        hidden=st.lists(TEXTS, max_size=2).map(tuple),
    )
)
def test_a_change_comes_back_given_its_columns(before: Change) -> None:
    raw = encode(before, columns=COLUMNS)
    assert raw is not None
    after = decode(raw, COLUMNS)
    for name in ("id", "op", "schema", "table", "key", "before", "after", "hidden"):
        assert same(getattr(after, name), getattr(before, name)), name
    assert (after.at, after.source) == (before.at, before.source)
    assert same(after.context.more, before.context.more)
    assert encode(after, columns=COLUMNS) == raw


def test_without_columns_values_take_their_plainest_form() -> None:
    row = {
        "n": Decimal("12.30"),
        "b": b"\x00",
        "i": 2**70,
        "j": {"x": [Decimal("1.5")]},
        "u": UNAVAILABLE,
        "z": JSON_NULL,
    }
    assert envelope(change(Op.INSERT, after=row))["after"] == {
        "n": "12.30", "b": "AA==", "i": 2**70, "j": {"x": ["1.5"]}, "u": PLACEHOLDER, "z": None,
    }  # fmt: skip


SOURCE = {"name": "dbserver1", "schema": "public", "table": "t", "ts_ms": 1000, "txId": 571, "lsn": 24023128}


def test_an_event_of_a_connector_is_read() -> None:
    event = {
        "op": "c",
        "before": None,
        "after": {"id": 1},
        "source": SOURCE,
        "ts_ms": 2000,
        "transaction": None,
    }
    read = decode(json.dumps(event))
    assert (read.op, read.schema, read.table, read.after) == (Op.INSERT, "public", "t", {"id": 1})
    assert read.source == ChangeSource("debezium", "dbserver1", "24023128", "571")
    assert read.at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert decode(json.dumps(event | {"ts_ms": 3000})).id == read.id
    assert decode(json.dumps(event | {"after": {"id": 2}})).id != read.id


RAW = encode(change(before={c.name: None for c in COLUMNS}, after={c.name: 1 for c in COLUMNS}), columns=COLUMNS) or b""


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    wrong = st.none() | st.integers() | st.floats() | TEXTS | st.lists(st.integers(), max_size=2) | st.just({"$int": 1})
    event = json.loads(RAW)
    inside = draw(st.sampled_from([event, event["source"], event["forge"], event["after"], event["forge"]["context"]]))
    inside[draw(st.sampled_from(sorted(inside)))] = draw(wrong)
    return json.dumps(event).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    start = draw(st.integers(0, len(RAW)))
    return RAW[:start] + draw(st.binary(max_size=3)) + RAW[start + draw(st.integers(0, 5)) :]


@given(st.binary() | altered() | damaged())
@example(b"")
@example(b'{"schema": {}, "payload": {}}')
@example(json.dumps({"op": "c", "source": SOURCE | {"ts_ms": 2**63}}).encode())
@example(json.dumps({"op": "m", "source": SOURCE}).encode())
def test_malformed_input_is_a_decode_error(raw: bytes) -> None:
    refusal = None
    try:
        decode(raw, COLUMNS)
    except DecodeError as error:
        refusal = error
    assert refusal is None or (refusal.fix and "\n" not in str(refusal))
