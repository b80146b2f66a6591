"""What a run of a query has read: for each table the columns, and a condition that rows must meet to matter.

A change touches a read set when it touches one of its reads. Reads may say more than was read, never less.
"""

import msgspec

from forge.conditions.canonical import ColumnType
from forge.conditions.tree import TRUE, Condition


class TableRead(msgspec.Struct, frozen=True):
    """One occurrence of a table in a query, as it was parsed.

    `schema` and `table` name what is tracked: of a partition, the whole table. `columns` is None when all may have been
    read; otherwise it has the condition's columns too.
    """

    schema: str
    table: str
    columns: frozenset[str] | None
    condition: Condition = TRUE


class Analysis(msgspec.Struct, frozen=True):
    """What one SQL text reads, whatever its parameters are.

    `types` has the columns of each table that a condition speaks of, by (schema, table). `volatile` names what makes
    the result change without a write: now(), random() …
    """

    reads: tuple[TableRead, ...]
    types: dict[tuple[str, str], dict[str, ColumnType]]
    volatile: tuple[str, ...] = ()
