"""Publications: the tables and operations that the server sends. Forge creates one if there is none, and records in its
comment which parts of the filter it applies; one created by others is used unchanged.

The server may filter only if that gives the same changes as Forge would:

- tables: names without wildcards, and `schema.*`. Anything else needs a publication for all tables.
- operations: an insert or a delete may come from an update that changed the key, so updates are sent with them.
- columns and rows only on request (`push=`), because a publication that names columns keeps its owner from dropping
  them; rows only if the condition uses key columns alone, because otherwise the server would turn an update into
  a delete or an insert.

Publishing a table without a replica identity would make its updates fail for everyone, so that is refused here, with
the fix.
"""

import hashlib
import logging
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
import psycopg
import sqlglot
from psycopg import sql as q

from forge.capture.capabilities import Part
from forge.capture.filters import Filter
from forge.capture.wal.slot import WalServer, sql
from forge.change import Op
from forge.errors import SourceError
from forge.postgres.connection import AsyncConnection

MOST_NAMED: Final = 5
"""Maximum number of tables without a replica identity that an error names."""
MARK: Final = "made by forge; filters: "
_OPERATIONS: Final = {
    Op.INSERT: {"insert", "update"},
    Op.UPDATE: {"update"},
    Op.DELETE: {"delete", "update"},
    Op.TRUNCATE: {"truncate"},
    Op.READ: set[str](),
}
_ALL: Final = ("insert", "update", "delete", "truncate")
_PARTS: Final[tuple[Part, ...]] = ("tables", "operations", "columns", "rows")
_PLAIN: Final = re.compile(r"[^*?]+")
_log = logging.getLogger("forge.capture.wal")


class Publication(msgspec.Struct, frozen=True):
    """An existing publication, and the parts of the filter that it applies."""

    name: str
    parts: tuple[Part, ...]
    ours: bool


def default_name(database: str, filter: Filter) -> str:
    """Return the name of the slot and the publication of a database, a different one for each filter.

    >>> default_name("shop", Filter()), default_name("Shop", Filter()), default_name("shop", Filter(tables=("a",)))
    ('forge_shop', 'forge_shop_7caee9', 'forge_shop_603ae2')
    """
    word = re.sub(r"[^a-z0-9_]", "_", database.lower())[:45]
    if word != database:
        word += f"_{hashlib.blake2b(database.encode(), digest_size=3).hexdigest()}"
    return f"forge_{word}_{_digest(filter)}" if filter.parts else f"forge_{word}"


def operations(filter: Filter) -> tuple[str, ...] | None:
    """Return what must be sent for the wanted operations; None if that is everything.

    >>> operations(Filter(operations=(Op.INSERT,))), operations(Filter(operations=(Op.SCHEMA,))), operations(Filter())
    (('insert', 'update'), None, None)
    """
    if not filter.operations or not all(op in _OPERATIONS for op in filter.operations):
        return None
    wanted = set[str]().union(*(_OPERATIONS[op] for op in filter.operations))
    return tuple(op for op in _ALL if op in wanted) or None


def condition_columns(where: str) -> set[str]:
    """Return the columns that a condition uses.

    >>> sorted(condition_columns("tenant = 7 AND region IN ('a', 'b')"))
    ['region', 'tenant']
    """
    parsed = sqlglot.parse_one(f"SELECT 1 WHERE {where}", dialect="postgres")
    return {column.name for column in parsed.find_all(sqlglot.exp.Column)}


def parts_of(comment: str) -> tuple[Part, ...]:
    """Return the parts of a filter that a publication applies, according to its comment."""
    if not comment.startswith(MARK):
        return ()
    words = comment.removeprefix(MARK).split()
    return tuple(part for part in _PARTS if part in words)


