"""Tracking: create Forge's tables in a database file and the triggers on its tables, and update them with the schema.

    enable("sqlite:///shop.db", ["orders"])

Everything is done in one transaction. Each definition of a table has a number, its version, which its triggers put into
every row of the queue; so a row is always read with the columns that it was written with. When SQLite's own count of
schema changes (PRAGMA schema_version) changes, `refresh` checks every tracked table: one with a different definition,
or with missing triggers, gets new ones, and a `schema` change tells that its rows must be read again. Readers of the
queue run `refresh` within milliseconds of the commit, or the application runs it in the transaction that alters the
table. Until then:

- a column that was added is not in the images, and one that was renamed has its old name there;
- a table that was dropped and created again (the way SQLite's own documentation changes tables) is not tracked;
- a table that was renamed stays tracked, under its old name.

SQLite refuses to drop a column while its table is tracked, because triggers name it: disable, drop, enable.
"""

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Final, NamedTuple

import msgspec

from forge.capture.sqlite.file import SqliteFile
from forge.capture.sqlite.tables import OWN, SqliteTable, foreign_triggers, names, table
from forge.capture.sqlite.triggers import HEAD, NOW, triggers
from forge.errors import NotInstalled, SchemaTooNew, TrackingError

FORMAT: Final = 1
_GONE: Final = 2


class QueueState(NamedTuple):
    """The one row of forge_state."""

    identity: str
    format: int
    schema_version: int
    removed: int
    removed_at: float


class TrackedDefinition(NamedTuple):
    """A tracked table, by the number of its definition."""

    version: int
    table: SqliteTable


def enable(
    url: str,
    tables: Sequence[str] = (),
    *,
    every: bool = False,
    exclude: Sequence[str] | None = None,
    mask: Sequence[str] | None = None,
) -> list[str]:
    """Track tables, or with `every` all that can be tracked; return those whose tracking began or changed.

    `exclude` and `mask` are columns, `column` or `table.column`; None keeps the setting. Nothing is changed unless all
    can be.
    """
    file = SqliteFile(url)
    with _writing(file) as connection:
        wanted = [table(connection, name) for name in (names(connection) if every else tables)]
        if not installed(connection):
            _install(connection, max((found.width for found in wanted), default=0))
        else:
            refresh_in(connection, state(connection))
        known = {found.table.name: found for found in tracked(connection, gone=True)}
        done = []
        for plain in dict.fromkeys(wanted):
            old = known.get(plain.name)
            hidden, masked = (
                ([] if old is None else old.table.columns_of([kind]))
                if asked is None
                else _columns(asked, plain, wanted)
                for asked, kind in ((exclude, "hidden"), (mask, "masked"))
            )
            new = table(connection, plain.name, exclude=hidden, mask=masked)
            if old is None or old.table != new:
                track(connection, new, old)
                done.append(new.name)
        _seen(connection)
    return done


def disable(url: str, tables: Sequence[str]) -> list[str]:
    """Stop tracking tables; return those that were tracked. What is in the queue stays there."""
    file = SqliteFile(url)
    with _writing(file) as connection:
        require(connection, file)
        known = {found.table.name.lower(): found for found in tracked(connection, gone=True)}
        done = []
        for name in tables:
            found = known.pop(name.lower().removeprefix("main."), None)
            if found is None:
                table(connection, name)
                continue
            untrack(connection, found)
            done.append(found.table.name)
        _seen(connection)
    return done


@contextmanager
def _writing(file: SqliteFile) -> Iterator[sqlite3.Connection]:
    connection = file.connect()
    try:
        with file.errors():
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
    finally:
        connection.close()


def _columns(asked: Sequence[str], target: SqliteTable, wanted: Sequence[SqliteTable]) -> list[str]:
    """Return the named columns of this table; a name that no table has is an error."""
    found = []
    for word in asked:
        name, _, column = word.rpartition(".")
        meant = [
            other.name
            for other in wanted
            if (column if name in ("", other.name) else word) in other.columns_of(["plain"])
        ]
        if not meant:
            raise TrackingError(f"no table here has a column {word}", fix="check the name: column or table.column")
        if target.name in meant:
            found.append(column)
    return found


