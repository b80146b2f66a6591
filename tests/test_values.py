"""Row images: what PostgreSQL's row_to_json prints becomes the stated form of every value."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge.change import JSON_NULL, UNAVAILABLE, same
from forge.errors import DecodeError
from forge.values import MOST_LEVELS, Column, Images

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False).map(
    lambda value: Decimal(format(value if value else value.copy_abs(), "f"))
)
NOT_FINITE = st.sampled_from([Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")])


def printed(value: Any) -> str:
    """JSON as PostgreSQL prints it: numbers with all their digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{printed(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(printed, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def logged_float(value: float) -> Any:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return "-0" if value == 0 and math.copysign(1, value) < 0 else value


def logged_numeric(value: Decimal) -> Any:
    return value if value.is_finite() else str(value)


def logged_jsonb(value: Any) -> Any:
    if value is JSON_NULL:
        return {"$json": None}
    return {"$json": value} if isinstance(value, dict) and "$json" in value else value


FRACTIONS = NUMERICS.filter(lambda value: value.as_tuple().exponent != 0 and not value.is_signed())
JSONB = st.recursive(
    st.none() | st.booleans() | st.integers() | FRACTIONS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("$json"), inner, max_size=3),
    max_leaves=8,
)
TOP_JSONB = JSONB.map(lambda value: JSON_NULL if value is None else value)
SCALARS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "plain": (st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS, lambda value: value),
    "float": (st.floats(), logged_float),
    "numeric": (NUMERICS | NOT_FINITE, logged_numeric),
    "bytea": (st.binary(), lambda value: "\\x" + value.hex()),
}  # fmt: skip


def arrays(kind: str) -> st.SearchStrategy[tuple[Any, Any]]:
    values, log = SCALARS[kind]
    flat = st.lists(st.none() | values, max_size=4)
    nested = flat | st.lists(flat, min_size=1, max_size=3)

    def write(value: Any) -> Any:
        return [write(item) if isinstance(item, list) else None if item is None else log(item) for item in value]

    return nested.map(lambda value: (value, write(value))) | st.just(("[0:1]={a,b}", "[0:1]={a,b}"))


@st.composite
def cells(draw: st.DrawFn, name: str) -> tuple[Column, Any, Any]:
    """A column, a value of it, and that value as it is logged."""
    kind = draw(st.sampled_from([*SCALARS, *(f"{kind}[]" for kind in SCALARS), "jsonb", "hidden", "masked"]))
    column = Column(name, "any", kind)
    if kind == "hidden":
        return column, UNAVAILABLE, UNAVAILABLE
    if draw(st.booleans()) and draw(st.booleans()):
        return column, None, None
    if kind == "jsonb":
        value = draw(TOP_JSONB)
        return column, value, logged_jsonb(value)
    if kind.endswith("[]"):
        return column, *draw(arrays(kind[:-2]))
    values, log = SCALARS["plain" if kind == "masked" else kind]
    value = draw(values)
    return column, value, log(value)


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[Column, Any, Any]]:
    names = draw(st.lists(TEXTS.filter(bool), max_size=5, unique=True))
    return [draw(cells(name)) for name in names]


@given(tables(), st.booleans())
def test_every_value_comes_back_in_its_stated_form(table: list[tuple[Column, Any, Any]], text: bool) -> None:
    images = Images([column for column, _, _ in table], key=[])
    image = printed({column.name: logged for column, _, logged in table if column.kind != "hidden"})
    row = images.row(image if text else image.encode())
    expected = {column.name: value for column, value, _ in table}
    assert list(row) == list(expected)
    assert same(row, expected)


@given(tables(), st.data())
def test_a_partial_image_changes_only_what_it_has(table: list[tuple[Column, Any, Any]], data: st.DataObject) -> None:
    sent = [cell for cell in table if cell[0].kind != "hidden" and data.draw(st.booleans())]
    images = Images([column for column, _, _ in table], key=[])
    partial = images.partial(printed({column.name: logged for column, _, logged in sent}))
    assert same(partial, {column.name: value for column, value, _ in sent})


def test_a_plain_image_may_be_text_or_bytes_and_has_no_more_than_its_columns() -> None:
    images = Images([Column("id", "bigint"), Column("name", "text")], key=["id"])
    assert images.row(b'{"id":1,"name":"x"}') == images.row('{"id":1,"name":"x"}') == {"id": 1, "name": "x"}


def test_what_an_image_lacks_is_unavailable_and_what_it_has_more_is_kept() -> None:
    images = Images([Column("a", "text"), Column("b", "numeric", "numeric"), Column("c", "text")], key=[])
    row = images.row('{"c": "x", "child": 1}')
    assert list(row.items()) == [("a", UNAVAILABLE), ("b", UNAVAILABLE), ("c", "x"), ("child", 1)]
    assert images.row('{"a": 1, "c": 2, "child": 3}')["b"] is UNAVAILABLE


