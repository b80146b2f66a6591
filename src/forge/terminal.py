"""Format a change as one line for people, for `tail` and the demo.

    12:01:07.114  orders     UPDATE 4711  status: placed → paid      ada · checkout · 3f2a…    2.1 ms

In: a Change and the time it was seen. Out: text. With a width, values are shortened first, then the list of columns,
then the trace and the function after the user's name. Below 100 columns there is less space between the parts and no
fraction of a second.

Invariants:
- One change is one line, whatever its values contain: control characters are escaped, so no value can control the
  terminal.
- Without colour there is no escape sequence in it.
- With a width, no line is longer.
- Columns only grow, up to limits that the width sets.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, Self

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
_LATENCY_WIDTH: Final = 7
_LEAST_DETAILS: Final = 10
_DETAILS_WIDTH: Final = 44
_VALUE_LIMIT: Final = 40
_SHORTER_VALUES: Final = (24, 16, 12, 8)
_NO_LIMIT: Final = sys.maxsize


class _Layout(NamedTuple):
    """The layout of lines of one width: digits of the time, space between parts, and the maximum width of each."""

    time: int
    gap: int
    table: int
    key: int
    who: int

    @classmethod
    def of(cls, width: int | None) -> Self:
        if width is None:
            return cls(time=12, gap=2, table=_NO_LIMIT, key=_NO_LIMIT, who=_NO_LIMIT)
        if width < 100:
            return cls(time=8, gap=1, table=11, key=8, who=16)
        return cls(time=12, gap=2, table=min(width // 6, 30), key=12, who=min(width // 5, 26))


class _Column:
    """A column as wide as the widest text so far, between its bounds; longer texts stick out."""

    def __init__(self, least: int, most: int) -> None:
        self._width, self._most = min(least, most), most

    def padded(self, words: str) -> str:
        self._width = max(self._width, min(len(words), self._most))
        return words.ljust(self._width)


class FeedPrinter:
    """Lines for one terminal: columns are as wide as the texts so far, each table keeps its colour."""

    def __init__(
        self, *, colour: bool = False, width: int | None = None, schema: str = "public", key: int | None = None
    ) -> None:
        """Show tables of `schema` by their bare name; cut keys to `key` characters, and make their column this wide."""
        self._colour = colour
        self._width = width
        self._schema = schema
        self._layout = layout = _Layout.of(width)
        if key is not None:
            self._layout = layout = layout._replace(key=min(key, layout.key))
        self._table = _Column(11, min(layout.table, 30))
        self._key = _Column(key or 6, min(layout.key, 36))
        self._who = _Column(14 if width else 26, min(layout.who, 26))
        self._tables: dict[str, str] = {}

    def line(self, change: Change, seen: datetime) -> str:
        """Format one change, seen at that instant; without a line break at its end."""
        layout = self._layout
        name = shown(change.table if change.schema == self._schema else f"{change.schema}.{change.table}")
        key = self._key.padded(cut(key_text(change), layout.key))
        head = [
            (f"{change.at.astimezone():%H:%M:%S.%f}"[: layout.time], _DIM),
            (self._table.padded(cut(name, layout.table)), self._table_colour(name)),
            (f"{change.op.name:<{_OPERATION_WIDTH}} {key}", _STYLES[change.op]),
        ]
        tail = [
            (" " * (2 - layout.gap) + self._who.padded(who(change, layout.who)), _DIM),
            (latency(seen - change.at).rjust(_LATENCY_WIDTH), _BOLD),
        ]
        if self._width is None:
            parts = [*head, (details(change).ljust(_DETAILS_WIDTH), ""), *tail]
        else:
            room = self._room(head, tail)
            while room < _LEAST_DETAILS and tail:
                tail.pop()
                room = self._room(head, tail)
            parts = [*head, (details(change, room).ljust(room), ""), *tail]
        return self._joined(parts)

    def _room(self, head: list[tuple[str, str]], tail: list[tuple[str, str]]) -> int:
        """Return the width left for the details."""
        assert self._width is not None
        return max(self._width - sum(len(part) + self._layout.gap for part, _ in (*head, *tail)), 0)

    def _joined(self, parts: list[tuple[str, str]]) -> str:
        pieces, room = [], self._width or _NO_LIMIT
        last = max(place for place, (part, _) in enumerate(parts) if part.strip())
        for place, (part, style) in enumerate(parts[: last + 1]):
            part = cut(part.rstrip() if place == last else part, room)
            room -= len(part) + self._layout.gap
            pieces.append(self._styled(part, style))
            if room <= 0:
                break
        return (" " * self._layout.gap).join(pieces)

    def _table_colour(self, table: str) -> str:
        return self._tables.setdefault(table, _TABLES[len(self._tables) % len(_TABLES)])

    def _styled(self, part: str, style: str) -> str:
        return f"\x1b[{style}m{part}\x1b[0m" if self._colour and style else part


def key_text(change: Change) -> str:
    """Return the key's values, * for a change of a whole table or of one without a key."""
    return shown(",".join(map(text, change.key.values()))) if change.key else "*"


