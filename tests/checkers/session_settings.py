"""Settings that a session may have and that must change nothing: what the randomized checkers run with.

    settings = chosen(random.Random(7))                     # {'TimeZone': 'Asia/Kathmandu', 'DateStyle': 'German'}
    psycopg.connect(with_settings(url, settings))
    set_defaults(connection, settings)                      # for every new session of the database

`ANYONE` is what an application may have set for itself: whoever writes or reads with it gives and gets the same.
`HOSTILE` is what a role or a database may have set that Forge's own sessions must not have.
"""

import random
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import conninfo, sql

ANYONE: Final[Mapping[str, tuple[str, ...]]] = {
    "TimeZone": ("America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Europe/Lisbon"),
    "DateStyle": ("SQL, DMY", "German, DMY", "Postgres, MDY", "ISO, YMD"),
    "IntervalStyle": ("sql_standard", "postgres_verbose", "iso_8601"),
    "bytea_output": ("escape",),
    "extra_float_digits": ("0", "-15", "3"),
    "lc_monetary": ("C.UTF-8",),
    "standard_conforming_strings": ("off",),
    "escape_string_warning": ("off",),
    "backslash_quote": ("on", "off"),
    "array_nulls": ("off",),
    "xmloption": ("document",),
    "xmlbinary": ("hex",),
    "transform_null_equals": ("on",),
    "quote_all_identifiers": ("on",),
    "client_min_messages": ("error", "debug1"),
    "plan_cache_mode": ("force_generic_plan", "force_custom_plan"),
    "work_mem": ("64kB",),
    "search_path": ('elsewhere, "$user", public', "public, pg_temp", "public, pg_catalog"),
}
"""Each with the values that it may get; the server's own is always one more."""

HOSTILE: Final[Mapping[str, str]] = {
    **{name: values[0] for name, values in ANYONE.items()},
    "search_path": "elsewhere",
    "session_replication_role": "replica",
    "synchronous_commit": "off",
    "row_security": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "500ms",
    "lock_timeout": "500ms",
    "idle_in_transaction_session_timeout": "1s",
    "idle_session_timeout": "1s",
    "transaction_timeout": "1s",
    "restrict_nonsystem_relation_kind": "view",
}
"""One bad value of each."""


def chosen(chance: random.Random, share: float = 0.5) -> dict[str, str]:
    """About this share of what anyone may have set, with values; the same for the same random numbers.

    >>> chosen(random.Random(7)) == chosen(random.Random(7)), chosen(random.Random(7), 0)
    (True, {})
    """
    return {name: chance.choice(values) for name, values in ANYONE.items() if chance.random() < share}


def of_database(seed: object) -> dict[str, str]:
    """The settings that a checker's database has in the run of a seed."""
    return chosen(random.Random(f"sessions of {seed}"), 0.8)


def shown(settings: Mapping[str, str]) -> str:
    """For people, on one line.

    >>> shown({"TimeZone": "Asia/Kathmandu", "array_nulls": "off"}), shown({})
    ('TimeZone = Asia/Kathmandu, array_nulls = off', "the server's")
    """
    return ", ".join(f"{name} = {value}" for name, value in settings.items()) or "the server's"


def with_settings(url: str, settings: Mapping[str, str]) -> str:
    """The URL for sessions that begin with these settings.

    >>> with_settings("dbname=shop", {"DateStyle": "SQL, DMY"})
    "dbname=shop options='-c DateStyle=SQL,\\\\\\\\ DMY'"
    """
    if not settings:
        return url
    escaped = {name: value.replace("\\", "\\\\").replace(" ", "\\ ") for name, value in settings.items()}
    return conninfo.make_conninfo(url, options=" ".join(f"-c {name}={value}" for name, value in escaped.items()))


def set_defaults(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Give every new session of this database these settings, those that the server knows."""
    known = {name.lower() for (name,) in connection.execute("SELECT name FROM pg_catalog.pg_settings").fetchall()}
    database = sql.Identifier(connection.info.dbname)
    for name, value in settings.items():
        if name.lower() in known:
            connection.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(database, sql.SQL(name), _value(name, value))
            )


def _value(name: str, value: str) -> sql.Composable:
    if name == "search_path":
        return sql.SQL(value)
    return sql.Literal(value)
