"""Which changes a reader wants: by table, operation, columns and rows. What a feed cannot filter is filtered here.

A filter never drops what it cannot decide: a change of a whole table passes when its table does, and a row passes
when its image before or its image after may satisfy the condition.

>>> Filter(tables=("orders", "shop.*"), where="status = 'paid' AND total > 10").parts
('tables', 'rows')
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import msgspec

from forge.capture.capabilities import Part
from forge.capture.predicates import predicate
from forge.change import Change, Op, Row

ROWS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)


class Filter(msgspec.Struct, frozen=True, dict=True):
    """What is wanted; an empty part wants everything."""

    tables: tuple[str, ...] = ()
    """Names, with or without schema, with `*` and `?`."""
    operations: tuple[Op, ...] = ()
    columns: tuple[str, ...] = ()
    """Images keep these columns and the key; an update that changed none of these is dropped."""
    where: str | None = None
    """A condition of SQL on the columns of a row."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are asked for."""
        found: list[Part] = []
        if self.tables:
            found.append("tables")
        if self.operations:
            found.append("operations")
        if self.columns:
            found.append("columns")
        if self.where is not None:
            found.append("rows")
        return tuple(found)

    @cached_property
    def _may(self) -> Callable[[Row], bool | None]:
        assert self.where is not None
        return predicate(self.where)

    def wants_table(self, schema: str, table: str) -> bool:
        """
        >>> wanted = Filter(tables=("orders", "shop.*"))
        >>> [wanted.wants_table(*name) for name in (("public", "orders"), ("shop", "x"), ("public", "x"))]
        [True, True, False]
        """
        return not self.tables or any(
            fnmatchcase(f"{schema}.{table}", pattern) or fnmatchcase(table, pattern) for pattern in self.tables
        )

    def keep(self, change: Change) -> Change | None:
        """The change as the reader wants it, or None."""
        if not self.wants_table(change.schema, change.table):
            return None
        if self.operations and change.op not in self.operations:
            return None
        if change.op not in ROWS:
            return change
        if self.where is not None and not any(
            self._may(image) is not False for image in (change.before, change.after) if image is not None
        ):
            return None
        return self._cut(change) if self.columns else change

    def _cut(self, change: Change) -> Change | None:
        if change.op is Op.UPDATE and change.before is not None and not set(change.changed) & set(self.columns):
            return None
        kept = {*self.columns, *(change.key or ())}

        def cut(image: Row | None) -> dict[str, Any] | None:
            return None if image is None else {name: value for name, value in image.items() if name in kept}

        hidden = tuple(name for name in change.hidden if name in kept)
        return msgspec.structs.replace(change, before=cut(change.before), after=cut(change.after), hidden=hidden)
