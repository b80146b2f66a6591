"""Lag of a consumer: the number of changes of its tables that it has not handled, and the wait of the oldest.

For a consumer of another source, the lag is as far as the source reports it: changes or bytes, or neither; and the
seconds since a change was handled, unless none is left.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from forge.cursor import Cursor

MOST: Final = 100_000
"""The maximum count; a larger lag is reported as this number."""


class ConsumerLag(NamedTuple):
    """`events` is at most MOST for the log, and None where a source does not count. Conditions on rows are ignored, so
    it may be larger than the number of changes to handle."""

    events: int | None
    seconds: float
    bytes: int | None = None


def lag_values(cursor: Cursor, tables: Sequence[str], most: int = MOST) -> dict[str, Any]:
    """Return the parameters of the query `lag`."""
    patterns = [re.escape(word).replace(r"\*", ".*").replace(r"\?", ".") for word in tables]
    return {
        **cursor.snapshot.bounds,
        "until": None if cursor.until is None else str(cursor.until),
        "place": 0 if cursor.last is None else cursor.last.rank,
        "last": 0 if cursor.last is None else cursor.last.id,
        "tables": [f"^(?:{pattern})$" for pattern in patterns] or None,
        "most": most,
    }


def lag_of(row: Sequence[Any]) -> ConsumerLag:
    return ConsumerLag(int(row[0]), max(0.0, float(row[1] or 0.0)))
