"""Results of comparing a lake with its database."""

from typing import Final, Literal

import msgspec

Kind = Literal["missing", "extra", "changed", "quarantined", "redacted"]

_SAID: Final[dict[Kind, str]] = {
    "missing": "in the database and not in the lake",
    "extra": "in the lake and not in the database",
    "changed": "another one in the lake",
    "quarantined": "not in the lake as it is in the database: it did not fit and is in quarantine",
    "redacted": "not known to the lake as it is in the database: values were taken out of the log",
}


class RowDifference(msgspec.Struct, frozen=True):
    """A row that is only in the database (`missing`), only in the lake (`extra`), in both with different values
    (`changed`), or that differs because it is in quarantine, or only in columns that were redacted in the log before
    the lake read them.

    `key` is the key as one word, or a hash of the row if the table has no key; `columns` are the changed columns.

    >>> print(RowDifference("public.orders", "7", "changed", ("total", "state")))
    public.orders: row 7 is another one in the lake: total, state
    """

    table: str
    key: str
    kind: Kind
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.table}: row {self.key} is {_SAID[self.kind]}"
        return f"{said}: {', '.join(self.columns)}" if self.columns else said


class TableReport(msgspec.Struct, frozen=True):
    """The result of one table: the row counts of both sides, the number of differences by kind, and the first of these.

    `differing` is the sum of `missing`, `extra` and `changed`; it excludes rows in quarantine and `redacted` rows,
    whose difference is intended. `left_out` are columns that were not compared, because their types in the lake keep no
    text: variants.
    """

    table: str
    database: int
    lake: int
    missing: int
    extra: int
    changed: int
    differing: int
    quarantined: int
    differences: list[RowDifference]
    left_out: tuple[str, ...] = ()
    redacted: int = 0

    @property
    def equal(self) -> bool:
        """Whether the lake has exactly the rows of the database; false when some are in quarantine."""
        return self.differing == 0 and self.quarantined == 0


class VerifyReport(msgspec.Struct, frozen=True):
    """The results of all compared tables, at the snapshot."""

    snapshot: str
    tables: list[TableReport]

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)

    @property
    def rows(self) -> int:
        """The number of rows of these tables in the database."""
        return sum(table.database for table in self.tables)
