"""Regions read by a snapshot, with their times: the changes of the stream that its rows already show.

An interrupted snapshot continues under another one, so parts of a table may have been read at different times. Each
read has an `Epoch`: what was left to read when it began. A row belongs to the last epoch whose rest had it, and a
transaction that this epoch's snapshot sees is already in the row.

Parts are bounded by keys, so keys must have an order that server and reader agree on: whole numbers have theirs, and
any other value that of its text's bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from forge.capture.wal.position import Epoch, Rest, Unit
from forge.capture.wal.relations import WalRelation
from forge.change import Change, Op, text

_ORDERED: Final = ("int", "text", "bool", "numeric", "float", "bytea", "timestamp", "timestamptz")


def ordered(relation: WalRelation) -> bool:
    """Tell whether the rows of a table can be read in parts."""
    return bool(relation.key_names) and all(relation.forms[name] in _ORDERED for name in relation.key_names)


def order_texts(relation: WalRelation, key: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a key as COPY prints it."""
    return tuple(_copied(relation.forms[name], key[name]) for name in relation.key_names)


def _copied(form: str, value: Any) -> str:
    """
    >>> from decimal import Decimal
    >>> _copied("timestamptz", "2026-01-31T10:00:00+00:00"), _copied("bool", True), _copied("numeric", Decimal("1.0"))
    ('2026-01-31 10:00:00+00', 't', '1.0')
    """
    if form == "bool":
        return "t" if value else "f"
    if form in ("timestamp", "timestamptz"):
        return str(value).replace("T", " ", 1).replace("+00:00", "+00", 1) if value[:1].isdigit() else str(value)
    return value if isinstance(value, str) else text(value)


def _place(relation: WalRelation, texts: Sequence[str]) -> tuple[Any, ...]:
    return tuple(
        int(word) if relation.forms[name] == "int" else word.encode()
        for name, word in zip(relation.key_names, texts, strict=False)
    )


def unit_holds(unit: Unit, relation: WalRelation, key: Mapping[str, Any]) -> bool:
    """Tell whether a row was still to be read."""
    if unit.low is None and unit.high is None and unit.last is None:
        return True
    here = _place(relation, order_texts(relation, key))
    if unit.low is not None and here[:1] < _place(relation, (unit.low,)):
        return False
    if unit.high is not None and here[:1] >= _place(relation, (unit.high,)):
        return False
    return unit.last is None or here > _place(relation, unit.last)


def left(rest: Rest, relation: WalRelation, key: Mapping[str, Any] | None) -> bool:
    """Tell whether a row of a table was left to read."""
    if rest.finished:
        return False
    if relation.oid > rest.done:
        return True
    units = [unit for unit in rest.units if unit.table == relation.oid]
    return any(key is None or unit_holds(unit, relation, key) for unit in units)


def whole(rest: Rest, oid: int) -> bool:
    """Tell whether all of a table was left to read."""
    return not rest.finished and (oid > rest.done or any(unit == Unit(oid) for unit in rest.units))


def read_before(
    epochs: Sequence[Epoch], sees: Sequence[bool], relation_of: Callable[[Change], WalRelation | None]
) -> Callable[[Change], Change | None]:
    """Return a filter that drops changes of one transaction that a snapshot's rows show; `sees` marks its epochs."""

    def kept(change: Change) -> Change | None:
        relation = relation_of(change)
        if relation is None:
            return change
        for epoch, seen in zip(reversed(epochs), reversed(sees), strict=True):
            if change.op is Op.TRUNCATE:
                if whole(epoch.rest, relation.oid):
                    return None if seen else change
                if seen and left(epoch.rest, relation, None):
                    # some of the rows that were read are gone, others came after it
                    return msgspec.structs.replace(change, op=Op.INVALIDATE)
            elif left(epoch.rest, relation, change.key):
                return None if seen else change
        return change

    return kept
