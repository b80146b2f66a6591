"""Names of columns in the lake: as in the table, unless the name is taken.

Spark compares names without regard to case, and the lake has columns of its own. A column whose name is taken gets one
or more underscores appended until the name is free. Earlier columns come first, so added columns never change the names
of those before them. Hidden columns count, though they are not in the lake: a column keeps its name when another one is
hidden or shown.

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
    "_unfit",
    # Delta's change data feed and Spark's files use these.
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
    "_metadata",
)
"""Names that no user column has in the lake."""


def silver_names(columns: Iterable[str]) -> dict[str, str]:
    """Map the names of all columns of a table, in the table's order, to their names in the lake."""
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
    """Return one text for all names that Spark may treat as equal."""
    return name.upper().lower()
