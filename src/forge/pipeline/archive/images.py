"""Print a row of values as its image: the JSON text that the log has for such a row.

`forge.values.Images` reads the same values back. Given the table's columns, the text equals the log's own byte for
byte, as far as the values determine it: it is printed as `row_to_json` prints it, so images from the stream and from an
archive can be compared as text.

>>> from forge.change import UNAVAILABLE
>>> print(Printer(())({"id": 1, "price": Decimal("12.30"), "secret": UNAVAILABLE, "data": b"\\xde", "ok": True}))
{"id":1,"price":12.30,"data":"\\\\xde","ok":true}
>>> Printer([Column("doc", "jsonb", "jsonb"), Column("a", "integer[]", "plain[]")])({"doc": {"a": [1, 2]}, "a": [1, 2]})
'{"doc":{"a": [1, 2]},"a":[1,2]}'
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final

from forge.change import JSON_NULL, UNAVAILABLE, JsonNull, text
from forge.values import Column

quoted: Final = encode_basestring
"""A text as JSON, with PostgreSQL's escapes."""

MOST_BEFORE_POINT: Final = 131_072
MOST_AFTER_POINT: Final = 16_383
"""The maximum number of decimals in PostgreSQL's numeric; it bounds the memory that scientific notation can demand."""


class Printer:
    """Print the images of one definition of a table: its columns in order, then values that the table does not have."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self._prints: dict[str, Callable[[Any], str]] = {}
        for column in columns:
            prints = _value
            if column.kind == "jsonb":
                prints = _document
            elif (column.type, column.kind) == ("real", "float"):
                prints = _real
            elif (column.type, column.kind) == ("real[]", "float[]"):
                prints = _reals
            self._prints[column.name] = prints

    def __call__(self, row: Mapping[str, Any]) -> str:
        """Return the image without UNAVAILABLE values. Raise ValueError for a value that no image can hold."""
        parts = [
            f"{quoted(name)}:{'null' if value is None else prints(value)}"
            for name, prints in self._prints.items()
            if (value := row.get(name, UNAVAILABLE)) is not UNAVAILABLE
        ]
        if not row.keys() <= self._prints.keys():
            parts += [
                f"{quoted(name)}:{'null' if value is None else _value(value)}"
                for name, value in row.items()
                if name not in self._prints and value is not UNAVAILABLE
            ]
        return "{" + ",".join(parts) + "}"


def document(value: Any) -> str:
    """Print JSON as PostgreSQL prints a jsonb value.

    >>> document({"a": [None, Decimal("1.50")]})
    '{"a": [null, 1.50]}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(name)}: {document(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(document, value)) + "]"
    return "null" if value is None or value is JSON_NULL else _scalar(value)


def _document(value: Any) -> str:
    """Print a jsonb value as the log has it: a JSON null, and an object that looks like the wrapper, are wrapped."""
    if value is JSON_NULL:
        return '{"$json" : null}'
    printed = document(value)
    return f'{{"$json" : {printed}}}' if isinstance(value, dict) and "$json" in value else printed


def _value(value: Any) -> str:
    return _VALUES.get(type(value), _scalar)(value)


def _array(value: list[Any], element: Callable[[Any], str]) -> str:
    if any(isinstance(item, dict) for item in value):
        return document(value)
    items = (
        "null" if item is None else _array(item, element) if isinstance(item, list) else element(item) for item in value
    )
    return f"[{','.join(items)}]"


def _scalar(value: Any) -> str:
    prints = _SCALARS.get(type(value))
    if prints is None:
        raise ValueError(f"{value!r} inside a value")
    return prints(value)


def _float(value: float) -> str:
    return text(value) if value - value == 0 else f'"{text(value)}"'


def _digits(value: Decimal) -> str:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return f'"{"NaN" if value.is_nan() else text(value)}"'
    if len(digits) + exponent > MOST_BEFORE_POINT or -exponent > MOST_AFTER_POINT:
        raise ValueError("a number with more digits than numeric has")
    return format(value, "f")


def _real(value: Any) -> str:
    return f'"{text(value)}"' if value == 0 else _short(value)


def _reals(value: Any) -> str:
    return _array(value, _short) if isinstance(value, list) else _value(value)


def _short(value: Any) -> str:
    """Print a real: PostgreSQL uses an exponent from seven digits before the point on.

    >>> _short(123456.0), _short(1234567.0), _short(1e20), _short(float("nan"))
    ('123456', '1.234567e+06', '1e+20', '"NaN"')
    """
    printed = _scalar(value)
    if not isinstance(value, float) or not 1e6 <= abs(value) < 1e15:
        return printed
    sign, digits, exponent = Decimal(printed).normalize().as_tuple()
    assert isinstance(exponent, int)
    mantissa = "".join(map(str, digits))
    whole = mantissa[0] + ("." + mantissa[1:] if len(mantissa) > 1 else "")
    return f"{'-' * sign}{whole}e{exponent + len(mantissa) - 1:+03d}"


_SCALARS: Final[dict[type, Callable[[Any], str]]] = {
    str: quoted,
    bool: lambda value: "true" if value else "false",
    int: str,
    Decimal: _digits,
    float: _float,
    bytes: lambda value: f'"\\\\x{value.hex()}"',
}
_VALUES: Final[dict[type, Callable[[Any], str]]] = {
    **_SCALARS,
    float: lambda value: f'"{text(value)}"' if value == 0 else _float(value),
    list: lambda value: _array(value, _scalar),
    dict: _document,
    JsonNull: _document,
}
