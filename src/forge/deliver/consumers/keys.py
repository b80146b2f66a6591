"""Keys of changes: they decide the shard that handles a change, and the letters behind which it must queue."""

import zlib
from collections.abc import Iterable

from forge.capture.filters import ROWS
from forge.change import Change

Row = tuple[str, str, str | None]
"""A row by schema, table and key; without a key, all rows without one, or the whole table."""


def row_of(change: Change) -> Row:
    return change.schema, change.table, None if change.key is None else change.row_id


def whole(change: Change) -> bool:
    """Whether a change concerns a whole table: truncate, schema, invalidate, and a redaction of the whole table."""
    return change.key is None and change.op not in ROWS


def key_hash(change: Change) -> int:
    """Return a number that is the same for all changes of a row, on every node and in every version.

    >>> from forge.change import Op, Source
    >>> from datetime import datetime, UTC
    >>> one = Change("1", Op.INSERT, "public", "t", Source("log", "x", "1.1"), datetime.now(UTC), {"id": 7})
    >>> key_hash(one)
    1795415215
    """
    schema, table, key = row_of(change)
    return zlib.crc32(f"{schema}\0{table}\0{'' if key is None else key}".encode())


class Blocked:
    """Rows and tables that have letters: later changes of these are parked too, to keep the order of each row.

    A whole-table change queues behind letters of any of its rows, and all of its rows queue behind that change.
    """

    def __init__(self, rows: Iterable[Row] = (), tables: Iterable[tuple[str, str]] = ()) -> None:
        self._rows = set(rows)
        self._tables = set(tables)

    def __bool__(self) -> bool:
        return bool(self._rows or self._tables)

    def blocks(self, change: Change) -> bool:
        """
        >>> from forge.change import Op, Source
        >>> from datetime import datetime, UTC
        >>> def change(op, key):
        ...     return Change("1", op, "public", "t", Source("log", "x", "1.1"), datetime.now(UTC), key)
        >>> blocked = Blocked([("public", "t", "7")])
        >>> [blocked.blocks(change(*of)) for of in ((Op.DELETE, {"id": 7}), (Op.DELETE, {"id": 8}))]
        [True, False]
        >>> blocked.add(change(Op.TRUNCATE, None))
        >>> blocked.blocks(change(Op.INSERT, {"id": 8}))
        True
        """
        schema, table, key = row_of(change)
        if (schema, table, None) in self._rows or (schema, table, key) in self._rows:
            return True
        return whole(change) and (schema, table) in self._tables

    def add(self, change: Change) -> None:
        """Add a parked change."""
        schema, table, key = row_of(change)
        self._rows.add((schema, table, key))
        self._tables.add((schema, table))
