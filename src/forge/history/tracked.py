"""A table that is or was tracked: its definitions, and the keys of its rows.

A key is the value of a one-column key, a mapping of its columns to values, or a text written by a user: `4711`,
`region=eu,number=7`, `{"region": "eu", "number": 7}`, or the values in the columns' order, as `eu,7`, as `eu · 7` or as
the log writes them, `["eu", "7"]`. The server checks it against the types of the key and converts it to the one string
under which the log has the row.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg
from psycopg import Cursor as Rows

from forge.change import text
from forge.errors import HistoryUnavailable
from forge.history.definitions import DefinitionVersion, TableEvent, VersionColumn, veils
from forge.postgres import session
from forge.postgres.names import escaped, quoted
from forge.postgres.text import check_storable

PINS: Final = session.set_local(session.TEXTS, session.STATEMENTS, session.CATALOG, session.ALL_ROWS)
_TRACKED: Final = """
    SELECT t.id, format('%%I.%%I', t.schema_name, t.table_name), t.enabled_at, r.table_oid, t.excluded, t.masked,
           forge.sees_ddl(), split_part(forge.fingerprint(r.table_oid), '.', 1)
    FROM forge.tracked_table t LEFT JOIN forge.tracked_relation r ON r.id = t.id
    WHERE t.id = (SELECT forge.tracked_id(%(relation)s::oid))
       OR (SELECT forge.tracked_id(%(relation)s::oid)) IS NULL
          AND (%(name)s = t.table_name OR %(name)s = t.schema_name || '.' || t.table_name
               OR %(name)s = format('%%I.%%I', t.schema_name, t.table_name))
    ORDER BY t.disabled_at DESC NULLS FIRST, t.schema_name = 'public' DESC, t.id DESC LIMIT 1"""
_VERSIONS: Final = """
    SELECT v.id, v.relation, v.schema_name, v.table_name, v.columns, v.key_columns, v.fingerprint, v.empty
    FROM forge.table_version v WHERE v.tracked_table = %s ORDER BY v.id"""
_EVENTS: Final = """
    SELECT coalesce(l.rank, l.id), l.id, l.transaction_id::text, l.at, l.version, l.op::text, l.context::text,
           %(snapshot)s::text IS NULL OR pg_visible_in_snapshot(l.transaction_id, %(snapshot)s::text::pg_snapshot)
    FROM forge.forge_event_log l
    WHERE l.row_id IS NULL AND l.op IN ('T', 'S', 'X') AND l.version = ANY (%(versions)s) AND l.id >= %(first_id)s
    ORDER BY 1, 2"""


class TrackedTable(msgspec.Struct, frozen=True):
    """A tracked table as a reader finds it. `relation` is None if it is not tracked at present."""

    id: int
    asked: str
    name: str
    relation: int | None
    enabled_at: datetime
    sees_ddl: bool
    settled: bool
    """Whether the newest version is the current definition."""
    versions: Mapping[int, DefinitionVersion]
    veiled: Mapping[int, frozenset[str]]
    """For each version the columns that are not shown, even if the log has them."""

    @property
    def newest(self) -> DefinitionVersion:
        return self.versions[max(self.versions)]


def find(rows: Rows[Any], name: str) -> int | None:
    """Return the oid of the table with this name; None if there is none but there was one in the past."""
    known = (
        "SELECT EXISTS (SELECT FROM forge.table_version v"
        " WHERE %(name)s IN (v.table_name, v.schema_name || '.' || v.table_name))"
    )
    check_storable("the table's name", name)
    try:
        with rows.connection.transaction():
            found = rows.execute("SELECT forge.find_table(%s)::oid", (name,)).fetchone()
        return None if found is None else found[0]
    except psycopg.Error as error:
        if error.sqlstate == "FG101" and rows.execute(known, {"name": name}).fetchone() == (True,):
            return None
        raise


def load(rows: Rows[Any], name: str, relation: int | None) -> TrackedTable:
    """Return what is known of it; raise HistoryUnavailable if it was never tracked."""
    found = rows.execute(_TRACKED, {"relation": relation, "name": name}).fetchone()
    if found is None:
        raise HistoryUnavailable(f"{name} is not tracked", fix=f"forge enable {name}")
    number, shown, enabled_at, table, excluded, masked, sees_ddl, print_now = found
    versions = versions_of(rows, number)
    settled = table is None or versions[max(versions)].fingerprint.split(".")[0] == print_now
    veiled = veils(versions, {*excluded, *masked})
    return TrackedTable(number, name, shown, table, enabled_at, sees_ddl, settled, versions, veiled)


def versions_of(rows: Rows[Any], number: int) -> dict[int, DefinitionVersion]:
    """Return the definitions that a tracked table had, oldest first."""
    return {row[0]: _version(row) for row in rows.execute(_VERSIONS, (number,))}


def _version(row: Sequence[Any]) -> DefinitionVersion:
    fields = tuple(msgspec.convert(item, VersionColumn) for item in row[4])
    return DefinitionVersion(row[0], row[1], row[2], row[3], fields, tuple(row[5]), row[6], row[7])


def events(rows: Rows[Any], tracked: TrackedTable, first_id: int, snapshot: str | None) -> list[TableEvent]:
    """Return the log's events of the table as a whole, in order."""
    values = {"snapshot": snapshot, "versions": list(tracked.versions), "first_id": first_id}
    return [
        TableEvent(place, id, transaction, at, version, op, _note(context), seen)
        for place, id, transaction, at, version, op, context, seen in rows.execute(_EVENTS, values)
    ]


