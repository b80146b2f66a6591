"""A filter as stages of an aggregation: what of it the server decides, so that what nobody wants is never sent.

The stages let through at least what the filter keeps; Forge applies the filter itself to what arrives. So a part that
cannot be said here is let through, and only costs its way. A condition on rows is said with `$expr`, by the type that
a field has, because that is how Forge decides it: a number is compared with numbers, what is missing, NaN or of another
type is undecided and passes, null does not.

An update passes when the document looked up may satisfy the condition, when its pre-image may, or when it touched a
field of the condition.

>>> tables("shop", Filter(tables=("orders", "shop.line*")))  # doctest: +ELLIPSIS
{'$or': [{'ns.coll': {'$in': ['orders']}}, {'ns.coll': {'$regex': '^line.*$', '$options': 's'}}, ...]}
>>> condition("total > 10", "fullDocument")[1]
['total']
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from bson.decimal128 import Decimal128

from forge.capture.capabilities import Part
from forge.capture.filters import Filter
from forge.change import Op
from forge.conditions.parse import columns, parse
from forge.conditions.tree import All, Compare, Condition, Constant, IsNull, Not, Operator, Path
from forge.conditions.tree import Any as Some

Expression = Mapping[str, Any] | bool
"""An aggregation expression; True where nothing can be said."""

ALWAYS: Final = ("invalidate", "dropDatabase")
"""Events that speak of the stream itself."""

_TYPES: Final[dict[Op, tuple[str, ...]]] = {
    Op.INSERT: ("insert",),
    Op.UPDATE: ("update", "replace"),
    Op.DELETE: ("delete",),
    Op.TRUNCATE: ("drop", "rename"),
    Op.INVALIDATE: ("rename",),
}
_NUMBERS: Final = ["int", "long", "double", "decimal"]
_OPERATORS: Final[dict[Operator, str]] = {"=": "$eq", "<>": "$ne", "<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"}
_NEGATED: Final = {"$eq": "$ne", "$ne": "$eq", "$lt": "$gte", "$gte": "$lt", "$gt": "$lte", "$lte": "$gt"}


def stages(database: str, filter: Filter) -> list[dict[str, Any]]:
    """What follows `$changeStream`."""
    wanted: list[Mapping[str, Any]] = []
    if filter.tables:
        found = tables(database, filter)
        renamed = {"to.coll": {"$exists": True}}
        wanted.append({"$or": [*found["$or"], renamed]})
    if filter.operations:
        names = [name for op in filter.operations for name in _TYPES.get(op, ())]
        wanted.append({"operationType": {"$in": sorted({*names})}})
    if filter.where is not None and (rows := _rows(filter.where)) is not True:
        wanted.append({"$expr": rows})
    if not wanted:
        return []
    return [{"$match": {"$or": [{"operationType": {"$in": list(ALWAYS)}}, {"$and": wanted}]}}]


def in_feed(filter: Filter) -> tuple[Part, ...]:
    """The parts of a filter that the stages decide.

    >>> in_feed(Filter(tables=("orders",), columns=("total",), where="total > 10"))
    ('tables', 'rows')
    >>> in_feed(Filter(where="name < 'm'"))
    ()
    """
    said = filter.where is not None and condition(filter.where, "fullDocument")[0] is not True
    return tuple(part for part in filter.parts if part in ("tables", "operations") or (part == "rows" and said))


def tables(database: str, filter: Filter) -> dict[str, list[dict[str, Any]]]:
    """A query for the collections that are wanted, on `ns.coll`."""
    names: list[str] = []
    patterns: list[str] = []
    for pattern in dict.fromkeys(filter.tables):
        for rest in (pattern, *_rests(pattern, f"{database}.")):
            (patterns if "*" in rest or "?" in rest else names).append(rest)
    found: list[dict[str, Any]] = []
    if names:
        found.append({"ns.coll": {"$in": sorted({*names})}})
    for pattern in sorted({*patterns}):
        text = "".join({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in pattern)
        found.append({"ns.coll": {"$regex": f"^{text}$", "$options": "s"}})
    return {"$or": found}


def _rests(pattern: str, head: str) -> list[str]:
    """What of a pattern is left to match behind a head that it has matched, in every way that it can.

    >>> _rests("sh*.o*", "shop."), _rests("orders", "shop.")
    (['*.o*', '.o*', 'o*'], [])
    """
    states = _skips(pattern, {0})
    for letter in head:
        moved = set()
        for at in states:
            if at < len(pattern):
                if pattern[at] == "*":
                    moved.add(at)
                elif pattern[at] in ("?", letter):
                    moved.add(at + 1)
        states = _skips(pattern, moved)
    return [pattern[at:] for at in sorted(states) if at < len(pattern)]


def _skips(pattern: str, states: set[int]) -> set[int]:
    """The states of a pattern, with those behind each `*` that stands for nothing."""
    found = set(states)
    for at in states:
        while at < len(pattern) and pattern[at] == "*":
            at += 1
            found.add(at)
    return found


def condition(sql: str, prefix: str) -> tuple[Expression, list[str]]:
    """An expression that holds for every document under `prefix` that may satisfy the condition, and its fields."""
    parsed = parse(sql)
    fields = sorted({path.names[-1] for path in columns(parsed)})
    return _may(parsed, f"${prefix}." if prefix else "$", negated=False), fields


def _rows(sql: str) -> Expression:
    after, fields = condition(sql, "fullDocument")
    if after is True:
        return True
    before, _ = condition(sql, "fullDocumentBeforeChange")
    no_image = {"$not": [{"$eq": [{"$type": "$fullDocumentBeforeChange"}, "object"]}]}
    no_document = {"$not": [{"$eq": [{"$type": "$fullDocument"}, "object"]}]}
    kind = "$operationType"
    row = {"$in": [kind, ["insert", "update", "replace", "delete"]]}
    return {
        "$or": [
            {"$not": [row]},
            {"$and": [{"$ne": [kind, "delete"]}, no_document]},
            {"$and": [{"$ne": [kind, "delete"]}, after]},
            {"$and": [{"$in": [kind, ["delete", "replace"]]}, no_image]},
            {"$and": [{"$not": [no_image]}, before]},
            _touches(fields),
        ]
    }


def _touches(fields: Sequence[str]) -> Mapping[str, Any]:
    """Whether an update changed one of the fields, or something inside of one."""
    updated = {"$objectToArray": {"$ifNull": ["$updateDescription.updatedFields", {}]}}
    paths = {
        "$concatArrays": [
            {"$map": {"input": updated, "in": "$$this.k"}},
            {"$ifNull": ["$updateDescription.removedFields", []]},
            {"$map": {"input": {"$ifNull": ["$updateDescription.truncatedArrays", []]}, "in": "$$this.field"}},
        ]
    }
    first = {"$arrayElemAt": [{"$split": ["$$this", "."]}, 0]}
    return {"$anyElementTrue": [{"$map": {"input": paths, "in": {"$in": [first, list(fields)]}}}]}


def _may(condition: Condition, prefix: str, *, negated: bool) -> Expression:
    """Whether a part of a condition (or its negation) may be true."""
    match condition:
        case Not():
            return _may(condition.condition, prefix, negated=not negated)
        case All() | Some():
            parts = [_may(part, prefix, negated=negated) for part in condition.conditions]
            return _all(parts) if isinstance(condition, All) is not negated else _any(parts)
        case IsNull():
            return _is_null(_field(condition.column, prefix), negated=negated)
        case Compare(column, operator, Constant(constant)):
            compared = _OPERATORS[operator]
            return _compared(_field(column, prefix), _NEGATED[compared] if negated else compared, constant)
        case _:
            return True


def _any(parts: Sequence[Expression]) -> Expression:
    return True if any(part is True for part in parts) else {"$or": list(parts)}


def _all(parts: Sequence[Expression]) -> Expression:
    said = [part for part in parts if part is not True]
    return {"$and": said} if said else True


def _field(column: str, prefix: str) -> str | None:
    """The path of a column, where it is a name that a path can have."""
    name = column.names[-1] if isinstance(column, Path) else column
    return prefix + name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else None


def _is_null(field: str | None, *, negated: bool) -> Expression:
    if field is None:
        return True
    kind = {"$type": field}
    return {"$ne": [kind, "null"]} if negated else {"$in": [kind, ["null", "undefined", "missing"]]}


def _compared(field: str | None, operator: str, constant: object) -> Expression:
    """A field against a constant: as the field's type wants it, undecided for a type that the constant has not."""
    if field is None:
        return True
    kind = {"$type": field}
    if isinstance(constant, bool):
        return _by_type(kind, {"bool": {operator: [field, constant]}})
    if isinstance(constant, str):
        if operator not in ("$eq", "$ne"):
            return True
        literal = {"$literal": constant}
        return _by_type(
            kind,
            {"string": {operator: [field, literal]}, "objectId": {operator: [{"$toString": field}, literal]}},
        )
    if not isinstance(constant, int | Decimal):
        return True
    unordered = {"$eq": [field, float("nan")]}
    test = {"$or": [unordered, *({operator: [field, each]} for each in _numbers(constant))]}
    return _by_type(kind, dict.fromkeys(_NUMBERS, test))


def _by_type(kind: Mapping[str, Any], tests: Mapping[str, Any]) -> Expression:
    branches = [{"case": {"$eq": [kind, name]}, "then": test} for name, test in tests.items()]
    return {"$switch": {"branches": [{"case": {"$eq": [kind, "null"]}, "then": False}, *branches], "default": True}}


def _numbers(value: int | Decimal) -> list[Any]:
    """A number as the server knows it: exactly, and as the double that is nearest."""
    value = Decimal(value)
    if value == value.to_integral_value() and abs(value) < 2**63:
        return [int(value)]
    try:
        return [Decimal128(value), float(value)]
    except ArithmeticError:
        return [float(value)]
