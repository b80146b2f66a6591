"""What a column is called in the lake: as in its table, unless that name is taken there.

Spark tells names apart without regard to case, and the lake has columns of its own. A column whose name is taken gets
an underscore appended, or more, until it is free. Earlier columns come first, so columns that are added later never
change the names of those before them. Hidden columns count, though they are not in the lake: a column keeps its name
when another one is hidden or shown.

>>> silver_names(["id", "ID", "_seq", "id_"])
{'id': 'id', 'ID': 'ID_', '_seq': '_seq_', 'id_': 'id__'}
"""

from collections.abc import Iterable
from typing import Final

METADATA: Final = (
    "_seq",
    "_end_seq",
    "_op",
    "_at",
    "_changed_at",
    "_valid_from",
    "_valid_to",
    "_is_current",
    "_transaction",
    "_end_transaction",
    "_user_id",
    "_function_name",
    "_trace_id",
    "_session_user",
    "_key",
    "_missing",
    "_redacted",
    # Delta's change data feed and Spark's files have these.
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
    "_metadata",
)
"""Names that no column of a user has in the lake."""


def silver_names(columns: Iterable[str]) -> dict[str, str]:
    """The names of a table's columns, all of them in the table's order, to their names in the lake."""
    taken = {_folded(name) for name in METADATA}
    names: dict[str, str] = {}
    for column in columns:
        name = column
        while _folded(name) in taken:
            name += "_"
        taken.add(_folded(name))
        names[column] = name
    return names


def _folded(name: str) -> str:
    """One text for all names that Spark may take for the same."""
    return name.upper().lower()
