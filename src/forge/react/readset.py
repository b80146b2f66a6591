"""What a run of a query has read: for each table the columns, and a condition that rows must meet to matter.

A change touches a read set when it touches one of its reads. Reads may say more than was read, never less.
"""

import msgspec

from forge.react.condition import TRUE, Condition


class ColumnType(msgspec.Struct, frozen=True):
    """A column as conditions need it.

    `type` is the base type under all domains, as format_type prints it without a modifier (`integer`, `text`,
    `character varying`, `timestamp with time zone`, an enum's own name …); `enum` tells those apart. `deterministic`
    is false for a collation under which unequal strings may be equal. `hidden` columns are excluded from the log, or
    masked.
    """

    type: str
    enum: bool = False
    deterministic: bool = True
    hidden: bool = False


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
