"""Archived lines without Spark: every value comes out of its image again, every position sorts, no line does harm."""

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forge import debezium, wire
from forge.change import JSON_NULL, UNAVAILABLE, Change, ChangeSource, Context, Op, same
from forge.cursor import Cursor, LogIdentity, Snapshot
from forge.debezium import PLACEHOLDER
from forge.errors import DecodeError
from forge.pipeline.archive.convert import ArchivePlan, Converter, UndefinedTable, inferred
from forge.pipeline.archive.images import Printer, document
from forge.pipeline.archive.infer import BASE64
from forge.pipeline.changes import CHANGES
from forge.pipeline.definitions import Definition
from forge.values import Column, Images

AT = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
LOG = "6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11"


def converted(line: bytes | str | dict[str, Any], key: Any = None, **plan: Any) -> dict[str, Any]:
    """The row of one line, after a survey of it alone."""
    raw = json.dumps(line).encode() if isinstance(line, dict) else line.encode() if isinstance(line, str) else line
    name = None if key is None else json.dumps(key).encode()
    first = ArchivePlan(**plan)
    seen = Converter(first).survey(raw, name)
    assert seen is not None
    needs = seen.needs or UndefinedTable(seen.change.schema, seen.change.table, (), None)
    found = inferred({needs: list(seen.traits.items())}, ()) if seen.needs or seen.whole else {}
    row = Converter(ArchivePlan(**plan, inferred=found)).convert(raw, name)
    assert row is not None
    definitions = {each.version: each for each in [*found.values(), *plan.get("definitions", ())]}
    return {**dict(zip(CHANGES.names, row, strict=True)), "definition": definitions[row[5]]}


def values(row: dict[str, Any], image: str = "after") -> dict[str, Any]:
    """The values that the lake reads out of a row's image."""
    definition = row["definition"]
    return Images(definition.columns, definition.key).row(row[image])


def change(op: Op = Op.INSERT, **fields: Any) -> Change:
    base: dict[str, Any] = {
        "id": f"{LOG}:7",
        "op": op,
        "schema": "public",
        "table": "t",
        "source": ChangeSource("postgres-log", LOG, "5.7", "900"),
        "at": AT,
        "key": {"id": 1},
        "after": {"id": 1},
    }
    return Change(**base | fields)


