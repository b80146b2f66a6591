"""The kinds of settings: each reads a value as TOML or the environment has it, and says what to write instead.

A field is declared with its kind, `Annotated[int, COUNT]`; everything else about a setting is derived from that.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from forge.config.units import days, seconds, shown_seconds, shown_size, size
from forge.config.urls import database_kind, hide

Wakeup = Literal["auto", "notify", "poll"]
_MOST: Final = 10**15


class SettingKind(NamedTuple):
    """How the values of a setting are written."""

    read: Callable[[Any], Any]
    """The value, or None for one that is refused."""
    fix: str
    show: Callable[[Any], Any] = lambda value: value
    """The value as it is printed."""
    none: str = "none"
    """What the absence of a value means."""
    relative: bool = False
    """Whether a path in forge.toml is relative to that file."""
    wrong: str | None = None
    """What is said of a refused value in place of the value itself, which may hold a secret."""

    def when_absent(self, meaning: str) -> "SettingKind":
        return self._replace(none=meaning)

    def shown(self, value: Any) -> Any:
        """The value as it is printed; None stays None."""
        return None if value is None else self.show(value)


def _whole(parse: Callable[[str], int | None], least: int, most: int = _MOST) -> Callable[[Any], int | None]:
    def read(value: Any) -> int | None:
        number = parse(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool):
            return None
        return number if least <= number <= most else None

    return read


def _positive(parse: Callable[[str], float | None]) -> Callable[[Any], float | None]:
    def read(value: Any) -> float | None:
        number = parse(value) if isinstance(value, str) else value
        if not isinstance(number, int | float) or isinstance(number, bool):
            return None
        return float(number) if 0 < number <= _MOST else None

    return read


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else None


def _decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*[0-9]{1,15}(\.[0-9]{1,9})?\s*", text) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _texts(value: Any) -> tuple[str, ...] | None:
    """A list, or the names between commas."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(map(_text, words)):
        return None
    return tuple(words)


def _path(value: Any) -> Path | None:
    return Path(value) if isinstance(value, str | Path) and str(value) else None


def _url(value: Any) -> str | None:
    return value if isinstance(value, str) and database_kind(value) is not None else None


COUNT: Final = SettingKind(_whole(_integer, 1), "give a whole number, 1 or more")
PORT: Final = SettingKind(_whole(_integer, 0, 65535), "give a whole number from 0 to 65535")
RATE: Final = SettingKind(
    _positive(_decimal), "give a number above 0", lambda value: int(value) if value % 1 == 0 else value
)
DAYS: Final = SettingKind(_whole(days, 1), "give a whole number of days, 1 or more")
HELD_DAYS: Final = SettingKind(_whole(days, 0), "give a whole number of days, 0 for none")
SIZE: Final = SettingKind(_whole(size, 1), "give bytes, or a size such as 10GB", shown_size)
DURATION: Final = SettingKind(_positive(seconds), "give a duration above 0, such as 50ms, 10s or 10m", shown_seconds)
TEXT: Final = SettingKind(_text, "give a text")
TEXTS: Final = SettingKind(_texts, 'give a list of texts, such as ["a", "b"], or a,b in the environment', list)
FOLDER: Final = SettingKind(_path, "name a directory", str, relative=True)
LOCATION: Final = SettingKind(_text, "name a directory or a URL", relative=True)
WAKEUP: Final = SettingKind(
    lambda value: value if value in get_args(Wakeup) else None, f"use {', '.join(get_args(Wakeup))}", str
)
DATABASE: Final = SettingKind(
    _url,
    "write it as postgresql://user@host:5432/database, mysql://…, mariadb://…, sqlite:///file or mongodb://…",
    hide,
    wrong="is not the URL of a database",
)

Count = Annotated[int, COUNT]
Size = Annotated[int, SIZE]
Duration = Annotated[float, DURATION]
