"""The tables to write in an undo, in their current form: columns, keys, foreign keys, and the order of writes.

SQL expressions built here convert values between images of the log and columns; they invert the forms of
`forge.values`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from psycopg import sql
from psycopg.rows import tuple_row

from forge.errors import RevertRefused
from forge.history import definitions
from forge.history.definitions import UNSEEN, veils
from forge.history.tracked import versions_of
from forge.postgres.connection import Connection

ROW: Final = "forge_now"
"""The alias of a table's row in the statements built here; no column is used under that name alone."""


class RevertColumn(msgspec.Struct, frozen=True):
    """A column in its current form; `hidden` if the log has no values of it."""

    name: str
    type: str
    kind: str
    attnum: int
    generated: bool
    hidden: bool


class ForeignKey(msgspec.Struct, frozen=True):
    """`child` refers to `parent`, both relations. The actions are PostgreSQL's letters: c, n, d, r, a."""

    name: str
    child: int
    child_name: str
    parent: int
    columns: tuple[str, ...]
    referenced: tuple[str, ...]
    deferrable: bool
    on_delete: str
    on_update: str


class LoggedColumns(msgspec.Struct, frozen=True):
    """The column names of some of the log's rows, mapped to their names in a plan.

    That is the current name; a dropped column keeps its old one, with a suffix that no column has.
    """

    names: Mapping[str, str]
    unseen: tuple[str, ...]
    """Columns that it had and did not log."""
    retyped: tuple[str, ...]


class RevertTable(msgspec.Struct, frozen=True):
    """A tracked table."""

    tracked: int
    relation: int
    schema: str
    name: str
    columns: Mapping[str, RevertColumn]
    key: tuple[str, ...]
    row_id: str
    image: str
    inherited: bool
    versions: Mapping[int, LoggedColumns]
    veiled: frozenset[str]
    """Columns whose values are not shown in a plan, by their names there."""

    @property
    def title(self) -> str:
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def value(self, column: str, source: str) -> sql.Composed:
        """Return the SQL of a column's value from an image, a JSON object named `source`."""
        found = self.columns[column]
        json = sql.SQL("{}->{}").format(sql.SQL(source), sql.Literal(column))
        text = sql.SQL("{}->>{}").format(sql.SQL(source), sql.Literal(column))
        cast = sql.SQL("CAST({} AS {})").format(text, sql.SQL(found.type))
        if found.kind == "jsonb":
            return sql.SQL(
                "CAST(CASE WHEN json_typeof({0}) <> 'null' THEN coalesce({0}->'$json', {0})::text END AS {1})"
            ).format(json, sql.SQL(found.type))
        if found.kind.endswith("[]"):
            return sql.SQL(
                "CASE json_typeof({0}) WHEN 'array' THEN"
                " (json_populate_record(NULL::{1}, json_build_object({2}, {0}))).{3} ELSE {4} END"
            ).format(json, self.identifier, sql.Literal(column), sql.Identifier(column), cast)
        return cast

    def same_key(self, source: str, row: str = ROW) -> sql.Composed:
        """Return the SQL condition that a row has the key of an image."""
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(row, name), self.value(name, source)) for name in self.key
        )


def find(connection: Connection, names: Sequence[str]) -> list[int]:
    """Return the tracked tables of these names, including tables tracked in the past."""
    found = []
    for name in names:
        rows = connection.cursor(row_factory=tuple_row).execute(
            "SELECT DISTINCT v.tracked_table FROM forge.table_version v"
            " WHERE %(name)s IN (v.table_name, v.schema_name || '.' || v.table_name)",
            {"name": name},
        )
        ids = [number for (number,) in rows]
        if not ids:
            raise RevertRefused(
                f"the log knows no table {name}", fix="check the spelling; forge status lists the tables"
            )
        found += ids
    return found


def load(connection: Connection, tracked: Iterable[int]) -> dict[int, RevertTable]:
    """Return the tracked tables by number; tables that are not tracked are left out."""
    cursor = connection.cursor(row_factory=tuple_row)
    rows = cursor.execute(
        "SELECT t.id, r.table_oid::bigint, n.nspname, c.relname, forge.key_columns(r.table_oid),"
        " forge.row_id_expression(r.table_oid, %(row)s), forge.image_source(r.table_oid, t, %(row)s, %(row)s, false),"
        " forge.has_children(r.table_oid), t.excluded || t.masked"
        " FROM forge.tracked_relation r JOIN forge.tracked_table t ON t.id = r.id"
        " JOIN pg_class c ON c.oid = r.table_oid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE t.id = ANY (%(tracked)s) ORDER BY t.id",
        {"row": ROW, "tracked": list(tracked)},
    ).fetchall()
    found = {}
    for number, relation, schema, name, key, row_id, image, inherited, unlogged in rows:
        columns = _columns(cursor, number, relation, unlogged)
        known = versions_of(cursor, number)
        versions = {id: _version(version, relation, columns) for id, version in known.items()}
        veiled = _veiled(columns, versions, veils(known, unlogged))
        found[number] = RevertTable(
            number, relation, schema, name, columns, tuple(key), row_id, image, inherited, versions, veiled
        )
    return found


