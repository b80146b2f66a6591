"""Events of the bus: the text of a statement, its operation, its duration, its user.

`semantic_op` reads only as much of the text as it needs and never fails: an unknown statement is "other".
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
    """One statement that ran, or failed; in that case `error` is the driver's exception."""

    sql: str
    params: Mapping[str, Any] | tuple[Any, ...] | None
    """The first parameter set; values are redacted unless the subscription shows them."""
    duration_ms: float
    row_count: int | None
    """The driver's count; None if it has none, and for failed statements."""
    semantic_op: SemanticOp
    source: str
    """The source: "sqlalchemy", "psycopg", "ctx.db"."""
    engine: str
    """The database: its kind and name, or the name given to `observe`."""
    context: Current
    at: datetime
    """Start time."""
    many: int = 1
    """Number of parameter sets."""
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
"""Characters; the result for longer texts is not cached, to bound memory."""
_WRITES: Final = frozenset({"insert", "update", "delete", "merge"})
# Text that contains no verb: comments, strings, quoted names, dollar-quoted bodies.
_TOKEN: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`"""
    r"""| \[[^\]]*\] | (?P<word>[A-Za-z_]\w*) | (?P<mark>[()])""",
    re.VERBOSE | re.DOTALL,
)


def semantic_op(sql: str) -> SemanticOp:
    """Return the operation of a statement. For a WITH that writes, it is the first write.

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
