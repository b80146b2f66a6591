"""What Forge is told: one frozen value, from the environment, `forge.toml` and flags, weakest first.

    default  <  FORGE_DATABASE_URL=…  <  database_url = "…" in forge.toml  <  --database-url …

Every value is checked when it is read, whoever gave it, and remembers where it came from (`origins`). A name
that nobody knows is an error that names the nearest known one: in forge.toml always, in the environment only
when it resembles a setting, because other programs have FORGE_ variables too. An empty variable is unset.

Nothing that is printed holds a secret: `hide` is what every URL goes through on its way out.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import unquote_plus

import msgspec

from forge.errors import ConfigError

FILE: Final = Path("forge.toml")
PREFIX: Final = "FORGE_"
ARGUMENT: Final = "the argument URL"

Wakeup = Literal["auto", "notify", "poll"]


class Config(msgspec.Struct, frozen=True):
    """What is in force. `origins` names for each setting where its value came from."""

    database_url: str | None = None
    """The database to use, PostgreSQL or any source's; None for the embedded server in `data`."""
    data: Path = Path(".forge")
    """Where the embedded server and everything else that Forge keeps lies."""
    retention_days: int = 30
    """How many days of changes the log keeps."""
    log_size_limit: int | None = None
    """How many bytes the log may take; the oldest days go first. None for no limit."""
    hold_days: int = 7
    """How many days past retention the log keeps what a consumer has not read; 0 for none."""
    wakeup: Wakeup = "auto"
    """How readers learn of a commit: see `forge.changelog.follow`."""
    origins: Mapping[str, str] = {}


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    url: str | None = None,
) -> Config:
    """The configuration in force; raise ConfigError for anything unknown or malformed.

    Flags that are None were not given. A `url` is a command's argument, and wins over its flag. A `file` that is named
    must exist; otherwise `forge.toml` in the working directory is read if it is there.

    >>> load({"wakeup": "poll"}, {"FORGE_WAKEUP": "notify", "FORGE_RETENTION_DAYS": "7"}).origins
    {'retention_days': 'FORGE_RETENTION_DAYS', 'wakeup': '--wakeup'}
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, value, origin in (
        *_from_environment(environ or {}),
        *_from_file(file),
        *_from_flags(flags or {}),
        *([] if url is None else [("database_url", url, ARGUMENT)]),
    ):
        values[name] = _PARSERS[name](value, origin)
        origins[name] = origin
    ordered = {name: origins[name] for name in SETTINGS if name in origins}
    return Config(**values, origins=ordered)


def url_source(config: Config) -> str | None:
    """Where the database URL in force is written, as a person would look for it; None for the embedded server.

    >>> url_source(load({}, {"FORGE_DATABASE_URL": "postgresql://db"})), url_source(Config())
    ('FORGE_DATABASE_URL', None)
    """
    if config.database_url is None:
        return None
    origin = config.origins.get("database_url", "the database URL")
    named = origin.startswith(("--", PREFIX, "the "))
    return origin if named else f"database_url in {origin}"


def database_kind(url: str) -> str | None:
    """Whose URL or connection string it is, by name; None for one that Forge does not know.

    >>> database_kind("host=db dbname=shop"), database_kind("sqlite:///shop.db"), database_kind("https://db")
    ('PostgreSQL', 'SQLite', None)
    """
    scheme, mark, _ = url.partition("://")
    if mark and "=" not in scheme:
        return _KINDS.get(scheme.lower())
    return "PostgreSQL" if re.match(r"\s*\w+\s*=", url) else None


def described(config: Config) -> list[tuple[str, Any, str]]:
    """Each setting as (name, value, origin), fit to be shown: secrets hidden, paths and sizes as text."""
    return [(name, _shown(name, getattr(config, name)), config.origins.get(name, "default")) for name in SETTINGS]


def hide(url: str) -> str:
    """A database URL or connection string without its secrets.

    >>> hide("postgresql://ada:s3cret@db/shop?sslpassword=x&application_name=y")
    'postgresql://ada:***@db/shop?sslpassword=***&application_name=y'
    >>> hide("host=db password='two words' user=ada")
    'host=db password=*** user=ada'
    """
    if "://" not in url:
        return re.sub(_SECRET_WORD, r"\1***", url)
    url = re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", url, count=1)
    url = re.sub(r"(://[^:@/?#]*):(?!\*\*\*@[^@/]*(?:[/?#]|$))[^?#]*@", r"\1:***@", url, count=1)
    address, mark, query = url.partition("?")
    return address + mark + "&".join(map(_hide_parameter, query.split("&")))


def size(value: str) -> int | None:
    """Bytes of a size such as 10GB or 512 MB, in units of 1024 as PostgreSQL counts; None for anything else.

    >>> size("10GB"), size("512 mb"), size("1024"), size("ten")
    (10737418240, 536870912, 1024, None)
    """
    match = re.fullmatch(r"\s*(\d{1,18})\s*([kmgt]?)i?b?\s*", value, re.IGNORECASE)
    return int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else None


def shown_size(count: float) -> str:
    """
    >>> shown_size(0), shown_size(1536), shown_size(10 * 1024**3)
    ('0 bytes', '1.5 kB', '10 GB')
    """
    if count < 1024:
        return f"{count:g} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count / 1024:.1f}".removesuffix(".0") + " TB"


def days(value: str) -> int | None:
    """Whole days of a text such as 30, 30d or 2w; None for anything else.

    >>> days("30d"), days("2w"), days("7"), days("1h")
    (30, 14, 7, None)
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*(d|days?|w|weeks?)?\s*", value, re.IGNORECASE)
    return int(match[1]) * (7 if (match[2] or "d").lower().startswith("w") else 1) if match else None


