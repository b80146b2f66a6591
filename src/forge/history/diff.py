"""Differences between two images of a row, and between two definitions of a table."""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from forge.change import UNAVAILABLE, Row, same
from forge.history.definitions import DefinitionVersion
from forge.wire import encode_value


class ColumnDifference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column before and after; unset if there was no row. The values of a `hidden` column are not known."""

    column: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET
    hidden: bool = False

    def wire(self) -> dict[str, Any]:
        """Return exact JSON: see forge.wire."""
        if self.hidden:
            return {"column": self.column, "hidden": True}
        images = {"before": self.before, "after": self.after}
        return {
            "column": self.column,
            **{name: encode_value(value) for name, value in images.items() if value is not msgspec.UNSET},
        }


def differences(before: Row | None, after: Row | None, hidden: Collection[str] = ()) -> tuple[ColumnDifference, ...]:
    """Return the differing columns in the table's order, hidden ones last; all known ones if one side has no row.

    >>> differences({"id": 1, "status": "placed"}, {"id": 1, "status": "paid"})
    (ColumnDifference(column='status', before='placed', after='paid', hidden=False),)
    >>> [change.column for change in differences(None, {"id": 1, "secret": UNAVAILABLE})]
    ['id']
    """
    return tuple(_differences(before, after, hidden))


def _differences(before: Row | None, after: Row | None, hidden: Collection[str]) -> Iterator[ColumnDifference]:
    if before is None or after is None:
        for name, value in (before or after or {}).items():
            if value is not UNAVAILABLE:
                yield ColumnDifference(name, **{"before" if after is None else "after": value})
        return
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name, UNAVAILABLE), after.get(name, UNAVAILABLE)
        if name not in hidden and not same(old, new):
            yield ColumnDifference(name, old, new)
    for name in hidden:
        yield ColumnDifference(name, hidden=True)


def redefinition(older: DefinitionVersion | None, newer: DefinitionVersion) -> tuple[str, ...]:
    """Describe the changes of a newer definition in words.

    >>> from forge.history.definitions import VersionColumn
    >>> def version(*fields): return DefinitionVersion(1, 1, "public", "t", fields, ("id",), "")
    >>> id, name = VersionColumn("id", "integer", "plain", 1), VersionColumn("name", "text", "plain", 2)
    >>> title, number = VersionColumn("title", "text", "plain", 2), VersionColumn("n", "bigint", "plain", 3)
    >>> redefinition(version(id, name), version(id, title, number))
    ('column name is title', 'column n bigint is new')
    >>> redefinition(version(id, name), version(VersionColumn("id", "bigint", "plain", 1)))
    ('column id integer is bigint', 'column name is gone')
    """
    if older is None or older.relation != newer.relation:
        return ("tracking began",)
    return tuple(_redefinition(older, newer))


def _redefinition(older: DefinitionVersion, newer: DefinitionVersion) -> Iterator[str]:
    if newer.empty is not None:
        yield "tracking began again"
    if (older.schema, older.table) != (newer.schema, newer.table):
        yield f"{older.schema}.{older.table} is {newer.schema}.{newer.table}"
    for field in older.fields:
        now = newer.by_number.get(field.attnum)
        if now is None:
            yield f"column {field.name} is gone"
            continue
        if now.name != field.name:
            yield f"column {field.name} is {now.name}"
        if now.type != field.type:
            yield f"column {now.name} {field.type} is {now.type}"
        if now.kind != field.kind and {now.kind, field.kind} & {"hidden", "masked"}:
            yield f"column {now.name} is {now.kind if now.kind in ('hidden', 'masked') else 'shown'}"
    for field in newer.fields:
        if field.attnum not in older.by_number:
            yield f"column {field.name} {field.type} is new"
    if older.key_numbers != newer.key_numbers:
        yield f"the key is {', '.join(newer.key) or 'none'}"
