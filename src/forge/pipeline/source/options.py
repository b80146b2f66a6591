"""Options of the source, validated once; errors name the valid values."""

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from forge.config import Config
from forge.cursor import Cursor
from forge.errors import ConfigError

STARTS: Final = ("history", "snapshot", "log", "now")
NAMES: Final = (
    "url",
    "tables",
    "start",
    "until",
    "generation",
    "numPartitions",
    "maxEventsPerTrigger",
    "rowsPerShare",
)
PLANNED: Final = ("path", "pieces", "log", "firstId")
"""Options that Spark, or the pipeline itself, adds."""
MOST_EVENTS: Final = Config().pipeline.max_events
ROWS_PER_SHARE: Final = 250_000


class StreamOptions(msgspec.Struct, frozen=True):
    """`start` is the beginning of a stream:

    - `history`: each table as it was before the oldest retained change, then all retained changes;
    - `snapshot`: each table's present rows, then new changes;
    - `log`: the oldest retained change on, without rows that have not changed since;
    - `now`: the next change on; or a cursor.
    """

    url: str
    start: str
    tables: tuple[str, ...] | None = None
    until: str | None = None
    generation: int = 0
    partitions: int = 2
    most: int = MOST_EVENTS
    rows_per_share: int = ROWS_PER_SHARE
    pieces: str | None = None
    """The pieces to read, as an offset has them, of the log with the identity `log` from `first_id` on."""
    log: str = ""
    first_id: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, str], *, start: str) -> "StreamOptions":
        """Parse the options of a Spark user."""
        known = {name.lower(): name for name in (*NAMES, *PLANNED)}
        for name in given:
            if name.lower() not in known:
                raise ConfigError(f"the source has no option {name!r}", fix=f"choose from {', '.join(NAMES)}")
        lower = {name.lower(): value for name, value in given.items()}
        url = lower.get("url") or os.environ.get("FORGE_DATABASE_URL")
        if not url:
            raise ConfigError(
                "the source does not know its database", fix='set the option "url", or FORGE_DATABASE_URL everywhere'
            )
        names = [name.strip() for name in lower.get("tables", "").split(",") if name.strip()]
        options = cls(
            url,
            lower.get("start", start),
            tuple(names) or None,
            lower.get("until"),
            _number("generation", lower.get("generation", "0"), 0),
            _number("numPartitions", lower.get("numpartitions", str(max(2, os.cpu_count() or 2))), 1),
            _number("maxEventsPerTrigger", lower.get("maxeventspertrigger", str(MOST_EVENTS)), 1),
            _number("rowsPerShare", lower.get("rowspershare", str(ROWS_PER_SHARE)), 1),
            lower.get("pieces"),
            lower.get("log", ""),
            int(lower.get("firstid", "0")),
        )
        if options.start not in STARTS:
            Cursor.parse(options.start)
        if options.until is not None:
            Cursor.parse(options.until)
        return options


def _number(name: str, value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"the option {name} is {value!r}", fix=f"give a whole number from {least} on")
    return number