def test_a_hidden_value_never_comes_out() -> None:
    images = Images([Column("id", "integer"), Column("secret", "text", "hidden")], key=["id"])
    assert images.row('{"id": 1, "secret": "x"}') == {"id": 1, "secret": UNAVAILABLE}
    assert images.partial('{"secret": null}') == {}


@pytest.mark.parametrize("digits", ["9" * 30, "-" + "9" * 4300, "1" + "0" * 131071, "0." + "1" * 16383])
def test_numbers_keep_all_their_digits(digits: str) -> None:
    images = Images([Column("n", "numeric", "numeric"), Column("j", "jsonb", "jsonb")], key=[])
    row = images.row(f'{{"n": {digits}, "j": [{digits}]}}')
    assert row["n"] == Decimal(digits)
    assert Decimal(row["j"][0]) == Decimal(digits)
    assert isinstance(row["n"], Decimal)


@pytest.mark.parametrize("as_sent", [str, str.encode])
def test_a_negative_zero_is_kept(as_sent: Callable[[str], bytes | str]) -> None:
    columns = [
        Column("a", "double precision[]", "float[]"),
        Column("f", "real", "float"),
        Column("d", "date"),
    ]
    row = Images(columns, key=[]).row(as_sent('{"a":[-0,[1,-0]],"f":-0,"d":"2026-01-01"}'))
    assert same(row, {"a": [-0.0, [1.0, -0.0]], "f": -0.0, "d": "2026-01-01"})
    assert same(Images(columns, key=[]).partial(as_sent('{"f":-0}')), {"f": -0.0})


def test_the_key_is_taken_from_the_row() -> None:
    columns = [Column("a", "integer"), Column("b", "integer"), Column("c", "integer")]
    row = {"a": 1, "b": 2, "c": 3}
    assert Images(columns, key=[]).key(row) is None
    assert Images(columns, key=["b"]).key(row) == {"b": 2}
    assert list((Images(columns, key=["c", "a"]).key(row) or {}).items()) == [("c", 3), ("a", 1)]


def test_a_table_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        Images([Column("a", "text", "strange")], key=[])
    with pytest.raises(ValueError, match="key"):
        Images([Column("a", "text")], key=["b"])


EVERY_KIND = Images(
    [Column(kind, "any", kind) for kind in ("float", "numeric", "bytea", "jsonb", "float[]", "bytea[]")],
    key=[],
)


@given(
    st.binary()
    | st.text()
    | st.dictionaries(st.sampled_from([column.name for column in EVERY_KIND.columns]), JSONB, max_size=4).map(printed)
)
@example(b"[]")
@example("")
@example('{"float": NaN}')
@example('{"bytea": "\\\\xzz"}')
@example('{"numeric": "12 apples"}')
@example('{"float": 1e999, "numeric": 1e999999999999999999999999}')
@example('{"jsonb":' + "[" * 100_000)
def test_what_is_no_image_is_a_decode_error(raw: bytes | str) -> None:
    for read in (EVERY_KIND.row, EVERY_KIND.partial):
        refusal = None
        try:
            read(raw)
        except DecodeError as error:
            refusal = error
        assert refusal is None or (refusal.fix and "\n" not in str(refusal))


def test_a_value_nested_too_deep_for_python_stays_its_text_and_stops_nobody() -> None:
    deep = "[" * 20_000 + '"],"' + "]" * 20_000
    images = Images([Column("id", "bigint"), Column("doc", "jsonb", "jsonb"), Column("t", "text")], key=["id"])
    row = images.row('{"id":1,"doc":' + deep + ',"t":"a\\"},{:b"}')
    assert row == {"id": 1, "doc": deep, "t": 'a"},{:b'}


@pytest.mark.parametrize("wide", [False, True], ids=["str", "bytes"])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"$a":', "}")])
def test_how_deep_a_value_may_be_nested_does_not_depend_on_the_stack(opened: str, closed: str, wide: bool) -> None:
    images = Images([Column("id", "int"), Column("doc", "jsonb", "jsonb"), Column("f", "real", "float")], ["id"])
    for levels in (MOST_LEVELS, MOST_LEVELS + 1, 900, 5000):
        doc = opened * levels + "1" + closed * levels
        image = f'{{"id":1,"doc":{doc},"f":-0}}'
        row = images.row(image.encode() if wide else image)
        assert row["id"] == 1
        assert repr(row["f"]) == "-0.0"
        assert (row["doc"] == doc) is (levels > MOST_LEVELS)
        assert images.partial(f'{{"doc":{doc}}}')["doc"] == row["doc"]


def test_a_value_with_many_brackets_and_few_levels_is_decoded() -> None:
    images = Images([Column("doc", "jsonb", "jsonb")], [])
    assert images.row('{"doc":' + json.dumps([[{}]] * 500) + "}") == {"doc": [[{}]] * 500}
