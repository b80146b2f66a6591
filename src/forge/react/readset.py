"""Read set of a query run: per table, the columns read and a condition that relevant rows meet.

A change touches a read set when it touches one of its reads.

Invariants:
- Reads may cover more than was read, never less.
"""

import msgspec

from forge.conditions.canonical import ColumnType
from forge.conditions.tree import TRUE, Condition


class TableRead(msgspec.Struct, frozen=True):
    """One occurrence of a table in a query, as parsed.

    `schema` and `table` name the tracked table: for a partition, the partitioned table. `columns` is None when every
    column may have been read; otherwise it includes the condition's columns.
    """

    schema: str
    table: str
    columns: frozenset[str] | None
    condition: Condition = TRUE


class ReadAnalysis(msgspec.Struct, frozen=True):
    """The reads of one SQL text, for any parameters.

    `types` has the columns that conditions use, by (schema, table). `volatile` names what makes the result change
    without a write: now(), random() …
    """

    reads: tuple[TableRead, ...]
    types: dict[tuple[str, str], dict[str, ColumnType]]
    volatile: tuple[str, ...] = ()
