"""Print rows of a lake on the terminal, as JSON lines, or write them to files."""

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from forge.cli.session import CommandSession
from forge.terminal import ABSENT, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN: Final = 50
"""The default number of rows on a terminal."""


def rows(frame: "DataFrame", limit: int | None) -> Iterator[dict[str, Any]]:
    """The rows of a frame, so many at the most; times are in UTC and say so."""
    from forge.pipeline import tables

    yield from tables.rows(frame if limit is None else frame.limit(limit))


def show(here: CommandSession, columns: Sequence[str], found: Iterable[dict[str, Any]], limit: int) -> None:
    """A table of at most `limit` rows for people; all of them, one JSON object a line, with --json."""
    if here.json:
        for row in found:
            here.emit({name: plain(row[name]) for name in columns})
        return
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(shown(name), overflow="fold")
    waiting = iter(found)
    first = list(islice(waiting, limit))
    for row in first:
        table.add_row(*(shown(word(row[name])) for name in columns))
    here.show(table)
    if next(waiting, None) is not None:
        here.note(f"the first {limit} rows; --limit shows more, --json all")


def word(value: Any) -> str:
    """A value for people.

    >>> word(None), word(Decimal("1.10")), word(True), word(b"\\x01"), word([1, None])
    ('–', '1.10', 'true', '\\\\x01', '[1, null]')
    """
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray)):
        return "\\x" + value.hex()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join("null" if item is None else word(item) for item in value) + "]"
    return str(value)


def plain(value: Any) -> Any:
    """A value for programs: exact, in JSON.

    >>> plain(Decimal("1.10")), plain(float("nan")), plain(b"\\x01"), plain(date(2026, 1, 31))
    ('1.10', 'NaN', 'AQ==', '2026-01-31')
    """
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and not math.isfinite(value):
        return str(Decimal(value))
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