# --- values: whatever the log can hold comes back from the image, whichever form it was archived in

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
NAMES = TEXTS.filter(bool) | st.sampled_from(["$json", "$int", 'a"b', "a.b"])
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False).map(
    lambda value: Decimal(format(value if value else value.copy_abs(), "f"))
)
ODD = st.sampled_from([Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")])
FRACTIONS = NUMERICS.filter(lambda value: value.as_tuple().exponent != 0 and not value.is_signed())
JSONB = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FRACTIONS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
).map(lambda value: JSON_NULL if value is None else value)
BIGINTS = st.integers(-(2**63), 2**63 - 1)
REALS = st.floats(width=32).map(lambda value: float(repr(value)))


def arrays(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    flat = st.lists(st.none() | of, max_size=3)
    return flat | st.lists(flat, min_size=1, max_size=2)


def trimmed(text: str) -> str:
    return text.rstrip("0") if "." in text else text


KINDS: list[tuple[str, str, st.SearchStrategy[Any]]] = [
    ("bigint", "plain", BIGINTS),
    ("boolean", "plain", st.booleans()),
    ("text", "plain", TEXTS.filter(lambda text: text != PLACEHOLDER)),
    ("numeric", "numeric", NUMERICS | ODD),
    ("double precision", "float", st.floats()),
    ("real", "float", REALS),
    ("bytea", "bytea", st.binary(max_size=8)),
    ("jsonb", "jsonb", JSONB),
    ("integer[]", "plain[]", arrays(BIGINTS) | st.just("[0:1]={7,8}")),
    ("text[]", "plain[]", arrays(TEXTS)),
    ("numeric[]", "numeric[]", arrays(NUMERICS | ODD)),
    ("real[]", "float[]", arrays(REALS)),
    ("double precision[]", "float[]", arrays(st.floats())),
    ("bytea[]", "bytea[]", arrays(st.binary(max_size=4))),
    ("date", "plain", st.dates().map(date.isoformat) | st.sampled_from(["infinity", "0044-03-15 BC"])),
    ("timestamp without time zone", "plain", st.datetimes().map(lambda at: trimmed(at.isoformat()))),
    ("timestamp with time zone", "plain", st.datetimes().map(lambda at: trimmed(at.isoformat()) + "+00:00")),
    ("time without time zone", "plain", st.times().map(lambda at: trimmed(at.isoformat()))),
    ("text", "hidden", st.just(UNAVAILABLE)),
]
COLUMNS = tuple(Column(f"c{number}", name, kind) for number, (name, kind, _) in enumerate(KINDS))
KNOWN = Definition(7, "public", "t", (Column("id", "bigint"), *COLUMNS), ("id",))
ROWS = st.fixed_dictionaries(
    {"id": st.just(1)}
    | {
        column.name: of if column.kind == "hidden" else st.none() | st.just(UNAVAILABLE) | of
        for column, (_, _, of) in zip(COLUMNS, KINDS, strict=True)
    }
)
ODDITY = {"id": 1} | {
    column.name: value
    for column, value in zip(
        COLUMNS,
        [-(2**63), False, 'a"\\\x1f\x7f\u2028,"c3":', Decimal("0.0000001"), -0.0, 16777216.0, b"\x00\xff",
         {"$json": None}, [[1], [None]], ["a", None, "],"], [Decimal("1.10")], [-0.0, 1234567.0], [float("nan")],
         [b""], "infinity", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999+00:00", "23:59:59", UNAVAILABLE],
        strict=True,
    )
}  # fmt: skip


@settings(deadline=None)
@given(ROWS, ROWS)
@example(ODDITY, ODDITY | {"c7": JSON_NULL, "c4": 0.0, "c5": -1e6})
def test_every_value_comes_back_from_either_form(before: dict[str, Any], after: dict[str, Any]) -> None:
    event = change(Op.UPDATE, before=before, after=after)
    raw = debezium.encode(event, columns=KNOWN.columns)
    assert raw is not None
    for line in (wire.encode(event), raw):
        row = converted(line, definitions=(KNOWN,))
        assert row["version"] == 7
        assert same(values(row, "before"), before)
        assert same(values(row, "after"), after)


@settings(deadline=None)
@given(ROWS)
@example(ODDITY)
@example(ODDITY | {"c7": [0, Decimal("0.5")]})
def test_without_definitions_the_wire_form_loses_no_value_either(row: dict[str, Any]) -> None:
    """Types are then inferred, and kinds with them: a value may come as another type, but it is the same value."""
    found = converted(wire.encode(change(after=row)))
    assert found["version"] < 0
    assert found["definition"].key == ("id",)
    back = values(found)
    types = {column.name: column.type for column in found["definition"].columns}
    for name, value in row.items():
        as_text = types[name] == "json" and value is not None and value is not UNAVAILABLE
        assert equal(back[name], document(value) if as_text else value), name


def equal(found: Any, value: Any) -> bool:
    """Whether two values are the same, or the same number: a list of numbers has one type for all of them."""
    if isinstance(found, list) and isinstance(value, list):
        return len(found) == len(value) and all(map(equal, found, value))
    if isinstance(found, Decimal) and type(value) is int:
        return found == value
    return same(found, value)


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (Decimal("12.30"), "12.30"),
        (2**60, "1152921504606846976"),
        (b"\xde\xad", '"\\\\xdead"'),
        (float("nan"), '"NaN"'),
        (0.0, '"0"'),
        (-0.0, '"-0"'),
        (1e15, "1e+15"),
        ([1, None], "[1,null]"),
        ("é\n", '"é\\n"'),
    ],
)
def test_images_are_printed_as_the_log_prints_them(value: Any, printed: str) -> None:
    row = converted(wire.encode(change(after={"id": 1, "v": value, "w": UNAVAILABLE})))
    assert row["after"] == f'{{"id":1,"v":{printed}}}'


@pytest.mark.parametrize(
    ("value", "printed", "text"),
    [
        (JSON_NULL, '{"$json" : null}', "null"),
        ({"$json": 1}, '{"$json" : {"$json": 1}}', '{\\"$json\\": 1}'),
        ({"a": [1, None]}, '{"a": [1, null]}', '{\\"a\\": [1, null]}'),
    ],
)
def test_json_is_printed_as_the_log_does_and_text_where_nobody_said_jsonb(value: Any, printed: str, text: str) -> None:
    known = Definition(1, "public", "t", (Column("id", "bigint"), Column("v", "jsonb", "jsonb")), ("id",))
    line = wire.encode(change(after={"id": 1, "v": value}))
    assert converted(line, definitions=(known,))["after"] == f'{{"id":1,"v":{printed}}}'
    assert converted(line)["after"] == f'{{"id":1,"v":"{text}"}}'


def test_an_image_has_the_columns_in_the_order_of_the_definition() -> None:
    known = Definition(1, "public", "t", (Column("id", "bigint"), Column("a", "text"), Column("b", "text")), ("id",))
    row = converted(wire.encode(change(after={"b": "2", "a": "1", "id": 1})), definitions=(known,))
    assert row["after"] == '{"id":1,"a":"1","b":"2"}'


# --- everything else of a change


def test_who_and_why_are_carried_over() -> None:
    context = Context("ada", "checkout", "3f2a", {"order": 118, "big": 2**60}, "postgres", "shop")
    event = change(Op.UPDATE, before={"id": 1}, context=context, hidden=("card", 'a"b'))
    raw = debezium.encode(event)
    assert raw is not None
    for line in (wire.encode(event), raw, wire.encode(event)[:-1] + b',"cursor":"forge1_x"}'):
        row = converted(line)
        assert row["seq"] == "000000000000000000050000000000000007"
        assert row["id"] == f"{LOG}:7"
        assert (row["op"], row["schema"], row["table"], row["row_id"]) == ("update", "public", "t", "1")
        assert (row["at"], row["transaction"], row["hidden"]) == (AT, 900, '["card","a\\"b"]')
        assert (row["user_id"], row["function_name"], row["trace_id"]) == ("ada", "checkout", "3f2a")
        assert json.loads(row["context"]) == {"order": 118, "big": 2**60}
        assert (row["session_user"], row["application_name"]) == ("postgres", "shop")


@pytest.mark.parametrize("op", [Op.TRUNCATE, Op.SCHEMA, Op.INVALIDATE, Op.REDACT])
def test_a_change_of_a_whole_table_has_the_newest_definition(op: Op) -> None:
    line = wire.encode(change(op, key=None, after=None))
    row = converted(line)
    assert (row["op"], row["row_id"], row["after"], row["definition"].columns) == (op.value, None, None, ())
    known = [Definition(number, "public", "t", (Column("id", "bigint"),), ("id",)) for number in (3, 9, 5)]
    assert converted(line, definitions=tuple(known))["version"] == 9


def test_a_table_without_a_key_has_no_row_id() -> None:
    row = converted(wire.encode(change(key=None)))
    assert (row["row_id"], row["definition"].key) == (None, ())


# --- order


def test_a_change_of_the_log_has_the_seq_that_the_stream_gives_it() -> None:
    taken = (Snapshot.parse("1:1:"), Snapshot.parse("850:901:900"), Snapshot.parse("950:950:"))
    for transaction, generation in (("800", "0001"), ("900", "0002"), ("940", "0002"), ("950", "0003")):
        source = ChangeSource("postgres-log", LOG, "5.5", transaction)
        row = converted(wire.encode(change(source=source)), generations=taken)
        assert row["seq"] == f"{generation}0000000000000005"


def test_an_older_incarnation_of_the_log_comes_before_the_snapshots_of_a_newer_one() -> None:
    older, newer = (Cursor(LogIdentity(name, "1", 1), Snapshot.parse("900:900:")) for name in ("older", LOG))

    def generation(log: str, transaction: str) -> str:
        line = wire.encode(change(source=ChangeSource("postgres-log", log, "5.5", transaction)))
        return str(converted(line, generations=(older, newer))["seq"][:4])

    assert [generation("older", "899"), generation("older", "901")] == ["0000", "0001"]
    assert [generation(LOG, "899"), generation(LOG, "901")] == ["0001", "0002"]
    assert generation("oldest", "901") == "0000"


def test_changes_of_sqlite_sort_as_they_happened() -> None:
    """A change of a key is two changes of one number, as `forge.capture.sqlite` writes them."""
    order = [
        converted(wire.encode(change(source=ChangeSource("sqlite", "x", position))))["seq"]
        for position in ("9", "12", "12.1", "13", "100")
    ]
    assert order[0] == "00000000000000000009"
    assert order == sorted(set(order))


@pytest.mark.parametrize(
    ("kind", "position"),
    [
        ("wal", "000000000a6b3748.000000000a6b3700"),
        ("mysql", "mysql-bin.000003:000000000154.00000002.000000"),
        ("mongo", "65a1b2c3000000012b0229296e04"),
    ],
)
def test_a_change_whose_position_says_no_order_is_refused(kind: str, position: str) -> None:
    """Positions as these sources write them, which archives have no order for."""
    line = wire.encode(change(source=ChangeSource(kind, "x", position)))
    with pytest.raises(DecodeError, match="says no order"):
        converted(line)


POSTGRES = {
    "connector": "postgresql", "name": "shop", "ts_ms": 1769860800123, "snapshot": "false", "db": "shop",
    "sequence": '["24023119","24023128"]', "schema": "public", "table": "t", "txId": 571, "lsn": 24023128, "xmin": None,
}  # fmt: skip
MYSQL = {
    "connector": "mysql", "name": "shop", "ts_ms": 1769860800123, "snapshot": "false", "db": "inventory",
    "table": "t", "server_id": 223344, "gtid": None, "file": "mysql-bin.000003", "pos": 484, "row": 0, "thread": 7,
}  # fmt: skip


def event(op: str = "c", source: dict[str, Any] = POSTGRES, **fields: Any) -> dict[str, Any]:
    return {"before": None, "after": None, "source": source, "op": op, "ts_ms": 1, "transaction": None, **fields}


def test_events_of_connectors_sort_as_they_happened() -> None:
    def seq(op: str, source: dict[str, Any], **fields: Any) -> str:
        row = {"before": {"id": 1}} if op == "d" else {"before": {"id": 1}, "after": {"id": 1}}
        return str(converted(event(op, source, **row, **fields), keys={f"{space}.t": ("id",)})["seq"])

    space = "public"
    order = [
        seq("c", POSTGRES | {"lsn": 99}),
        seq("r", POSTGRES | {"lsn": 100}),
        seq("u", POSTGRES | {"lsn": 100}, transaction={"id": "571:100", "total_order": 1, "data_collection_order": 1}),
        seq("d", POSTGRES | {"lsn": 100}, transaction={"id": "571:100", "total_order": 2, "data_collection_order": 2}),
        seq("c", POSTGRES | {"lsn": 2**40}),
    ]
    assert order == sorted(set(order))
    space = "inventory"
    order = [
        seq("u", MYSQL | {"pos": 4}),
        seq("r", MYSQL),
        seq("u", MYSQL),
        seq("u", MYSQL | {"row": 1}),
        seq("u", MYSQL | {"pos": 2**32}),
        seq("u", MYSQL | {"file": "mysql-bin.000010", "pos": 4}),
    ]
    assert order == sorted(set(order))
    space = "dbo"
    server = {"connector": "sqlserver", "name": "s", "ts_ms": 1, "db": "shop", "schema": "dbo", "table": "t"}
    order = [
        seq("u", server | {"change_lsn": "00000025:00000d98:00a2", "event_serial_no": 1}),
        seq("u", server | {"change_lsn": "00000025:00000d98:00a2", "event_serial_no": 2}),
        seq("r", server | {"change_lsn": None, "commit_lsn": "00000025:00000d99:0001"}),
        seq("u", server | {"change_lsn": "00000025:00000d99:0001", "event_serial_no": 1}),
    ]
    assert order == sorted(set(order))


@pytest.mark.parametrize(("op", "source"), [("c", POSTGRES), ("r", POSTGRES), ("r", MYSQL)])
def test_rows_at_one_place_are_told_apart_and_named_alike_each_time(op: str, source: dict[str, Any]) -> None:
    rows = [converted(event(op, source, after={"id": number})) for number in (1, 2, 1)]
    assert rows[0]["id"] == rows[2]["id"] != rows[1]["id"]
    assert rows[0]["seq"] == rows[2]["seq"] != rows[1]["seq"]


# --- Debezium's connectors


def wrapped(fields: list[dict[str, Any]], payload: dict[str, Any] | None) -> dict[str, Any]:
    row = {"type": "struct", "fields": fields, "optional": True, "name": "shop.public.t.Value"}
    rows = [row | {"field": "before"}, row | {"field": "after"}, {"type": "string", "field": "op"}]
    return {"schema": {"type": "struct", "fields": rows, "name": "shop.public.t.Envelope"}, "payload": payload}


def field(name: str, type: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    return {"field": name, "type": type, "optional": True} | ({"name": semantic} if semantic else {}) | more


CONNECT = "org.apache.kafka.connect.data"
FIELDS: list[tuple[dict[str, Any], Any, str, Any]] = [
    (field("a", "int16"), 7, "smallint", 7),
    (field("b", "int32"), 7, "integer", 7),
    (field("c", "int64"), 2**60, "bigint", 2**60),
    (field("d", "boolean"), True, "boolean", True),
    (field("e", "double"), 1, "double precision", 1.0),
    (field("f", "float"), 0.1, "real", 0.1),
    (field("g", "string"), "x", "text", "x"),
    (field("h", "bytes"), "3q0=", "bytea", b"\xde\xad"),
    (field("i", "bytes", f"{CONNECT}.Decimal", parameters={"scale": "2", "connect.decimal.precision": "10"}),
     "BM4=", "numeric(10,2)", Decimal("12.30")),
    (field("j", "struct", "io.debezium.data.VariableScaleDecimal"), {"scale": 3, "value": "/w=="},
     "numeric", Decimal("-0.001")),
    (field("k", "int32", "io.debezium.time.Date"), 11017, "date", "2000-03-01"),
    (field("l", "int64", "io.debezium.time.MicroTimestamp"), 86400500000,
     "timestamp without time zone", "1970-01-02T00:00:00.5"),
    (field("m", "int64", "io.debezium.time.Timestamp"), 86400500,
     "timestamp(3) without time zone", "1970-01-02T00:00:00.5"),
    (field("n", "int64", "io.debezium.time.NanoTimestamp"), 86400500000000,
     "timestamp without time zone", "1970-01-02T00:00:00.5"),
    (field("o", "string", "io.debezium.time.ZonedTimestamp"), "2026-01-31T12:00:00.5Z",
     "timestamp with time zone", "2026-01-31T12:00:00.5+00:00"),
    (field("p", "int64", "io.debezium.time.MicroTime"), 45296789000, "time without time zone", "12:34:56.789"),
    (field("q", "string", "io.debezium.time.ZonedTime"), "12:34:56Z", "time with time zone", "12:34:56+00"),
    (field("r", "string", "io.debezium.data.Json"), '{"a": 1.10}', "json", '{"a": 1.10}'),
    (field("s", "string", "io.debezium.data.Uuid"), LOG, "uuid", LOG),
    (field("t", "bytes", "io.debezium.data.Bits", parameters={"length": "4"}), "BQ==", "bit(4)", "0101"),
    (field("u", "array", items={"type": "int32", "name": "io.debezium.time.Date"}), [0, None],
     "date[]", ["1970-01-01", None]),
    (field("v", "int64", "io.debezium.time.MicroDuration"), 93784500000, "interval", "PT26H3M4.5S"),
    (field("w", "struct", "io.debezium.data.geometry.Point"), {"x": 1.5}, "json", '{"x": 1.5}'),
    (field("x", "int64", "io.debezium.time.MicroTime"), -3600000000, "time without time zone", "-01:00:00"),
    (field("y", "string"), PLACEHOLDER, "text", UNAVAILABLE),
    (field("z", "bytes", f"{CONNECT}.Decimal", parameters={"scale": "0"}), None, "numeric", None),
]  # fmt: skip


def test_the_schema_part_of_an_event_says_exactly_what_its_values_are() -> None:
    row = {described["field"]: value for described, value, _, _ in FIELDS}
    found = converted(wrapped([described for described, *_ in FIELDS], event(after=row)), {"b": 7})
    assert [column.type for column in found["definition"].columns] == [name for _, _, name, _ in FIELDS]
    assert same(values(found), {described["field"]: value for described, _, _, value in FIELDS})
    assert found["definition"].key == ("b",)
    assert (found["row_id"], found["transaction"]) == ("7", 571)
    assert found["at"] == datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)


def test_the_lakes_own_definition_is_taken_where_there_is_one() -> None:
    columns = (Column("id", "integer"), Column("doc", "jsonb", "jsonb"), Column("n", "numeric", "numeric"))
    known = Definition(4, "public", "t", columns, ("id",))
    fields = [field("id", "int32"), field("doc", "string", "io.debezium.data.Json"), field("n", "double")]
    payload = event(after={"id": 1, "doc": '{"a": [null, 1.10]}', "n": 12.5})
    for line in (wrapped(fields, payload), payload):
        row = converted(line, definitions=(known,))
        assert (row["version"], row["row_id"]) == (4, "1")
        assert row["after"] == '{"id":1,"doc":{"a": [null, 1.10]},"n":12.5}'


PRICES = (Column("id", "bigint"), Column("p", "numeric(10,2)", "numeric"), Column("n", "numeric(10,0)", "numeric"))


@pytest.mark.parametrize(
    ("price", "number", "base64", "expected"),
    [
        ("12.30", "1234", False, (Decimal("12.30"), Decimal(1234))),
        ("BM4=", "1234", True, (Decimal("12.30"), Decimal(0xD76DF8 - 2**24))),
        ("1234", "AQ==", False, (Decimal(0xD76DF8 - 2**24).scaleb(-2), Decimal(1))),
        ({"scale": 1, "value": "BM4="}, 7, False, (Decimal("123.0"), Decimal(7))),
    ],
)
def test_decimals_without_a_schema_part_are_read_by_the_lakes_types(
    price: Any, number: Any, base64: bool, expected: tuple[Any, ...]
) -> None:
    known = Definition(4, "public", "t", PRICES, ("id",))
    found = frozenset({("public", "t", "n")}) if base64 else frozenset()
    row = converted(event(after={"id": 1, "p": price, "n": number}), definitions=(known,), base64=found)
    assert row["version"] == 4
    assert tuple(values(row).values())[1:] == expected


def test_an_archive_tells_by_its_other_values_that_decimals_are_in_base64() -> None:
    raw = json.dumps(event(after={"id": 1, "p": "12.30", "n": "BM4="})).encode()
    known = Definition(4, "public", "t", PRICES, ("id",))
    seen = Converter(ArchivePlan(definitions=(known,))).survey(raw)
    assert seen is not None
    assert [name for name, traits in seen.traits.items() if traits & BASE64] == ["n"]


def test_without_any_types_values_are_what_json_says() -> None:
    row = {"id": 1, "f": 1.5, "wide": Decimal("0.12345678901234567890"), "t": "x", "b": True, "o": {"a": 1}, "z": None}
    line = json.dumps(event(after=row), default=str).replace('"0.12345678901234567890"', "0.12345678901234567890")
    found = converted(line, keys={"public.t": ("id",)})
    types = {column.name: column.type for column in found["definition"].columns}
    expected = ["bigint", "double precision", "numeric", "text", "boolean", "json", "text"]
    assert types == dict(zip(row, expected, strict=True))
    assert same(values(found), row | {"o": '{"a": 1}'})
    assert found["row_id"] == "1"


def test_mysql_tables_are_named_by_their_database() -> None:
    row = converted(event("u", MYSQL, before={"id": 1, "n": 1}, after={"id": 1, "n": 2}), {"id": 1})
    assert (row["schema"], row["table"], row["row_id"], row["transaction"]) == ("inventory", "t", "1", None)
    assert values(row, "before") == {"id": 1, "n": 1}


@pytest.mark.parametrize("form", ["beside", "around", "text", "schema"])
def test_the_key_of_a_message_is_the_key_of_the_table(form: str) -> None:
    value, key = event(after={"id": 1, "n": 2}), {"id": 1}
    if form == "beside":
        row = converted(value, key)
    elif form == "around":
        row = converted({"key": key, "value": value})
    elif form == "text":
        row = converted({"topic": "t", "key": json.dumps(key), "payload": json.dumps(value)})
    else:
        row = converted(value, {"schema": {"type": "struct"}, "payload": key})
    assert (row["definition"].key, row["row_id"]) == (("id",), "1")


def test_a_value_that_was_not_sent_again_is_taken_from_the_row_before() -> None:
    line = event("u", before={"id": 1, "long": "x"}, after={"id": 1, "long": PLACEHOLDER})
    assert values(converted(line, {"id": 1})) == {"id": 1, "long": "x"}


def test_a_delete_without_its_row_has_its_key() -> None:
    row = converted(event("d"), {"id": 1}, keys={"public.t": ("id",)})
    assert (row["op"], row["row_id"], row["after"]) == ("delete", "1", None)
    assert values(row, "before") == {"id": 1}


# --- which definition


def test_the_definition_is_found_by_columns_key_and_values() -> None:
    id, text, day = Column("id", "bigint"), Column("v", "text"), Column("v", "date")
    known = (
        Definition(1, "public", "t", (id, text), ()),
        Definition(2, "public", "t", (id, text), ("id",)),
        Definition(3, "public", "t", (id, day), ("id",)),
        Definition(4, "public", "t", (id, day, Column("w", "text")), ("id",)),
    )

    def version(after: dict[str, Any], key: dict[str, Any] | None) -> int:
        return int(converted(wire.encode(change(key=key, after=after)), definitions=known)["version"])

    assert version({"id": 1, "v": "2026-01-31"}, {"id": 1}) == 3
    assert version({"id": 1, "v": "x"}, {"id": 1}) == 2
    assert version({"id": 1, "v": "x"}, None) == 1
    assert version({"id": 1, "v": None, "w": "x"}, {"id": 1}) == 4
    assert version({"id": 1, "w": "x"}, {"id": 1}) == 4
    assert version({"id": 1, "new": "x"}, {"id": 1}) < 0
    assert version({"id": 1, "v": 7}, {"id": 1}) < 0


def test_a_number_that_its_column_would_round_is_of_another_definition() -> None:
    known = Definition(4, "public", "t", PRICES, ("id",))
    row = {"id": 1, "p": Decimal("12.345"), "n": Decimal(1)}
    found = converted(wire.encode(change(after=row)), definitions=(known,))
    assert found["version"] < 0
    assert same(values(found), row)
    assert "the value of 'p' is none of its type" in refusal(
        event(after=row | {"n": "1", "p": "12.345"}), definitions=(known,)
    )


def test_the_lakes_key_counts_and_not_that_of_the_messages() -> None:
    known = Definition(1, "public", "t", (Column("id", "bigint"), Column("n", "bigint")), ("id",))
    line = event(after={"id": 1, "n": 2})
    row = converted(line, {"n": 2}, definitions=(known,))
    assert (row["version"], row["row_id"]) == (1, "1")
    assert converted(line, {"n": 2})["row_id"] == "2"
    assert converted(line, keys={"public.t": ("n",)}, definitions=(known,))["version"] < 0


def test_an_inferred_definition_is_used_again_only_while_it_fits() -> None:
    first = converted(wire.encode(change(after={"id": 1, "v": 1})))["definition"]
    again = converted(wire.encode(change(after={"id": 2, "v": 5})), definitions=(first,))
    assert again["definition"] == first
    other = converted(wire.encode(change(after={"id": 2, "v": "x"})), definitions=(first,))
    assert [column.type for column in other["definition"].columns] == ["bigint", "text"]


# --- refusals


def refusal(raw: bytes | str | dict[str, Any], **plan: Any) -> str:
    with pytest.raises(DecodeError) as caught:
        converted(raw, **plan)
    assert "\n" not in str(caught.value)
    return str(caught.value)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "truncated"),
        ("[]", "object"),
        ("7", "object"),
        (b"\xff\xfe", "malformed"),
        (DEEP, "object"),
        ('{"op": "c", "source": {}, "after": {"a": ' + DEEP, "recursion"),
        ("{}", "neither"),
        ({"status": "BEGIN", "id": "571", "event_count": None}, "neither"),
        ({"source": POSTGRES, "ddl": "create table t ()"}, "no change of a row"),
        (event("m"), "unknown operation"),
        (event("x"), "unknown operation"),
        (event(source={**POSTGRES, "connector": "mongodb"}, after={"id": 1}), "mongodb"),
        (event(source={**POSTGRES, "table": None}, after={"id": 1}), "names no table"),
        (event(source={**POSTGRES, "lsn": None}, after={"id": 1}), "lsn"),
        (event(source={**POSTGRES, "lsn": -1}, after={"id": 1}), "64 bits"),
        (event(source={**POSTGRES, "ts_ms": 2**60}, after={"id": 1}), ""),
        (event(source={**MYSQL, "file": "binlog"}, after={"id": 1}), "file"),
        (event(), "without the row after"),
        (event("d"), "without the row before"),
        (event("u", after={"id": 1}), "without a key"),
        ({"payload": {"payload": {"payload": {"payload": {"payload": {}}}}}}, "wrappers"),
        (wire.encode(change(source=ChangeSource("postgres-log", LOG, "x", "1"))), "says no order"),
        (wire.encode(change(source=ChangeSource("postgres-log", LOG, f"1.{2**63}", "1"))), "64 bits"),
        (wire.encode(change(op=Op.DELETE, after=None)), "without the row before"),
        (wire.encode(change()).replace(b'"INSERT"', b'"UPSERT"'), "operation"),
        (wire.encode(change(after={"id": 1, "n": Decimal("1E+999999")})), "digits"),
        (wire.encode(change(), rows=False), "missing"),
        (wire.encode(change(key={"other": 1})), "lacks its key"),
    ],
)  # fmt: skip
def test_what_is_no_change_is_refused_with_a_reason(line: Any, reason: str) -> None:
    assert reason in refusal(line)


