"""A change as one line for people: `tail` and the demo print these.

    12:01:07.114  orders     UPDATE 4711  status: placed → paid      ada · checkout · 3f2a…    2.1 ms

In comes a Change and the time it was seen, out goes text. What always holds: one change is one line, whatever
its values contain (control characters are shown escaped, so no value can steer the terminal), and without
colour there is not one escape sequence in it. Long values are cut; with a width, lines are cut to it too.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from forge.change import JSON_NULL, UNAVAILABLE, Change, Op, text

ABSENT: Final = "–"
HIDDEN: Final = "(hidden)"

_STYLES: Final = {
    Op.INSERT: "32",
    Op.UPDATE: "33",
    Op.DELETE: "31",
    Op.TRUNCATE: "31;1",
    Op.READ: "36",
    Op.INVALIDATE: "35",
    Op.SCHEMA: "35",
    Op.REDACT: "35",
}
_TABLES: Final = ("36", "34", "35", "96", "94", "95")
_DIM: Final = "2"
_BOLD: Final = "1"
_OPERATION_WIDTH: Final = 6
_KEY_WIDTH: Final = 6
_KEY_LIMIT: Final = 12
_DETAILS_WIDTH: Final = 44
_VALUE_LIMIT: Final = 40
_WHO_WIDTH: Final = 26


class Feed:
    """Lines for one terminal: columns are as wide as what was seen so far, each table keeps its colour."""

    def __init__(self, *, colour: bool = False, width: int | None = None, schema: str = "public") -> None:
        """Tables of `schema` go by their bare name."""
        self._colour = colour
        self._width = width
        self._schema = schema
        self._table_width = 11
        self._key_width = _KEY_WIDTH
        self._tables: dict[str, str] = {}

    def line(self, change: Change, seen: datetime) -> str:
        """One change, seen at that instant; no line break at its end."""
        table = shown(change.table if change.schema == self._schema else f"{change.schema}.{change.table}")
        key = key_text(change)
        if self._width is not None:
            table, key = cut(table, 30), cut(key, _KEY_LIMIT)
        self._table_width = max(self._table_width, min(len(table), 30))
        self._key_width = max(self._key_width, min(len(key), _KEY_LIMIT))
        parts = [
            (f"{change.at.astimezone():%H:%M:%S.%f}"[:-3], _DIM),
            (table.ljust(self._table_width), self._table_colour(table)),
            (f"{change.op.name:<{_OPERATION_WIDTH}} {key.ljust(self._key_width)}", _STYLES[change.op]),
        ]
        tail = [(who(change).ljust(_WHO_WIDTH), _DIM), (latency(seen - change.at).rjust(8), _BOLD)]
        what = details(change).ljust(_DETAILS_WIDTH)
        if self._width is not None:
            room = self._width - sum(len(part) + 2 for part, _ in parts + tail)
            if room < 16:
                tail, room = [], self._width - sum(len(part) + 2 for part, _ in parts)
            what = cut(what.rstrip(), max(room, 0)).ljust(max(room, 0))
        line = "  ".join(self._styled(*part) for part in [*parts, (what, ""), *tail] if part[0])
        return line.rstrip()

    def _table_colour(self, table: str) -> str:
        return self._tables.setdefault(table, _TABLES[len(self._tables) % len(_TABLES)])

    def _styled(self, part: str, style: str) -> str:
        return f"\x1b[{style}m{part}\x1b[0m" if self._colour and style else part


def key_text(change: Change) -> str:
    """The key's values, * for a change of a whole table or of one without a key."""
    return shown(",".join(map(text, change.key.values()))) if change.key else "*"


def details(change: Change) -> str:
    """What changed: old → new for an update, the row for an insert or a delete."""
    if change.op is Op.UPDATE:
        return ", ".join(_differences(change)) or "(no column differs)"
    row = change.after if change.after is not None else change.before
    keys = change.key or {}
    if row is not None:
        return ", ".join(
            f"{shown(name)}: {value_text(value)}"
            for name, value in row.items()
            if name not in keys and value is not None and value is not UNAVAILABLE
        )
    return shown(json.dumps(dict(change.context.more), default=str)) if change.context.more else ""


def _differences(change: Change) -> Iterator[str]:
    before, after = change.before or {}, change.after or {}
    for name in change.changed:
        if name in change.hidden:
            yield f"{shown(name)}: {HIDDEN}"
        else:
            old, new = before.get(name, UNAVAILABLE), after.get(name, UNAVAILABLE)
            yield f"{shown(name)}: {value_text(old)} → {value_text(new)}"


def who(change: Change) -> str:
    """Who did it, in which function, in which trace, as far as known."""
    context = change.context
    named = (context.user_id, context.function_name, short(context.trace_id))
    known = [shown(word) for word in named if word]
    return " · ".join(known) if known else shown(context.session_user or "")


def short(trace_id: str | None) -> str | None:
    """
    >>> short("3f2a9c0e51d74b6aa1b2c3d4e5f60718"), short("abc"), short(None)
    ('3f2a…', 'abc', None)
    """
    return trace_id if trace_id is None or len(trace_id) <= 8 else trace_id[:4] + "…"


def value_text(value: Any) -> str:
    """A value, short enough to sit beside others."""
    if value is None:
        return ABSENT
    if value is UNAVAILABLE:
        return HIDDEN
    if value is JSON_NULL:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() and -20 < value.adjusted() < 20 else str(value)
    if isinstance(value, bytes):
        return cut("\\x" + value[:_VALUE_LIMIT].hex(), _VALUE_LIMIT)
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return cut(shown(str(value)), _VALUE_LIMIT)


def latency(elapsed: timedelta) -> str:
    """
    >>> latency(timedelta(microseconds=2130)), latency(timedelta(seconds=12.3)), latency(timedelta(days=3))
    ('2.1 ms', '12.3 s', '3 d')
    """
    seconds = max(elapsed.total_seconds(), 0)
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def cut(line: str, width: int) -> str:
    """
    >>> cut("placed → paid", 8), cut("paid", 8)
    ('placed …', 'paid')
    """
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"[:width]


def shown(words: str) -> str:
    """Text that cannot steer a terminal: control and direction characters are escaped.

    >>> shown("a\\x1b[2Jb\\nc"), shown("zażółć")
    ('a\\\\x1b[2Jb\\\\nc', 'zażółć')
    """
    return _UNSAFE.sub(_escaped, words)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


_UNSAFE: Final = re.compile(
    "["
    + "".join(
        re.escape(chr(code)) for code in range(0x3000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")
    )
    + "\ufeff\ud800-\udfff]"
)