def _columns(cursor: Any, tracked: int, relation: int, unlogged: list[str]) -> dict[str, RevertColumn]:
    rows = cursor.execute(
        "SELECT c.name, c.type, c.kind, a.attnum, a.attgenerated <> '', c.name = ANY (%(unlogged)s)"
        " FROM forge.tracked_table t, forge.table_columns(%(relation)s, t.excluded, t.masked) c"
        " JOIN pg_attribute a ON a.attrelid = %(relation)s AND a.attname = c.name WHERE t.id = %(tracked)s"
        " ORDER BY c.position",
        {"relation": relation, "tracked": tracked, "unlogged": unlogged},
    )
    return {row[0]: RevertColumn(*row) for row in rows}


def _version(
    logged: definitions.DefinitionVersion, relation: int, columns: Mapping[str, RevertColumn]
) -> LoggedColumns:
    by_number = {column.attnum: column for column in columns.values()}
    names: dict[str, str] = {}
    unseen, retyped = [], []
    for field in logged.fields:
        # a restored table renumbers its columns
        now = by_number.get(field.attnum) if logged.relation == relation else columns.get(field.name)
        names[field.name] = now.name if now else f"{field.name} (dropped)"
        if now is not None and not now.generated:
            if field.kind in UNSEEN:
                unseen.append(now.name)
            if field.type != now.type:
                retyped.append(now.name)
    return LoggedColumns(names, tuple(unseen), tuple(retyped))


def _veiled(
    columns: Mapping[str, RevertColumn], versions: Mapping[int, LoggedColumns], veiled: Mapping[int, Iterable[str]]
) -> frozenset[str]:
    once = {versions[id].names[name] for id, names in veiled.items() for name in names}
    return frozenset(once.union(column.name for column in columns.values() if column.hidden))


def foreign_keys(connection: Connection, tables: Iterable[RevertTable]) -> list[ForeignKey]:
    """Return every foreign key of any table that refers to one of the tables."""
    rows = connection.cursor(row_factory=tuple_row).execute(
        "SELECT f.conname, f.conrelid::bigint, format('%%I.%%I', n.nspname, c.relname), f.confrelid::bigint,"
        " ARRAY(SELECT a.attname::text FROM unnest(f.conkey) WITH ORDINALITY k (attnum, n)"
        "       JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.attnum ORDER BY k.n),"
        " ARRAY(SELECT a.attname::text FROM unnest(f.confkey) WITH ORDINALITY k (attnum, n)"
        "       JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.attnum ORDER BY k.n),"
        " f.condeferrable, f.confdeltype::text, f.confupdtype::text"
        " FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE f.contype = 'f' AND f.conparentid = 0 AND f.confrelid = ANY (%s::oid[]) ORDER BY f.conname, f.conrelid",
        ([table.relation for table in tables],),
    )
    return [
        ForeignKey(name, child, title, parent, tuple(columns), tuple(referenced), *rest)
        for name, child, title, parent, columns, referenced, *rest in rows
    ]


def order(relations: Sequence[int], keys: Iterable[ForeignKey]) -> list[tuple[int, ...]]:
    """Order relations, parents before children; those that refer to each other in a circle come together.

    Deferrable foreign keys do not count: they are deferred.

    >>> def key(child, parent, deferrable=False):
    ...     return ForeignKey("f", child, "", parent, (), (), deferrable, "a", "a")
    >>> order([1, 2, 3, 4], [key(1, 2), key(2, 3), key(3, 2), key(4, 4)])
    [(2, 3), (1,), (4,)]
    >>> order([1, 2], [key(1, 2), key(2, 1, deferrable=True)])
    [(2,), (1,)]
    """
    parents: dict[int, set[int]] = {relation: set() for relation in relations}
    for key in keys:
        if not key.deferrable and key.child in parents and key.parent in parents and key.child != key.parent:
            parents[key.child].add(key.parent)
    above = {relation: _reachable(relation, parents) for relation in relations}
    circles = {
        relation: tuple(
            other for other in relations if other == relation or (other in above[relation] and relation in above[other])
        )
        for relation in relations
    }
    done: list[tuple[int, ...]] = []
    waiting = [relation for relation in relations if circles[relation][0] == relation]
    placed: set[int] = set()
    while waiting:
        ready = next(one for one in waiting if above[one] - set(circles[one]) <= placed)
        waiting.remove(ready)
        placed.update(circles[ready])
        done.append(circles[ready])
    return done


def _reachable(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    found: set[int] = set()
    waiting = list(edges[start])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += edges[one]
    return found
