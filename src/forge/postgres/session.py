"""Settings of the sessions that Forge opens, and of the texts that it reads.

`ALTER ROLE … SET`, `ALTER DATABASE … SET`, postgresql.conf and PGOPTIONS define the initial settings of a session, and
are meant for applications. This module is the one definition of what Forge sets instead, for every connection:

- `TEXTS`: how the log prints values. A session that reads values of tables as text has these.
- `STATEMENTS`: what the text of a statement means, also of a condition given by a user.
- `OWN`: a session in which only Forge runs statements. It keeps the role's search_path for finding tables; built-in
  names come first.
- `ANALYSIS`: as `OWN`, but with the role's search_path unchanged, so that names mean the same as in `USERS`.
- `USERS`: a session that also runs statements of users: `ctx.db`, `ctx.tx`, the cache. It keeps the settings that
  decide
  which tables are meant and how long a statement may take: search_path, role, statement_timeout, lock_timeout,
  transaction_timeout, the transaction defaults, the order of day and month, the planner's settings.

Invariants: the same values give the same texts, the same texts mean the same values, what is written is logged, and
what was acknowledged is on disk.
"""

from collections.abc import Mapping
from typing import Final

from psycopg import sql

from forge.errors import ServerError

TEXTS: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmloption": "content",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
}
"""The settings that the trigger log's functions print with."""

INPUT: Final = frozenset({"lc_monetary", "xmloption", "array_nulls"})
"""Settings in `TEXTS` that decide what the log's texts mean when they are read back; the others do not."""

STATEMENTS: Final[Mapping[str, str]] = {
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
}
"""The settings that decide what the text of a statement means: PostgreSQL's defaults."""

CATALOG: Final[Mapping[str, str]] = {"search_path": "pg_catalog, pg_temp"}
"""Names mean built-in objects, and the printed names of all others are qualified."""
ALL_ROWS: Final[Mapping[str, str]] = {"row_security": "off"}
"""Row-level security raises an error; it never hides a row."""

USERS: Final[Mapping[str, str]] = {
    **TEXTS,
    "DateStyle": "ISO",  # the order of day and month stays, because literals of users depend on it
    "IntervalStyle": "postgres",  # the only style that psycopg reads
    **STATEMENTS,
    "row_security": "on",
    "session_replication_role": "origin",
    "synchronous_commit": "on",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

ANALYSIS: Final[Mapping[str, str]] = {
    **USERS,
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "client_min_messages": "notice",
    "restrict_nonsystem_relation_kind": "",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
}

_BUILT_IN_FIRST: Final = "built_in_first"
OWN: Final[Mapping[str, str]] = {**ANALYSIS, _BUILT_IN_FIRST: "on"}

# Sets only what differs, because some settings are for superusers only; synchronous_commit is never weakened. Every
# name is qualified: until this has run, the role's search_path is in force.
_PIN: Final = """
    SELECT pg_catalog.set_config(s.name, w.value, false)
    FROM (VALUES {values}) w (name, value)
    JOIN pg_catalog.pg_settings s ON pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) pg_catalog.lower(w.name)
    WHERE s.setting OPERATOR(pg_catalog.<>) w.value
      AND (s.name OPERATOR(pg_catalog.<>) 'synchronous_commit' OR s.setting OPERATOR(pg_catalog.=) 'off')"""

# A search_path that does not name pg_catalog starts with it; in one that does, other schemas may come before it.
_SEARCH_BUILT_IN: Final = """
    UNION ALL
    SELECT pg_catalog.set_config('search_path', p.rest, false) FROM (
        SELECT pg_catalog.count(*) AS named,
               pg_catalog.string_agg(e.name, ',' ORDER BY e.n) FILTER (WHERE {other}) AS rest,
               pg_catalog.count(*) FILTER (WHERE {other}) AS others
        FROM pg_catalog.unnest(pg_catalog.string_to_array(pg_catalog.current_setting('search_path'), ','))
             WITH ORDINALITY e (name, n)) p
    WHERE p.others OPERATOR(pg_catalog.<>) p.named AND p.others OPERATOR(pg_catalog.>) 0""".format(
    other="pg_catalog.btrim(e.name, ' \"') OPERATOR(pg_catalog.<>) 'pg_catalog'"
)


def pinning(settings: Mapping[str, str]) -> bytes:
    """Return the statement that applies these settings to a session, as far as the server knows them."""
    values = ", ".join(f"({_literal(name)}, {_literal(value)})" for name, value in settings.items())
    first = _BUILT_IN_FIRST in settings and "search_path" not in settings
    return (_PIN.format(values=values) + (_SEARCH_BUILT_IN if first else "")).encode()


def set_local(*settings: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return statements that apply these settings to the transaction; they take no snapshot.

    >>> set_local({"TimeZone": "UTC"}, {"search_path": "pg_catalog, pg_temp"})
    (b"SET LOCAL TimeZone = 'UTC'", b"SET LOCAL search_path = 'pg_catalog', 'pg_temp'")
    """
    return tuple(
        f"SET LOCAL {name} = {_literals(name, value)}".encode() for group in settings for name, value in group.items()
    )


def cannot_pin(user: str) -> ServerError:
    """Return the error for a session that may not set what it needs."""
    role = sql.Identifier(user).as_string()
    return ServerError(
        f"session_replication_role is not origin for the role {user}, which may not change it: nothing that it writes"
        " would be logged",
        fix=f"as a superuser: ALTER ROLE {role} SET session_replication_role = origin, or where the database sets it:"
        f" GRANT SET ON PARAMETER session_replication_role TO {role}",
    )


def _literals(name: str, value: str) -> str:
    if name == "search_path":
        return ", ".join(_literal(schema.strip()) for schema in value.split(","))
    return _literal(value)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