def _note(context: str | None) -> dict[str, Any]:
    note = json.loads(context) if context else {}
    return note if isinstance(note, dict) else {}


def key_of(words: str) -> object:
    """Parse a key written by a user.

    >>> key_of("4711"), key_of("region=eu,number=7"), key_of('{"number": 7}'), key_of("a,b"), key_of("x=")
    ('4711', {'region': 'eu', 'number': '7'}, {'number': 7}, 'a,b', {'x': ''})
    """
    if words.startswith("{"):
        try:
            found = json.loads(words)
        except (ValueError, RecursionError):
            raise HistoryUnavailable(
                f"the key {words[:60]!r} is not JSON", fix='write it as 4711, as a=1,b=2 or as {"a": 1, "b": 2}'
            ) from None
        return found
    parts = [part.partition("=") for part in words.split(",")]
    if all(name.strip() and sign for name, sign, _ in parts):
        return {name.strip(): value for name, _, value in parts}
    return words


def in_order(words: str) -> list[str]:
    """Return the values of a key of several columns, written one after the other.

    >>> in_order("eu · 7"), in_order("eu, 7"), in_order('["a,b", "7"]'), in_order("[1,2]"), in_order("7")
    (['eu', '7'], ['eu', '7'], ['a,b', '7'], ['[1', '2]'], ['7'])
    """
    if words.startswith("["):
        try:
            return msgspec.json.decode(words, type=list[str])
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            pass  # A value may begin like this.
    return [part.strip() for part in words.split(" · " if " · " in words else ",")]


def given_key(tracked: TrackedTable, version: DefinitionVersion, key: object) -> dict[str, Any]:
    """Return the key's columns, named as in the version, with values; HistoryUnavailable for another shape."""
    names = version.key
    if not names:
        raise HistoryUnavailable(f"{tracked.asked} has no primary key", fix="ask for the whole table")
    now = {field.name: field.attnum for field in tracked.newest.fields}
    then = {field.attnum: field.name for field in version.fields}
    given = dict(key) if isinstance(key, Mapping) else {names[0]: key}
    if set(given) == set(tracked.newest.key):
        given = {then.get(now[name], name): value for name, value in given.items()}
    if set(given) != set(names) and isinstance(key, str) and len(names) == 1:
        given = {names[0]: key}
    if isinstance(key, str) and len(names) > 1 and len(values := in_order(key)) == len(names):
        given = dict(zip(names, values, strict=True))
    if set(given) != set(names):
        example = ",".join(f"{name}=…" for name in names)
        raise HistoryUnavailable(
            f"the key of {tracked.asked} is {', '.join(names)}",
            fix=f"pass all of it: a mapping of those columns to values, or {example}",
        )
    check_storable(f"the key of {tracked.asked}", *map(text, given.values()))
    return {name: given[name] for name in names}


def row_id(rows: Rows[Any], tracked: TrackedTable, version: DefinitionVersion, key: Mapping[str, Any]) -> str:
    """Return the string under which the log has the row."""
    newest = tracked.newest
    if tracked.relation is None or version.relation != newest.relation or version.key_numbers != newest.key_numbers:
        words = [text(value) for value in key.values()]
        return words[0] if len(words) == 1 else json.dumps(words, ensure_ascii=False)
    typed, given = key_values(tracked, key)
    fields = ", ".join(f"{value} AS {named(name)}" for name, value in zip(newest.key, typed, strict=True))
    with refused(tracked):
        found = rows.execute("SELECT forge.row_id_expression(%s, 'forge_key')", (tracked.relation,)).fetchone()
        assert found is not None
        word = rows.execute(f"SELECT {escaped(found[0])} FROM (SELECT {fields}) forge_key".encode(), given).fetchone()
    if word is None or word[0] is None:
        raise HistoryUnavailable(f"the key of {tracked.asked} cannot be null", fix="pass a value of its type")
    return str(word[0])


def key_values(tracked: TrackedTable, key: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the key's values as SQL expressions of their current types, and the parameters in those."""
    types = {field.name: field.type for field in tracked.newest.fields}
    names = [f"key_{place}" for place in range(len(key))]
    typed = [
        f"CAST(%({name})s::text AS {escaped(types[column])})"
        for name, column in zip(names, tracked.newest.key, strict=True)
    ]
    values = [None if value is None else text(value) for value in key.values()]
    return typed, dict(zip(names, values, strict=True))


def named(*names: str) -> str:
    """Quote a name for a statement with parameters."""
    return escaped(quoted(*names))


@contextmanager
def refused(tracked: TrackedTable) -> Iterator[None]:
    """Convert a value's type error into HistoryUnavailable within this block."""
    try:
        yield
    except (psycopg.DataError, psycopg.errors.CannotCoerce) as error:
        line = error.diag.message_primary or "bad value"
        raise HistoryUnavailable(
            f"the key of {tracked.asked} cannot be that: {line}", fix="pass a value of its type"
        ) from None
