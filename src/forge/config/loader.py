"""Read the configuration: one frozen value from forge.toml, the environment and flags, the weakest first.

    default  <  database_url = "…" in forge.toml  <  FORGE_DATABASE_URL=…  <  --database-url …

Invariants:

- Every value is checked when it is read, also one that a stronger place overrides, and has an origin (`origins`).
- An unknown name is an error that names the nearest known one: in forge.toml always, in the environment only when it
  resembles a setting, because other programs have FORGE_ variables too. An empty variable is unset.
- Nothing that is printed holds a secret: every URL is printed through `hide`.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from forge.config.tables import PREFIX, SETTINGS, TABLES, Config
from forge.errors import ConfigError

FILE: Final = Path("forge.toml")
ARGUMENT: Final = "the argument URL"
Given = Iterable[tuple[str, Any, str]]
"""Values with the names of their settings and their origins."""


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    url: str | None = None,
) -> Config:
    """The configuration in force; raise ConfigError for anything unknown or malformed.

    Flags that are None were not given. A `url` is a command's argument, and wins over its flag. A `file` that is named
    must exist; otherwise `forge.toml` in the working directory is read if it is there.

    >>> load({"wakeup": "poll"}, {"FORGE_WAKEUP": "notify", "FORGE_SERVE_PORT": "80"}).origins
    {'wakeup': '--wakeup', 'serve.port': 'FORGE_SERVE_PORT'}
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, value, origin in (
        *_from_file(file),
        *_from_environment(environ or {}),
        *_from_flags(flags or {}),
        *([] if url is None else [("database_url", url, ARGUMENT)]),
    ):
        values[name] = _checked(name, value, origin)
        origins[name] = origin
    ordered = {name: origins[name] for name in SETTINGS if name in origins}
    tables: dict[str, Any] = {table: struct(**_of_table(values, f"{table}.")) for table, struct in TABLES.items()}
    top = {name: value for name, value in values.items() if "." not in name}
    return Config(**top, **tables, origins=ordered)


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


def described(config: Config) -> list[tuple[str, Any, str]]:
    """Each setting as (name, value, origin), fit to be printed: secrets hidden, paths, sizes and durations as text."""
    return [
        (name, setting.kind.shown(attrgetter(name)(config)), config.origins.get(name, "default"))
        for name, setting in SETTINGS.items()
    ]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, or None.

    >>> nearest("databse_url", ["data", "database_url"])
    'database_url'
    """
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def _of_table(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _checked(name: str, value: Any, origin: str) -> Any:
    kind = SETTINGS[name].kind
    read = kind.read(value)
    if read is None:
        wrong = kind.wrong or f"cannot be {value!r}"
        raise ConfigError(f"{name} in {origin} {wrong}", fix=kind.fix)
    return read


def _from_file(file: Path | None) -> Given:
    path = file or FILE
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if file is not None:
            raise ConfigError(f"there is no file {file}", fix="check --config") from None
        return
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}", fix=f"check {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", fix=f"correct {path}") from None
    for name, value in _flat(document, path):
        if SETTINGS[name].kind.relative and isinstance(value, str) and value and not _is_url(value):
            value = str(path.parent / Path(value).expanduser())
        yield name, value, str(path)


def _flat(document: Mapping[str, Any], path: Path) -> Iterable[tuple[str, Any]]:
    """The settings of a file by their full names; raise ConfigError for unknown tables and names."""
    for key, value in document.items():
        if key in TABLES and not isinstance(value, dict):
            raise ConfigError(f"{key} in {path} is a table", fix=f"write [{key}] and its settings below it")
        if key in TABLES:
            for name, inner in value.items():
                if f"{key}.{name}" not in SETTINGS:
                    raise _unknown(name, path, key)
                yield f"{key}.{name}", inner
        elif key in SETTINGS:
            yield key, value
        elif isinstance(value, dict):
            close = nearest(key, TABLES)
            known = f"did you mean [{close}]?" if close else f"the tables are {', '.join(TABLES)}"
            raise ConfigError(f"{path} has an unknown table {key!r}", fix=known)
        else:
            raise _unknown(key, path)


def _unknown(name: str, path: Path, table: str = "") -> ConfigError:
    """The error for a name that its table does not have, with where it belongs or what was probably meant."""
    where = f"[{table}] in {path}" if table else str(path)
    owner = next((setting for setting in SETTINGS if setting.rpartition(".")[2] == name), None)
    names = [setting.rpartition(".")[2] for setting in SETTINGS if setting.rpartition(".")[0] == table]
    if owner is not None:
        home = owner.rpartition(".")[0]
        fix = f"write it below [{home}]" if home else "write it above the first table"
    elif (close := nearest(name, names)) is not None:
        fix = f"did you mean {close}?"
    else:
        fix = f"the settings are {', '.join(names)}"
    return ConfigError(f"{where} has an unknown setting {name!r}", fix=fix)


def _from_environment(environ: Mapping[str, str]) -> Given:
    settings = {setting.variable: name for name, setting in SETTINGS.items()}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or not value:
            continue
        if variable in settings:
            yield settings[variable], value, variable
        elif close := _resembled(variable, settings):
            raise ConfigError(f"{variable} is not a setting", fix=f"did you mean {close}?")


def _resembled(variable: str, known: Iterable[str]) -> str | None:
    names = [name.removeprefix(PREFIX) for name in known]
    close = difflib.get_close_matches(variable.removeprefix(PREFIX), names, n=1, cutoff=0.8)
    return PREFIX + close[0] if close else None


def _from_flags(flags: Mapping[str, Any]) -> Given:
    for name, value in flags.items():
        if value is not None:
            yield name, value, "--" + name.replace("_", "-")


def _is_url(value: str) -> bool:
    return "://" in value or value.startswith("file:")