async def ensure(
    connection: AsyncConnection, name: str, filter: Filter, server: WalServer, push: Collection[Part]
) -> Publication:
    """Return the publication of that name; create it if there is none."""
    row = await (await connection.execute(sql("publication").encode(), {"name": name})).fetchone()
    if row is None:
        return await _create(connection, name, filter, server, push)
    for text in await warnings(connection, name):
        _log.warning("%s", text)
    comment = row[6] or ""
    if not comment.startswith(MARK):
        return Publication(name, (), False)
    parts = parts_of(comment)
    await _widen(connection, name, filter, row)
    if ("columns" in parts or "rows" in parts) and not comment.endswith(_digest(filter)):
        raise _other(name)
    if "tables" in parts:
        tables, _ = await _resolved(connection, filter)
        if tables is None:
            raise _other(name)
        missing = [oid for oid in tables or {} if oid not in row[7]]
        if missing and tables is not None:
            await _check_identities(connection, missing)
            names = [q.Identifier(*tables[oid]) for oid in missing]
            await connection.execute(
                q.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(q.Identifier(name), _join(names))
            )
    return Publication(name, parts, True)


async def _widen(connection: AsyncConnection, name: str, filter: Filter, row: Any) -> None:
    """Publish the wanted operations in addition to the published ones."""
    published = {op for op, sent in zip(_ALL, row[1:5], strict=True) if sent}
    wanted = published | set(operations(filter) or _ALL)
    if wanted != published:
        await connection.execute(
            q.SQL("ALTER PUBLICATION {} SET (publish = {})").format(
                q.Identifier(name), q.Literal(", ".join(op for op in _ALL if op in wanted))
            )
        )


def _digest(filter: Filter) -> str:
    what = (filter.tables, tuple(map(str, filter.operations)), filter.columns, filter.where)
    return hashlib.blake2b(repr(what).encode(), digest_size=3).hexdigest()


def _other(name: str) -> SourceError:
    return SourceError(
        f"the publication {name} was made for another filter",
        fix=f"use another slot=NAME, or drop it: forge slot drop {name} --publication",
    )


async def _create(
    connection: AsyncConnection, name: str, filter: Filter, server: WalServer, push: Collection[Part]
) -> Publication:
    tables, schemas = await _resolved(connection, filter)
    if schemas and server.version < 150000:
        tables, schemas = None, []
    wanted = operations(filter)
    if wanted is None or {"update", "delete"} & set(wanted):
        everything = tables is None or schemas
        await _check_identities(connection, None if everything else list(tables or ()))
    parts: list[Part] = []
    target: q.Composable = q.SQL("FOR ALL TABLES")
    if tables is not None:
        parts.append("tables")
        objects: list[q.Composable] = []
        if tables:
            details = await _details(connection, tables, filter, server, push, parts)
            objects.append(q.SQL("TABLE {}").format(_join(details)))
        if schemas:
            objects.append(q.SQL("TABLES IN SCHEMA {}").format(_join([q.Identifier(schema) for schema in schemas])))
        target = q.SQL("FOR {}").format(_join(objects))
    if wanted is not None:
        parts.append("operations")
    options = [q.SQL("publish = {}").format(q.Literal(", ".join(wanted or _ALL))), q.SQL("publish_via_partition_root")]
    if server.version >= 180000 and "columns" not in parts:
        options.append(q.SQL("publish_generated_columns = stored"))
    create = q.SQL("CREATE PUBLICATION {} {} WITH ({})").format(q.Identifier(name), target, _join(options))
    try:
        async with connection.transaction():
            await connection.execute(create)
            note = f"{MARK}{' '.join(parts)} {_digest(filter)}"
            await connection.execute(
                q.SQL("COMMENT ON PUBLICATION {} IS {}").format(q.Identifier(name), q.Literal(note))
            )
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"the role {server.role} may not make the publication {name}: {error.diag.message_primary}",
            fix=f"as a superuser: {create.as_string(connection)}",
        ) from error
    except psycopg.errors.DuplicateObject:
        return await ensure(connection, name, filter, server, push)
    return Publication(name, tuple(parts), True)


