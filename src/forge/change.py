"""The Change: one change of one row of one table, used throughout Forge.

A `Change` is immutable. Its `id` identifies it permanently: a consumer that has seen an id has seen the change.
`before` and `after` hold column values in the forms of `forge.values`; a value that the source did not send is
`UNAVAILABLE`, never None, so None always means SQL NULL.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar, final

import msgspec

from forge.errors import RowMismatch

Row = Mapping[str, Any]
T = TypeVar("T")


class Op(StrEnum):
    """The kind of change. The first four carry rows or empty a table; the rest concern a whole table."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    READ = "read"
    """An existing row of a snapshot, without a change."""
    INVALIDATE = "invalidate"
    """A change that is not known row by row: anything derived from the table must be read again."""
    SCHEMA = "schema"
    """The table's definition changed, and perhaps its rows: read it again."""
    REDACT = "redact"
    """Values were removed from history."""


@final
class Unavailable:
    """The type of `UNAVAILABLE`; its one instance is false in a condition and equal only to itself."""

    _only: "Unavailable | None" = None

    def __new__(cls) -> "Unavailable":
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "UNAVAILABLE"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "UNAVAILABLE"


UNAVAILABLE: Final = Unavailable()
"""A value that the source did not send: excluded, unchanged and out of line, or computed on reading."""


@final
class JsonNull:
    """The type of `JSON_NULL`; it has one instance."""

    _only: "JsonNull | None" = None

    def __new__(cls) -> "JsonNull":
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "JSON_NULL"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "JSON_NULL"


JSON_NULL: Final = JsonNull()
"""The JSON value null in a column of type jsonb; None there means SQL NULL."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The actor and the reason of a change. Every field is None (or empty) if the writer did not set it."""

    user_id: str | None = None
    function_name: str | None = None
    trace_id: str | None = None
    more: Mapping[str, Any] = {}
    session_user: str | None = None
    application_name: str | None = None


NO_CONTEXT: Final = Context()


class ChangeSource(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The origin of a change: `position` orders changes of one source that touch the same row."""

    kind: str
    name: str
    position: str
    transaction: str | None = None


Source = ChangeSource
"""The name in `forge`."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One change of one row, or of one table as a whole.

    `key` maps primary-key columns to values and is None if it is unknown (a table without a key, a whole table). An
    insert has no `before`, a delete no `after`; an update has both and its key never changes: a changed key is a delete
    and an insert.
    """

    id: str
    op: Op
    schema: str
    table: str
    source: ChangeSource
    at: datetime
    key: Row | None = None
    before: Row | None = None
    after: Row | None = None
    context: Context = NO_CONTEXT
    hidden: tuple[str, ...] = ()
    """Columns that changed but whose values are excluded or masked."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the columns that an update changed, in the table's order, hidden ones last; empty for other
        operations.

        >>> from datetime import datetime, timezone
        >>> change = Change(id="1", op=Op.UPDATE, schema="public", table="t", source=ChangeSource("log", "x", "1"),
        ...     at=datetime(2026, 1, 1, tzinfo=timezone.utc), before={"a": 1, "b": 2}, after={"a": 1, "b": 3})
        >>> change.changed
        ('b',)
        """
        if self.op is not Op.UPDATE:
            return ()
        before, after = self.before or {}, self.after or {}
        seen = tuple(name for name, value in after.items() if not same(before.get(name, UNAVAILABLE), value))
        return seen + tuple(name for name in self.hidden if name not in seen)

    @property
    def row_id(self) -> str:
        """Return the key as one string: the value of a one-column key, a JSON array of a longer one, `*` if unknown."""
        if self.key is None:
            return "*"
        values = list(self.key.values())
        if len(values) == 1:
            return text(values[0])
        return json.dumps([text(value) for value in values], ensure_ascii=False)

    def into(
        self,
        wanted: type[T],
        /,
        *,
        image: Literal["before", "after"] | None = None,
        unknown: Literal["ignore", "error"] = "ignore",
    ) -> T:
        """Return the row as a value of the application's type: a SQLAlchemy model (transient), a dataclass, a msgspec
        Struct, a pydantic model, a TypedDict or dict.

        It is the row after the change, or before it for a delete, unless `image` selects one. Columns that the type
        does not have are ignored, or an error. Raise RowMismatch; see `forge.row_mapping`.
        """
        from forge.row_mapping import row_into

        if image not in (None, "before", "after"):
            raise RowMismatch(f"image is {image!r}", fix='pass "before" or "after"')
        name = image or ("before" if self.op is Op.DELETE else "after")
        row = self.before if name == "before" else self.after
        if row is None:
            article = "an" if self.op.value[0] in "aeiou" else "a"
            raise RowMismatch(
                f"{article} {self.op.value} of {self.table} has no row {name} it",
                fix="take the other image" if self.before or self.after else "look at change.op first",
            )
        return row_into(wanted, row, table=self.table, unknown=unknown)


def same(left: object, right: object) -> bool:
    """Tell whether two values have the same representation: NaN is the same as NaN, 1.0 differs from 1.00 and 1.

    >>> from decimal import Decimal
    >>> same(Decimal("1.0"), Decimal("1.00")), same(float("nan"), float("nan")), same(True, 1)
    (False, True, False)
    """
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (str, int, bytes)):
        return left == right
    return repr(left) == repr(right)


def text(value: object) -> str:
    """Return a key value as the log prints it in `row_id`.

    >>> from decimal import Decimal
    >>> [text(value) for value in (True, 7, Decimal("1E-7"), 1.0, 1e15, float("nan"), b"\\x01", ["a", 1])]
    ['true', '7', '0.0000001', '1', '1e+15', 'NaN', '\\\\x01', '["a",1]']
    """
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=text)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=text)
    return str(value)


def _float_text(value: float) -> str:
    """Return the shortest text of the float, with an exponent as in PostgreSQL: from 1e+15 on, below 1e-04."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(Decimal(value))
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    place = exponent + len(digits) - 1
    if -5 < place < 15:
        return format(Decimal((sign, digits, exponent)), "f")
    mantissa = "".join(map(str, digits))
    whole = mantissa[0] + ("." + mantissa[1:] if len(mantissa) > 1 else "")
    return f"{'-' * sign}{whole}e{place:+03d}"
