"""What the bus tells of a statement: its text, what kind of thing it does, how long it took, for whom.

`semantic_op` reads the text only as far as it must and never fails: what it does not know is "other".
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from forge.tracking.current import Current

Kind = Literal["query", "error"]
SemanticOp = Literal["select", "insert", "update", "delete", "merge", "ddl", "transaction", "other"]


class QueryEvent(msgspec.Struct, frozen=True):
    """One statement that ran, or failed: then `error` is what the driver raised."""

    sql: str
    params: Mapping[str, Any] | tuple[Any, ...] | None
    """Of the first set where there were many; values are redacted unless the subscription shows them."""
    duration_ms: float
    row_count: int | None
    """As the driver counts; None where it does not, and for what failed."""
    semantic_op: SemanticOp
    source: str
    """By which way: "sqlalchemy", "psycopg", "ctx.db"."""
    engine: str
    """Which database: the kind and its name, or the name that `observe` was given."""
    context: Current
    at: datetime
    """When it began."""
    many: int = 1
    """How many sets of parameters it was given."""
    error: BaseException | None = None

    @property
    def kind(self) -> Kind:
        return "query" if self.error is None else "error"


_OPS: Final[dict[str, SemanticOp]] = {
    **dict.fromkeys(("select", "values", "table"), "select"),
    **dict.fromkeys(("insert", "replace", "upsert"), "insert"),
    "update": "update",
    "delete": "delete",
    "merge": "merge",
    **dict.fromkeys(("create", "alter", "drop", "truncate", "comment", "grant", "revoke", "rename"), "ddl"),
    **dict.fromkeys(
        ("begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"),
        "transaction",
    ),
}
LONGEST_REMEMBERED: Final = 4096
"""Characters: what is longer is read again, so that memory is bounded."""
_WRITES: Final = frozenset({"insert", "update", "delete", "merge"})
# Text in which no verb stands: comments, strings, quoted names, dollar-quoted bodies.
_TOKEN: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`"""
    r"""| \[[^\]]*\] | (?P<word>[A-Za-z_]\w*) | (?P<mark>[()])""",
    re.VERBOSE | re.DOTALL,
)


def semantic_op(sql: str) -> SemanticOp:
    """What a statement does. A WITH that writes anywhere does what it writes first.

    >>> semantic_op("/* why */ WITH a AS (SELECT 1) UPDATE t SET x = 1"), semantic_op("(SELECT 1) UNION SELECT 2")
    ('update', 'select')
    >>> semantic_op("WITH gone AS (DELETE FROM t RETURNING *) SELECT count(*) FROM gone"), semantic_op("VACUUM")
    ('delete', 'other')
    """
    return _remembered(sql) if len(sql) <= LONGEST_REMEMBERED else _read(sql)


def _read(sql: str) -> SemanticOp:
    first: str | None = None
    main: SemanticOp | None = None
    depth = 0
    fresh = True
    for token in _TOKEN.finditer(sql):
        if mark := token["mark"]:
            depth += 1 if mark == "(" else -1
            fresh = mark == "("
            continue
        if not (word := token["word"]):
            continue
        word = word.lower()
        if first is None:
            first = word
            if word == "copy":
                return "insert" if re.search(r"\bfrom\b", sql, re.IGNORECASE) else "select"
            if word != "with":
                return _OPS.get(word, "other")
        elif word in _WRITES and (fresh or depth == 0):
            return _OPS[word]
        elif depth == 0 and main is None:
            main = _OPS.get(word)
        fresh = False
    return main or "other"


_remembered = lru_cache(maxsize=4096)(_read)
