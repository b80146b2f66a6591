"""Compute the row changes of a statement that has run, from its plan and the rows afterwards.

`StatementEffects` has the changes in order, and whether further rows may have changed, so that the table must be read
again.
"""

from typing import Any, Final, NamedTuple

from forge.change import Op, same
from forge.tracking.sqlalchemy.images import Image, Key
from forge.tracking.sqlalchemy.plan import ExecutionPlan, Images, known


class RowChange(NamedTuple):
    """The change of one row: its key as SQLAlchemy binds it, and the row before and after, None if there is none."""

    op: Op
    key: Key
    before: Image | None
    after: Image | None
    old: dict[str, Any] | None = None
    """For an update with both rows known: the changed columns with their old values."""


class StatementEffects(NamedTuple):
    """The effects of a statement."""

    rows: list[RowChange]
    beyond: bool = False


NOTHING = StatementEffects([])
UNKNOWN = StatementEffects([], beyond=True)


def inserted(plan: ExecutionPlan, keys: list[Key], count: int) -> StatementEffects:
    """Return the changes after a plain INSERT of `count` rows (-1: unknown) with these keys."""
    if count == 0:
        return NOTHING
    if plan.analysis.may_collide and not plan.analysis.skips:
        return UNKNOWN  # unknown which rows existed before
    good = known(keys)
    if not good:
        return UNKNOWN
    after = plan.now(good)
    rows = [RowChange(Op.INSERT, key, None, after.get(key) if after else None) for key in dict.fromkeys(good)]
    return StatementEffects(rows, beyond=len(good) != len(keys) or len(good) < count)


def collided(plan: ExecutionPlan) -> StatementEffects:
    """Return the changes after an INSERT with a conflict clause, by comparing the rows before and after."""
    before, after = plan.before, plan.now_colliding()
    if before is None or after is None:
        return UNKNOWN
    rows = [RowChange(Op.DELETE, key, image, None) for key, image in before.items() if key not in after]
    for key, image in after.items():
        was = before.get(key)
        if was is None:
            rows.append(RowChange(Op.INSERT, key, None, image))
        elif old := changed(was.row, image.row):
            rows.append(RowChange(Op.UPDATE, key, was, image, old))
    # fewer rows than given: some collided on something not in the Table, for example an index on an expression
    return StatementEffects(rows, beyond=len(after) < plan.expected)


def updated(plan: ExecutionPlan, count: int) -> StatementEffects:
    """Return the changes after an UPDATE that touched `count` rows."""
    before = plan.before
    old = _named(plan)
    if count == 0:
        return NOTHING
    if old is None:
        return UNKNOWN
    moved = plan.moved
    new = [moved.get(key, key) for key in old]
    after = plan.now(new)
    rows: list[RowChange] = []
    for key, now in zip(old, new, strict=True):
        was = before.get(key) if before is not None else None
        image = after.get(now) if after is not None else None
        if after is not None and image is None:
            continue  # the WHERE has more than the key, and excluded this row
        if now != key:
            rows.append(RowChange(Op.DELETE, key, was, None))
        elif was is None or image is None:
            rows.append(RowChange(Op.UPDATE, key, was, image))
        elif different := changed(was.row, image.row):
            rows.append(RowChange(Op.UPDATE, key, was, image, different))
    rows += [
        RowChange(Op.INSERT, now, None, after.get(now) if after is not None else None)
        for key, now in zip(old, new, strict=True)
        if now != key and (after is None or now in after)
    ]
    return StatementEffects(rows, beyond=_more(plan, count))


def deleted(plan: ExecutionPlan, count: int) -> StatementEffects:
    """Return the changes after a DELETE that touched `count` rows."""
    gone = _named(plan)
    if count == 0:
        return NOTHING
    if gone is None:
        return UNKNOWN
    before: Images = plan.before or {}
    if count != len(gone):
        left = plan.now(gone) or {}
        gone = [key for key in gone if key not in left]
    return StatementEffects(
        [RowChange(Op.DELETE, key, before.get(key), None) for key in gone], beyond=_more(plan, count)
    )


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the old values of a row whose representation changed.

    >>> changed({"id": 1, "paid": 0, "note": "a"}, {"id": 1, "paid": False, "note": "b"})
    {'paid': 0, 'note': 'a'}
    """
    return {
        name: value
        for name, value in before.items()
        if (now := after[name]) is not value
        and (value != now or type(value) is not type(now) or (type(value) not in _EQUAL and not same(value, now)))
    }


_EQUAL: Final = frozenset({str, int, bytes})
"""Types whose equal values have the same representation."""


def _named(plan: ExecutionPlan) -> list[Key] | None:
    if plan.before is not None:
        return list(plan.before)
    return None if plan.keys is None else list(dict.fromkeys(plan.keys))


def _more(plan: ExecutionPlan, count: int) -> bool:
    """Whether more rows were touched than were read before: a concurrent commit added them."""
    return plan.before is not None and count > plan.found


def counted(result: Any) -> int:
    """Return the number of rows a statement touched; -1 if the driver does not say. Its returned rows stay readable."""
    if result.returns_rows and not result.context._is_implicit_returning:
        rows = result.all()
        result._rewind(rows)
        return len(rows)
    found = result.rowcount
    return found if isinstance(found, int) else -1