def details(change: Change, width: int | None = None) -> str:
    """Return what changed: old → new for an update, the row for an insert or a delete; at most `width` wide."""
    if change.op is not Op.UPDATE and change.after is None and change.before is None:
        more = shown(json.dumps(dict(change.context.more), default=str)) if change.context.more else ""
        return more if width is None else cut(more, width)
    columns = [(shown(name), values) for name, values in _columns(change)]
    if not columns and change.op is Op.UPDATE:
        columns = [("(no column differs)", ())]
    line = _listed(columns, _VALUE_LIMIT)
    if width is None:
        return line
    for limit in _SHORTER_VALUES:
        if len(line) <= width:
            break
        line = _listed(columns, limit)
    return cut(line, width)


def _columns(change: Change) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns to show, each with its values as texts: one, or the old and the new."""
    if change.op is Op.UPDATE:
        before, after = change.before or {}, change.after or {}
        for name in change.changed:
            if name in change.hidden:
                yield name, (HIDDEN,)
            else:
                yield name, tuple(value_text(row.get(name, UNAVAILABLE)) for row in (before, after))
        return
    keys = change.key or {}
    for name, value in (change.after or change.before or {}).items():
        if name not in keys and value is not None and value is not UNAVAILABLE:
            yield name, (value_text(value),)


def _listed(columns: Iterable[tuple[str, tuple[str, ...]]], limit: int) -> str:
    return ", ".join(
        f"{name}: {' → '.join(cut(value, limit) for value in values)}" if values else name for name, values in columns
    )


def who(change: Change, width: int | None = None) -> str:
    """Return user, function and trace, as far as known and as far as they fit; the first always."""
    context = change.context
    named = (context.user_id, context.function_name, short(context.trace_id))
    known = [shown(word) for word in named if word] or [shown(context.session_user or "")]
    while width is not None and len(known) > 1 and len(" · ".join(known)) > width:
        known.pop()
    words = " · ".join(known)
    return words if width is None else cut(words, width)


def short(trace_id: str | None) -> str | None:
    """
    >>> short("3f2a9c0e51d74b6aa1b2c3d4e5f60718"), short("abc"), short(None)
    ('3f2a…', 'abc', None)
    """
    return trace_id if trace_id is None or len(trace_id) <= 8 else trace_id[:4] + "…"


def value_text(value: Any) -> str:
    """Format a value, short enough to be shown beside others."""
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
    >>> [latency(timedelta(seconds=seconds)) for seconds in (0.00213, 0.4567, 12.3, 3 * 86_400)]
    ['2.1 ms', '457 ms', '12.3 s', '3 d']
    """
    seconds = max(elapsed.total_seconds(), 0)
    if seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.1 else 0}f} ms"
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
    """Escape control and direction characters, so that the text cannot control a terminal.

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
