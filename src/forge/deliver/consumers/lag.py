"""How far behind a consumer is: how many changes of its tables it has not handled, and since when the first waits.

Of a consumer of another source, what that can tell: changes or bytes, or neither; and the seconds since a change was
handled, unless none is left.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from forge.cursor import Cursor

MOST: Final = 100_000
"""Counted no further: a consumer that is so far behind is just that."""


class Lag(NamedTuple):
    """`events` is never more than MOST of the log, and None where a source does not count. A condition on rows is not
    looked at, so it may be more than is handled."""

    events: int | None
    seconds: float
    bytes: int | None = None


def lag_values(cursor: Cursor, tables: Sequence[str], most: int = MOST) -> dict[str, Any]:
    """What the query `lag` needs."""
    patterns = [re.escape(word).replace(r"\*", ".*").replace(r"\?", ".") for word in tables]
    return {
        **cursor.snapshot.bounds,
        "until": None if cursor.until is None else str(cursor.until),
        "place": 0 if cursor.last is None else cursor.last.rank,
        "last": 0 if cursor.last is None else cursor.last.id,
        "tables": [f"^(?:{pattern})$" for pattern in patterns] or None,
        "most": most,
    }


def lag_of(row: Sequence[Any]) -> Lag:
    return Lag(int(row[0]), max(0.0, float(row[1] or 0.0)))