def test_what_contradicts_the_plan_is_refused() -> None:
    assert "other source" in refusal(wire.encode(change()), source="another")
    assert "no change of a row" in refusal(wire.encode(change()), envelope="debezium")
    assert "missing" in refusal(event(after={"id": 1}), envelope="forge")
    taken = (Snapshot.parse("5:5:"),)
    assert "transaction" in refusal(
        wire.encode(change(source=ChangeSource("postgres-log", LOG, "5.5"))), generations=taken
    )
    keys = {"public.t": ("id",)}
    assert "lacks its key" in refusal(event(after={"n": 1}), keys=keys)
    assert "changes its key" in refusal(event("u", before={"id": 1}, after={"id": 2}), keys=keys)
    known = Definition(4, "public", "t", PRICES, ("id",))
    wrong = event(after={"id": 1, "p": "12 apples", "n": 1})
    assert "the value of 'p' is no numeric(10,2)" in refusal(wrong, definitions=(known,))


@pytest.mark.parametrize(
    "line", ["", "  ", "null", '{"schema": null, "payload": null}', '{"key": {"id": 1}, "value": null}']
)
def test_tombstones_and_empty_lines_hold_nothing(line: str) -> None:
    assert Converter(ArchivePlan()).survey(line.encode()) is None
    assert Converter(ArchivePlan()).convert(line.encode()) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.just({"$int": 1}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    raw: dict[str, Any] = draw(
        st.sampled_from(
            [
                json.loads(wire.encode(change(Op.UPDATE, before={"id": 1, "n": Decimal("1.5")}))),
                event("u", before={"id": 1}, after={"id": 1, "p": "1.00", "n": "1"}),
                event("c", MYSQL, after={"id": 1}),
                wrapped([described for described, *_ in FIELDS], event(after={"a": 1, "i": "BM4=", "t": "BQ=="})),
            ]
        )
    )
    copy = json.loads(json.dumps(raw))
    inside: Any = copy
    while True:
        name = draw(
            st.sampled_from(sorted(inside)) if isinstance(inside, dict) else st.sampled_from(range(len(inside)))
        )
        if isinstance(inside[name], (dict, list)) and inside[name] and draw(st.booleans()):
            inside = inside[name]
            continue
        inside[name] = draw(JSON)
        return json.dumps(copy).encode()


@settings(deadline=None, max_examples=300)
@given(st.binary() | altered(), st.none() | st.binary(max_size=9) | JSON.map(lambda key: json.dumps(key).encode()))
@example(b'{"op":"c","source":{"schema":"s","table":"t","lsn":1,"ts_ms":1},"after":{"a":1e999999999999}}', None)
@example(b'{"op":"c","source":{"schema":"s","table":"t","lsn":1,"ts_ms":1},"after":{"a":-0}}', b"[")
def test_no_line_does_anything_but_be_converted_or_refused(raw: bytes, key: bytes | None) -> None:
    known = Definition(4, "public", "t", PRICES, ("id",))
    for plan in (ArchivePlan(), ArchivePlan(definitions=(known,), generations=(Snapshot.parse("5:5:"),))):
        try:
            seen = Converter(plan).survey(raw, key)
        except DecodeError:
            continue
        if seen is None:
            continue
        needs = seen.needs or UndefinedTable(seen.change.schema, seen.change.table, (), None)
        found = inferred({needs: list(seen.traits.items())}, plan.definitions)
        try:
            row = Converter(ArchivePlan(definitions=plan.definitions, inferred=found)).convert(raw, key)
        except DecodeError:
            continue
        assert row is not None
        for image in row[7:9]:
            assert image is None or isinstance(json.loads(image), dict)


def test_a_placeholder_in_bytes_is_no_value() -> None:
    known = Definition(4, "public", "t", (Column("id", "bigint"), Column("b", "bytea", "bytea")), ("id",))
    line = event(after={"id": 1, "b": b64encode(PLACEHOLDER.encode()).decode()})
    assert converted(line, definitions=(known,))["after"] == '{"id":1}'


def test_a_printer_needs_no_columns() -> None:
    assert Printer(())({"a": 1, "b": UNAVAILABLE}) == '{"a":1}'