def seconds(value: str) -> float | None:
    """Seconds of a text such as 500ms, 10s, 5m or 1h; None for anything else.

    >>> seconds("500ms"), seconds("10s"), seconds("5m"), seconds("2"), seconds("soon")
    (0.5, 10.0, 300.0, 2.0, None)
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,3})?)\s*(ms|s|m|h)?\s*", value, re.IGNORECASE)
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return float(match[1]) * units[(match[2] or "s").lower()] if match else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, or None.

    >>> nearest("databse_url", ["data", "database_url"])
    'database_url'
    """
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


_KINDS: Final = {
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
    "mongodb": "MongoDB",
    "mongodb+srv": "MongoDB",
}
_SECRETS: Final = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_SECRET_WORD: Final = rf"(\b(?:{'|'.join(_SECRETS)})\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)"


def _hide_parameter(parameter: str) -> str:
    name, mark, _ = parameter.partition("=")
    return f"{name}=***" if mark and unquote_plus(name) in _SECRETS else parameter


def _shown(name: str, value: Any) -> Any:
    if name == "database_url":
        return hide(value) if value else None
    if name == "log_size_limit":
        return None if value is None else shown_size(value)
    return str(value) if isinstance(value, Path) else value


Given = Iterable[tuple[str, Any, str]]


def _from_environment(environ: Mapping[str, str]) -> Given:
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or not value:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in SETTINGS:
            yield name, value, variable
        elif close := difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.8):
            raise ConfigError(f"{variable} is not a setting", fix=f"did you mean {PREFIX}{close[0].upper()}?")


def _from_file(file: Path | None) -> Given:
    path = file or FILE
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if file is not None:
            raise ConfigError(f"there is no file {file}", fix="check --config") from None
        return
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}", fix=f"check {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", fix=f"correct {path}") from None
    for name, value in found.items():
        if name not in SETTINGS:
            close = nearest(name, SETTINGS)
            known = f"did you mean {close}?" if close else f"the settings are {', '.join(SETTINGS)}"
            raise ConfigError(f"{path} has an unknown setting {name!r}", fix=known)
        if name == "data" and isinstance(value, str):
            value = path.parent / value
        yield name, value, str(path)


def _from_flags(flags: Mapping[str, Any]) -> Given:
    for name, value in flags.items():
        if value is not None:
            yield name, value, "--" + name.replace("_", "-")


def _wrong(origin: str, name: str, value: Any, fix: str) -> ConfigError:
    return ConfigError(f"{name} in {origin} cannot be {value!r}", fix=fix)


def _url(value: Any, origin: str) -> str:
    if not isinstance(value, str) or database_kind(value) is None:
        raise ConfigError(
            f"database_url in {origin} is not the URL of a database",
            fix="write it as postgresql://user@host:5432/database, mysql://…, mariadb://…, sqlite:///file or mongodb://…",
        )
    return value


def _path(value: Any, origin: str) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise _wrong(origin, "data", value, "name a directory")
    return Path(value)


def _retention(value: Any, origin: str) -> int:
    found = days(value) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise _wrong(origin, "retention_days", value, "give a whole number of days, 1 or more")
    return found


def _hold(value: Any, origin: str) -> int:
    found = days(value) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise _wrong(origin, "hold_days", value, "give a whole number of days, 0 for none")
    return found


def _limit(value: Any, origin: str) -> int:
    found = size(value) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise _wrong(origin, "log_size_limit", value, "give bytes, or a size such as 10GB")
    return found


def _wakeup(value: Any, origin: str) -> str:
    if value not in get_args(Wakeup):
        raise _wrong(origin, "wakeup", value, f"use {', '.join(get_args(Wakeup))}")
    return str(value)


_PARSERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "database_url": _url,
    "data": _path,
    "retention_days": _retention,
    "log_size_limit": _limit,
    "hold_days": _hold,
    "wakeup": _wakeup,
}
SETTINGS: Final = tuple(_PARSERS)
