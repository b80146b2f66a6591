"""Generate the triggers that write a table's changes into the queue. In: a `SqliteTable`. Out: SQL.

A row of the queue holds values as SQLite holds them: `v0 …` are columns without a type, so whole numbers, floats, texts
and blobs are copied bit by bit. An insert has the new row there, a delete the old one, an update the new one followed
by the old one; for an excluded or masked column it only has whether an update changed it.

REPLACE deletes rows without firing their delete triggers (unless the writer set PRAGMA recursive_triggers). So the
trigger before an insert, or before an update of unique columns, notes the conflicting rows in `forge_replaced`: the
conflict clause may ignore, update, fail or replace, which no trigger can see. The trigger after it checks which of them
are gone. Any other deletion fires a trigger, which removes the row from the notes; so a noted row that is gone was
replaced, and is logged as deleted before the row in its place is logged as inserted.

SQLite fires the newest of several triggers first. Forge's are kept the newest, so that what other triggers write is
logged after what fired them. But then a trigger of the application that runs before an insert may write rows that the
insert replaces; on a table with such a trigger every written row is noted, which costs more.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from forge.capture.sqlite.tables import OWN, SECRET, SqliteTable, Unique, quoted

NOTES: Final = 64
"""Maximum number of noted rows; one statement never has more than the table has unique keys."""
TRIM: Final = f"DELETE FROM forge_replaced WHERE n <= (SELECT max(n) FROM forge_replaced) - {NOTES};"
HEAD: Final = ("version", "op", "at", "context")
NOW: Final = "julianday('now'), (SELECT text FROM forge_context)"


def triggers(table: SqliteTable, version: int) -> dict[str, str]:
    """Return their names and texts."""
    return {name: f"CREATE TRIGGER {name} {body}" for name, body in _bodies(table, version)}


def image(table: SqliteTable, row: str) -> list[str]:
    """Return the values of a row, NEW, OLD or the alias of the table, as they go into the queue."""
    values = ["NULL" if column.kind in SECRET else f"{row}.{quoted(column.name)}" for column in table.columns]
    if table.numbered:
        assert table.rowid is not None
        values.append(f"{row}.{quoted(table.rowid)}")
    return values


def alias(table: SqliteTable) -> str:
    """Return an alias of a table that does not hide NEW and OLD."""
    return quoted(table.name if table.name.lower() not in ("new", "old") else "forge_row")


def _bodies(table: SqliteTable, version: int) -> Iterator[tuple[str, str]]:
    on = f"ON {quoted(table.name)}"
    name = f"{OWN}{version}"
    confirm, strike = _confirm(table, version), _strike(table, version)
    conflicts = [_conflict(unique, table) for unique in table.uniques]
    yield f"{name}_replace", f"BEFORE INSERT {on} {_note(table, version, conflicts, '')}"
    remember = _remember(table, version) if table.meddled else ""
    yield f"{name}_insert", f"AFTER INSERT {on} BEGIN {confirm} {_log(version, 'I', image(table, 'NEW'))}{remember} END"
    yield f"{name}_delete", f"AFTER DELETE {on} BEGIN {strike} {_log(version, 'D', image(table, 'OLD'))} END"
    log = _log(version, "U", [*image(table, "NEW"), *_before(table)])
    others = f" AND NOT ({_same_place(table, alias(table), 'OLD')})"
    watched = _watched(table)
    if watched is None:
        yield f"{name}_move", f"BEFORE UPDATE {on} {_note(table, version, conflicts, others)}"
        yield f"{name}_update", f"AFTER UPDATE {on} BEGIN {strike} {confirm} {log}{remember} END"
        return
    names = ", ".join(map(quoted, watched))
    decisive = [word for word in watched if word in _decisive(table)]
    same = " AND ".join(f"NEW.{quoted(word)} COLLATE BINARY IS OLD.{quoted(word)}" for word in decisive)
    yield f"{name}_move", f"BEFORE UPDATE OF {names} {on} {_note(table, version, conflicts, others)}"
    yield f"{name}_update", f"AFTER UPDATE {on} WHEN {same} BEGIN {log} END"
    yield f"{name}_key", f"AFTER UPDATE OF {names} {on} WHEN NOT ({same}) BEGIN {strike} {confirm} {log} END"


def _decisive(table: SqliteTable) -> set[str]:
    return {column for unique in table.uniques for column in unique.columns or ()}


def _watched(table: SqliteTable) -> list[str] | None:
    """Return the names under which an update may set unique columns; None if any column may decide."""
    if table.meddled or any(unique.columns is None for unique in table.uniques):
        return None
    found = sorted(_decisive(table))
    if table.rowid is not None:
        taken = {column.name.lower() for column in table.columns}
        found += [word for word in ("rowid", "_rowid_", "oid") if word not in taken and word not in found]
    return found


def _log(version: int, op: str, values: Sequence[str]) -> str:
    slots = [f"v{slot}" for slot in range(len(values))]
    return (
        f"INSERT INTO forge_queue ({', '.join((*HEAD, *slots))}) "
        f"VALUES ({version}, '{op}', {NOW}, {', '.join(values)});"
    )


def _before(table: SqliteTable) -> list[str]:
    """Return the old image of an update; a secret column only tells whether it changed."""
    values = image(table, "OLD")
    for slot, column in enumerate(table.columns):
        if column.kind in SECRET:
            name = quoted(column.name)
            values[slot] = (
                f"(OLD.{name} COLLATE BINARY IS NOT NEW.{name} OR typeof(OLD.{name}) IS NOT typeof(NEW.{name}))"
            )
    return values


def _conflict(unique: Unique, table: SqliteTable) -> str:
    """Return a condition on a row of the table: it has the unique values that NEW will have."""
    row = alias(table)
    if all(term.startswith('"') for term in unique.terms):
        parts = [
            f"{row}.{term} = NEW.{term} COLLATE {quoted(collation)}"
            for term, collation in zip(unique.terms, unique.collations, strict=True)
        ]
    else:
        new = ", ".join(f"NEW.{quoted(column.name)} AS {quoted(column.name)}" for column in table.columns)
        parts = [
            f"{term} = (SELECT {term} FROM (SELECT {new}) AS {row}) COLLATE {quoted(collation)}"
            for term, collation in zip(unique.terms, unique.collations, strict=True)
        ]
    if unique.where is not None:
        parts.append(f"({unique.where})")
    return " AND ".join(parts)


def _note(table: SqliteTable, version: int, conflicts: Sequence[str], others: str) -> str:
    """Return the condition and body of a trigger that notes the rows that conflict with NEW."""
    row = alias(table)
    rows = f"FROM {quoted(table.name)} AS {row} WHERE "
    exist = " OR ".join(f"EXISTS (SELECT 1 {rows}{conflict}{others})" for conflict in conflicts)
    slots = "".join(f", v{slot}" for slot in range(table.width))
    number = "NULL" if table.rowid is None else f"{row}.{quoted(table.rowid)}"
    match = _match(table, conflicts, others)
    return (
        f"WHEN {exist} BEGIN {TRIM} "
        f"DELETE FROM forge_replaced WHERE version = {version} AND EXISTS (SELECT 1 {rows}{_noted(table, row)}"
        f" AND {match}); "
        f"INSERT INTO forge_replaced (version, r{slots}) SELECT {version}, {number}, {', '.join(image(table, row))} "
        f"{rows}{match}; END"
    )


def _match(table: SqliteTable, conflicts: Sequence[str], others: str) -> str:
    """Return a condition on a row of the table: it conflicts with NEW. Each conflict must use its index."""
    if all(unique.columns is not None for unique in table.uniques):
        return f"({' OR '.join(conflicts)}){others}"
    row = alias(table)
    found = " UNION ".join(
        f"SELECT {_parts(table, row)} FROM {quoted(table.name)} AS {row} WHERE {conflict}{others}"
        for conflict in conflicts
    )
    return f"({_parts(table, row)}) IN ({found})" if len(table.place) > 1 else f"{_parts(table, row)} IN ({found})"


def _remember(table: SqliteTable, version: int) -> str:
    """Note the written row itself."""
    number = "NULL" if table.rowid is None else f"NEW.{quoted(table.rowid)}"
    slots = "".join(f", v{slot}" for slot in range(table.width))
    return (
        f" {TRIM} INSERT INTO forge_replaced (version, r{slots})"
        f" VALUES ({version}, {number}, {', '.join(image(table, 'NEW'))});"
    )


def _parts(table: SqliteTable, row: str) -> str:
    return ", ".join(f"{row}.{quoted(name)}" for name, _, _ in table.place)


def _same_place(table: SqliteTable, row: str, other: str) -> str:
    return " AND ".join(f"{row}.{quoted(name)} IS {other}.{quoted(name)}" for name, _, _ in table.place)


def _noted(table: SqliteTable, row: str) -> str:
    """Return a condition: this note is of that row."""
    if table.rowid is not None:
        return f"forge_replaced.r = {row}.{quoted(table.rowid)}"
    return " AND ".join(
        f"{row}.{quoted(name)} = forge_replaced.v{slot} COLLATE {quoted(collation)}"
        for name, collation, slot in table.place
    )


def _strike(table: SqliteTable, version: int) -> str:
    return f"DELETE FROM forge_replaced WHERE version = {version} AND {_noted(table, 'OLD')};"


def _confirm(table: SqliteTable, version: int) -> str:
    """Log the noted rows that are gone as deleted, and remove the notes."""
    row = alias(table)
    slots = "".join(f", v{slot}" for slot in range(table.width))
    gone = (
        f"FROM forge_replaced WHERE version = {version} AND ({_noted(table, 'NEW')} OR NOT EXISTS"
        f" (SELECT 1 FROM {quoted(table.name)} AS {row} WHERE {_noted(table, row)}))"
    )
    return (
        f"INSERT INTO forge_queue ({', '.join(HEAD)}{slots}) SELECT {version}, 'D', {NOW}{slots} {gone} ORDER BY n; "
        f"DELETE {gone};"
    )