async def _resolved(connection: AsyncConnection, filter: Filter) -> tuple[dict[int, tuple[str, str]] | None, list[str]]:
    """Return the tables and the schemas that a filter names; None if it needs all tables."""
    if not filter.tables:
        return None, []
    rows = await (await connection.execute(sql("tables").encode())).fetchall()
    there = {schema for _, schema, _ in rows}
    tables: dict[int, tuple[str, str]] = {}
    schemas: list[str] = []
    for word in filter.tables:
        schema, dot, table = word.partition(".")
        if dot and table == "*" and _PLAIN.fullmatch(schema) and schema in there:
            schemas.append(schema)
            continue
        named = {oid: (space, name) for oid, space, name in rows if word in (name, f"{space}.{name}")}
        if not _PLAIN.fullmatch(word) or not named:
            return None, []
        tables |= named
    return {oid: found for oid, found in tables.items() if found[0] not in schemas}, schemas


async def _details(
    connection: AsyncConnection,
    tables: dict[int, tuple[str, str]],
    filter: Filter,
    server: WalServer,
    push: Collection[Part],
    parts: list[Part],
) -> list[q.Composable]:
    """Return each table with the columns and the condition that its publication can apply."""
    shapes = {}
    for oid in tables:
        row = await (await connection.execute(sql("relation").encode(), {"oid": oid})).fetchone()
        assert row is not None
        shapes[oid] = row
    able = server.version >= 150000
    plain = all(shape[0] and shape[3] == "d" for shape in shapes.values())
    columns = able and plain and "columns" in push and bool(filter.columns)
    rows = (
        able
        and all(shape[3] in "df" for shape in shapes.values())
        and "rows" in push
        and filter.where is not None
        and all(condition_columns(filter.where) <= set(shape[0]) for shape in shapes.values())
    )
    parts += [part for part, pushed in (("columns", columns), ("rows", rows)) if pushed]  # type: ignore[misc]
    found: list[q.Composable] = []
    for oid, name in tables.items():
        words: list[q.Composable] = [q.Identifier(*name)]
        if columns:
            kept = [column for column in shapes[oid][1] if column in {*filter.columns, *shapes[oid][0]}]
            words.append(q.SQL("({})").format(_join([q.Identifier(column) for column in kept])))
        if rows and filter.where is not None:
            words.append(q.SQL("WHERE ({})").format(q.SQL(filter.where)))
        found.append(q.SQL(" ").join(words))
    return found


async def warnings(connection: AsyncConnection, name: str) -> list[str]:
    """Return warnings for published tables whose updates fail: created or altered after their publication."""
    row = await (await connection.execute(sql("publication").encode(), {"name": name})).fetchone()
    if row is None or not (row[2] or row[3]):
        return []
    found = await _without_identity(connection, None if row[0] else row[7], row[8])
    told = [
        f"{table} is published without a replica identity, so UPDATE and DELETE of it fail;"
        f" ALTER TABLE {table} REPLICA IDENTITY FULL, or a primary key"
        for table in found[:MOST_NAMED]
    ]
    return told if len(found) <= MOST_NAMED else [*told, f"and {len(found) - MOST_NAMED} more tables"]


async def _without_identity(
    connection: AsyncConnection, tables: Sequence[int] | None, schemas: Sequence[str] = ()
) -> list[str]:
    asked = {"tables": None if tables is None else list(tables), "schemas": list(schemas)}
    return [name for (name,) in await (await connection.execute(sql("without_identity").encode(), asked)).fetchall()]


async def _check_identities(connection: AsyncConnection, tables: Sequence[int] | None) -> None:
    names = await _without_identity(connection, tables)
    if names:
        listed = ", ".join(names[:MOST_NAMED]) + (
            f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        )
        raise SourceError(
            f"without a replica identity, updates and deletes would fail once published: {listed}",
            fix="; ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names[:MOST_NAMED])
            + ", or a primary key",
        )


async def drop(connection: AsyncConnection, name: str) -> bool:
    """Drop a publication that Forge created; return False if there is none."""
    row = await (await connection.execute(sql("publication").encode(), {"name": name})).fetchone()
    if row is None or not (row[6] or "").startswith(MARK):
        return False
    await connection.execute(q.SQL("DROP PUBLICATION IF EXISTS {}").format(q.Identifier(name)))
    return True


def _join(parts: Sequence[q.Composable]) -> q.Composable:
    return q.SQL(", ").join(parts)
