"""Translate a filter to aggregation stages, so that the server does not send unwanted events.

The stages pass at least what the filter keeps; Forge applies the filter itself to what arrives. So a part that cannot
be expressed here is passed, and only costs traffic. A condition on rows is expressed with `$expr`, by the type of a
field, as Forge decides it: a number is compared with numbers; a value that is missing, NaN or of another type is
undecided and passes; null does not.

An update passes if the document looked up may satisfy the condition, if its pre-image may, or if it touched a field of
the condition.

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
from forge.conditions.parse import parse, paths
from forge.conditions.tree import All, Compare, Condition, Constant, IsNull, Not, Operator, Path
from forge.conditions.tree import Any as Some

Expression = Mapping[str, Any] | bool
"""An aggregation expression; True if nothing can be expressed."""

ALWAYS: Final = ("invalidate", "dropDatabase")
"""Events about the stream itself."""

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
    """Return the stages after `$changeStream`."""
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
    """Return the parts of a filter that the stages decide.

    >>> in_feed(Filter(tables=("orders",), columns=("total",), where="total > 10"))
    ('tables', 'rows')
    >>> in_feed(Filter(where="name < 'm'"))
    ()
    """
    said = filter.where is not None and condition(filter.where, "fullDocument")[0] is not True
    return tuple(part for part in filter.parts if part in ("tables", "operations") or (part == "rows" and said))


def tables(database: str, filter: Filter) -> dict[str, list[dict[str, Any]]]:
    """Return a query for the wanted collections, on `ns.coll`."""
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
    """Return every possible rest of a pattern after it has matched a prefix.

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
    """Return the states of a pattern, including those behind each `*` that matches nothing."""
    found = set(states)
    for at in states:
        while at < len(pattern) and pattern[at] == "*":
            at += 1
            found.add(at)
    return found


def condition(sql: str, prefix: str) -> tuple[Expression, list[str]]:
    """Return an expression that holds for every document at `prefix` that may satisfy the condition, and its fields."""
    parsed = parse(sql)
    fields = sorted({path.names[-1] for path in paths(parsed)})
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
    """Test whether an update changed one of the fields, or something inside of one."""
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
    """Test whether a part of a condition (or its negation) may be true."""
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
    """Return the path of a column, if its name can be part of a path."""
    name = column.names[-1] if isinstance(column, Path) else column
    return prefix + name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else None


def _is_null(field: str | None, *, negated: bool) -> Expression:
    if field is None:
        return True
    kind = {"$type": field}
    return {"$ne": [kind, "null"]} if negated else {"$in": [kind, ["null", "undefined", "missing"]]}


def _compared(field: str | None, operator: str, constant: object) -> Expression:
    """Compare a field with a constant by the field's type; undecided for a type that the constant does not have."""
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
    """Return a number in the server's forms: exact, and as the nearest double."""
    value = Decimal(value)
    if value == value.to_integral_value() and abs(value) < 2**63:
        return [int(value)]
    try:
        return [Decimal128(value), float(value)]
    except ArithmeticError:
        return [float(value)]