def installed(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'forge_state'").fetchone() is not None


def require(connection: sqlite3.Connection, file: SqliteFile) -> QueueState:
    """Return Forge's state of the file; raise NotInstalled if there is none."""
    if not installed(connection):
        raise NotInstalled(f"no table of {file.name} is tracked", fix=f"forge enable TABLE --database-url {file.url}")
    found = state(connection)
    if found.format > FORMAT:
        raise SchemaTooNew(f"{file.name} was set up by a newer Forge", fix="upgrade Forge")
    return found


def state(connection: sqlite3.Connection) -> QueueState:
    row = connection.execute("SELECT identity, format, schema_version, removed, removed_at FROM forge_state").fetchone()
    return QueueState(*row)


def tracked(connection: sqlite3.Connection, *, gone: bool = False) -> list[TrackedDefinition]:
    """Return the tracked tables, by name; with `gone` also missing ones, which are tracked when they come back."""
    rows = connection.execute(
        "SELECT id, definition FROM forge_version WHERE current BETWEEN 1 AND ? ORDER BY name", (_GONE if gone else 1,)
    )
    return [TrackedDefinition(number, msgspec.json.decode(definition, type=SqliteTable)) for number, definition in rows]


def versions(connection: sqlite3.Connection, newer_than: int) -> list[TrackedDefinition]:
    """Return every definition above a number."""
    rows = connection.execute("SELECT id, definition FROM forge_version WHERE id > ? ORDER BY id", (newer_than,))
    return [TrackedDefinition(number, msgspec.json.decode(definition, type=SqliteTable)) for number, definition in rows]


def _install(connection: sqlite3.Connection, width: int) -> None:
    """Create Forge's tables, wide enough from the start: a column added later costs SQLite a new schema."""
    script = (files("forge.capture.sqlite") / "schema.sql").read_text("utf-8")
    statement = ""
    for line in script.splitlines():
        if line.startswith("--"):
            continue
        statement += line + "\n"
        if line.rstrip().endswith(";"):
            for name, slots in (("forge_queue", 2 * width), ("forge_replaced", width)):
                if statement.startswith(f"CREATE TABLE {name} "):
                    values = "".join(f", v{slot}" for slot in range(slots))
                    statement = statement.rstrip().removesuffix(");") + f"{values})"
            connection.execute(statement)
            statement = ""
    connection.execute("INSERT INTO forge_state VALUES (?, ?, 0, 0, 0.0)", (uuid.uuid4().hex, FORMAT))


def track(connection: sqlite3.Connection, new: SqliteTable, old: TrackedDefinition | None) -> int:
    """Put triggers on a table, and a `schema` change into the queue; return the number of its definition."""
    if old is not None:
        _drop_triggers(connection, old.version)
        connection.execute("UPDATE forge_version SET current = 0 WHERE id = ?", (old.version,))
    _widen(connection, new.width)
    version = connection.execute(
        "INSERT INTO forge_version (name, current, definition) VALUES (?, 1, ?)",
        (new.name, msgspec.json.encode(new).decode()),
    ).lastrowid
    assert version is not None
    for text in triggers(new, version).values():
        connection.execute(text)
    if old is not None and old.table.name != new.name:
        _say(connection, old.version)
    _say(connection, version)
    return version


def untrack(connection: sqlite3.Connection, found: TrackedDefinition) -> None:
    """Drop the triggers, and put a `schema` change into the queue."""
    _drop_triggers(connection, found.version)
    connection.execute("UPDATE forge_version SET current = 0 WHERE id = ?", (found.version,))
    _say(connection, found.version)


def _say(connection: sqlite3.Connection, version: int) -> None:
    connection.execute(f"INSERT INTO forge_queue ({', '.join(HEAD)}) VALUES (?, 'S', {NOW})", (version,))


def _drop_triggers(connection: sqlite3.Connection, version: int) -> None:
    for name, _, _ in _own_triggers(connection, version):
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DELETE FROM forge_replaced WHERE version = ?", (version,))


def _own_triggers(connection: sqlite3.Connection, version: int) -> list[tuple[str, str, str]]:
    """Return name, table and text of the triggers with a version number."""
    return connection.execute(
        "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
        (len(f"{OWN}{version}_"), f"{OWN}{version}_"),
    ).fetchall()


def _widen(connection: sqlite3.Connection, width: int) -> None:
    """Widen the queue to two images of this many values, and a note to one."""
    has = {
        name: connection.execute("SELECT count(*) FROM pragma_table_info(?)", (name,)).fetchone()[0] - other
        for name, other in (("forge_queue", 1 + len(HEAD)), ("forge_replaced", 3))
    }
    if has["forge_replaced"] >= width and has["forge_queue"] >= 2 * width:
        return
    for name, wanted in (("forge_queue", 2 * width), ("forge_replaced", width)):
        for slot in range(has[name], wanted):
            connection.execute(f"ALTER TABLE {name} ADD COLUMN v{slot}")


def schema_version(connection: sqlite3.Connection) -> int:
    """Return SQLite's own count of schema changes."""
    (found,) = connection.execute("PRAGMA schema_version").fetchone()
    return int(found)


def _seen(connection: sqlite3.Connection) -> None:
    """Record that everything is up to date with the current schema."""
    connection.execute("UPDATE forge_state SET schema_version = ?", (schema_version(connection),))


def refresh(connection: sqlite3.Connection) -> list[str]:
    """Update the triggers to the schema, in the open transaction or one of its own; return the tables that got new
    ones.

    An application that calls it at the end of the transaction in which it alters tables leaves nothing untracked.
    """
    if connection.in_transaction:
        return refresh_in(connection, state(connection)) if installed(connection) else []
    connection.execute("BEGIN IMMEDIATE")
    try:
        changed = refresh_in(connection, state(connection))
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    return changed


def refresh_in(connection: sqlite3.Connection, seen: QueueState) -> list[str]:
    """Do the same within a transaction."""
    if seen.schema_version == schema_version(connection):
        return []
    changed = []
    for found in tracked(connection, gone=True):
        own = _own_triggers(connection, found.version)
        name = own[0][1] if own else found.table.name
        try:
            now = table(
                connection,
                name,
                exclude=_still(connection, found, name, "hidden"),
                mask=_still(connection, found, name, "masked"),
            )
        except TrackingError:
            if _is_told_gone(connection, found):
                continue
            _say(connection, found.version)
            changed.append(name)
            if not own:
                connection.execute("UPDATE forge_version SET current = ? WHERE id = ?", (_GONE, found.version))
            continue
        if now != found.table or not _in_order(connection, found, own):
            track(connection, now, found)
            changed.append(now.name)
    _seen(connection)
    return changed


def _in_order(connection: sqlite3.Connection, found: TrackedDefinition, own: Sequence[tuple[str, str, str]]) -> bool:
    """Tell whether a table has all its triggers, unchanged, and newer than the application's own."""
    if {name: sql for name, _, sql in own} != triggers(found.table, found.version):
        return False
    (oldest,) = connection.execute(
        "SELECT min(rowid) FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
        (len(f"{OWN}{found.version}_"), f"{OWN}{found.version}_"),
    ).fetchone()
    return all(place < oldest for place, _ in foreign_triggers(connection, found.table.name))


def _is_told_gone(connection: sqlite3.Connection, found: TrackedDefinition) -> bool:
    """Tell whether it was already reported that a tracked table is missing; it is tracked again when it comes back."""
    (current,) = connection.execute("SELECT current FROM forge_version WHERE id = ?", (found.version,)).fetchone()
    return bool(current == _GONE)


def _still(connection: sqlite3.Connection, found: TrackedDefinition, name: str, kind: str) -> list[str]:
    """Return the excluded or masked columns that the table still has."""
    has = {column for (column,) in connection.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))}
    return [column for column in found.table.columns_of([kind]) if column in has]
