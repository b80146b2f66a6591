"""Filter changes by table, operation, columns and rows. Forge applies the parts that a feed cannot.

A filter never drops what it cannot decide: a change of a whole table passes if its table does, and a row passes if its
image before or its image after may satisfy the condition.

>>> Filter(tables=("orders", "shop.*"), where="status = 'paid' AND total > 10").parts
('tables', 'rows')
"""

import re
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from forge.capture.capabilities import Part
from forge.change import Change, Op, Row
from forge.config import nearest
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.capture.source import SourceBatch

MOST_NAMED = 30
"""Maximum number of columns listed in the error for a misspelt one."""
ROWS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)


class Filter(msgspec.Struct, frozen=True, dict=True):
    """The wanted changes; an empty part wants everything."""

    tables: tuple[str, ...] = ()
    """Names, with or without schema, with `*` and `?`."""
    operations: tuple[Op, ...] = ()
    columns: tuple[str, ...] = ()
    """Images keep these columns and the key; an update that changed none of these is dropped."""
    where: str | None = None
    """An SQL condition on the columns of a row."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts that are set."""
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
        from forge.conditions.untyped import predicate  # imports sqlglot, which is slow

        assert self.where is not None
        return predicate(self.where)

    @cached_property
    def _all(self) -> bool:
        return not self.parts

    @cached_property
    def _named(self) -> Callable[[str], object]:
        words = (re.escape(word).replace(r"\*", ".*").replace(r"\?", ".") for word in self.tables)
        return re.compile("|".join(words), re.DOTALL).fullmatch

    @cached_property
    def _known(self) -> dict[tuple[str, str], bool]:
        return {}

    def check(self) -> None:
        """Raise ConfigError for a condition that cannot be decided on any row."""
        if self.where is not None:
            self._may({})

    @property
    def names_columns(self) -> bool:
        """Tell whether it names columns, which a table may lack."""
        return bool(self.columns) or self.where is not None

    def check_columns(self, known: Iterable[tuple[str, str, Collection[str]]]) -> None:
        """Raise ConfigError for a column that no wanted table has. `known` has tables: schema, name, columns.

        >>> Filter(tables=("orders",), columns=("statsu",)).check_columns([("public", "orders", ["id", "status"])])
        Traceback (most recent call last):
        forge.errors.ConfigError: orders has no column statsu
        fix: did you mean status? there are: id, status
        """
        wanted = [(table, names) for schema, table, names in known if self.wants_table(schema, table)]
        there = list(dict.fromkeys(column for _, names in wanted for column in names))
        asked: list[tuple[str, ...]] = [(column,) for column in self.columns]
        if self.where is not None:
            from forge.conditions.parse import parse, paths  # imports sqlglot, which is slow

            asked += [path.names for path in paths(parse(self.where))]
        for path in asked:
            if wanted and not set(path) & set(there):
                names = {table for table, _ in wanted}
                who = f"{names.pop()} has no" if len(names) == 1 else "no followed table has a"
                close = nearest(path[-1], there)
                listed = ", ".join(there[:MOST_NAMED]) + (", …" if len(there) > MOST_NAMED else "")
                raise ConfigError(
                    f"{who} column {'.'.join(path)}",
                    fix=f"{f'did you mean {close}? ' if close else ''}there are: {listed}",
                )

    def wants_table(self, schema: str, table: str) -> bool:
        """
        >>> wanted = Filter(tables=("orders", "shop.*"))
        >>> [wanted.wants_table(*name) for name in (("public", "orders"), ("shop", "x"), ("public", "x"))]
        [True, True, False]
        """
        if not self.tables:
            return True
        found = self._known.get((schema, table))
        if found is None:
            found = bool(self._named(table) or self._named(f"{schema}.{table}"))
            self._known[schema, table] = found
        return found

    def without(self, *parts: Part) -> "Filter":
        """Return what is left to Forge when these parts run in the feed.

        >>> Filter(tables=("orders",), columns=("id",)).without("tables").parts
        ('columns',)
        """
        return Filter(
            () if "tables" in parts else self.tables,
            () if "operations" in parts else self.operations,
            () if "columns" in parts else self.columns,
            None if "rows" in parts else self.where,
        )

    def batch(self, batch: "SourceBatch") -> "SourceBatch":
        """Return the batch with only the wanted changes, perhaps none; its cursor stays."""
        if self._all or not batch.changes:
            return batch
        kept = [
            (place, found) for place, change in enumerate(batch.changes) if (found := self.keep(change)) is not None
        ]
        return msgspec.structs.replace(
            batch,
            changes=[change for _, change in kept],
            columns=[batch.columns[place] for place, _ in kept] if batch.columns else (),
        )

    def keep(self, change: Change) -> Change | None:
        """Return the change as the reader wants it, or None."""
        if self._all:
            return change
        if not self.wants_table(change.schema, change.table):
            return None
        if self.operations and change.op not in self.operations:
            return None
        if change.op not in ROWS:
            return change
        if self.where is not None and all(self._may(image) is False for image in _images(change)):
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


def _images(change: Change) -> list[Row]:
    """Return the row before and after, if there was one; of an image that was not sent only the key is known."""
    images = []
    if change.op in (Op.UPDATE, Op.DELETE):
        images.append(change.key or {} if change.before is None else change.before)
    if change.op is not Op.DELETE:
        images.append(change.key or {} if change.after is None else change.after)
    return images
