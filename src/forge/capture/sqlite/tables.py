"""The definition of a table: its columns, its key, the order of its rows, and its unique constraints.

In: a connection. Out: a `SqliteTable`, which can be stored as JSON and compared with a later definition.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from forge.config import nearest
from forge.errors import TrackingError
from forge.values import Column

OWN: Final = "forge_"
"""Prefix of the names of Forge's own tables and triggers."""
MOST_COLUMNS: Final = 980
"""Two images of a row must fit into one row of the queue."""
SECRET: Final = ("hidden", "masked")
MASK: Final = "***"


class Unique(msgspec.Struct, frozen=True):
    """A unique constraint: the terms, as SQL over the table, and for a partial index its condition."""

    terms: tuple[str, ...]
    collations: tuple[str, ...]
    where: str | None = None
    columns: tuple[str, ...] | None = None
    """The columns that decide it; None if they are unknown without parsing SQL."""


class SqliteTable(msgspec.Struct, frozen=True):
    """A tracked table. `kind` of a column is `plain`, `hidden` (excluded) or `masked`."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    uniques: tuple[Unique, ...]
    rowid: str | None
    """The name under which its row number can be read; None for a table WITHOUT ROWID."""
    aliased: bool
    """The row number is a column, so SQLite never changes it on its own."""
    key_collations: tuple[str, ...] = ()
    meddled: bool = False
    """Triggers of the application run before its rows are written, and may write other rows meanwhile."""

    @property
    def width(self) -> int:
        """Return the number of values of an image in the queue."""
        return len(self.columns) + self.numbered

    @property
    def numbered(self) -> bool:
        """Tell whether images carry the row number after the columns."""
        return self.rowid is not None and not self.aliased

    @property
    def place(self) -> tuple[tuple[str, str, int], ...]:
        """Return what orders the rows and finds one: name, collation and slot in an image of each part."""
        names = [column.name for column in self.columns]
        if self.rowid is None:
            return tuple(
                (name, collation, names.index(name))
                for name, collation in zip(self.key, self.key_collations, strict=True)
            )
        return ((self.rowid, "BINARY", len(names) if self.numbered else names.index(self.rowid)),)

    def columns_of(self, kinds: Sequence[str]) -> list[str]:
        return [column.name for column in self.columns if column.kind in kinds]


def quoted(name: str) -> str:
    """
    >>> quoted('my "own" name')
    '"my ""own"" name"'
    """
    return '"' + name.replace('"', '""') + '"'


def names(connection: sqlite3.Connection) -> list[str]:
    """Return the tables that could be tracked."""
    rows = connection.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'").fetchall()
    return sorted(name for name, kind in rows if kind == "table" and not _reserved(name))


def table(
    connection: sqlite3.Connection, asked: str, *, exclude: Sequence[str] = (), mask: Sequence[str] = ()
) -> SqliteTable:
    """Return the table of this name; raise TrackingError if there is none, or it cannot be tracked."""
    bare = asked.removeprefix("main.")
    found = connection.execute(
        "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) IN (lower(?), lower(?))"
        " ORDER BY lower(name) = lower(?) DESC",
        (asked, bare, asked),
    ).fetchone()
    if found is None:
        close = nearest(bare, names(connection))
        raise TrackingError(
            f"there is no table {asked}", fix=f"did you mean {close}?" if close else "create it, then enable it"
        )
    name, kind, without_rowid = found
    if kind != "table" or _reserved(name):
        raise TrackingError(
            f"{name} is a {kind} table"
            if kind in ("virtual", "shadow")
            else f"{name} is no table of rows"
            if kind != "table"
            else f"{name} is a table of SQLite's or Forge's own",
            fix="track the tables that it is made of",
        )
    return _described(connection, name, bool(without_rowid), exclude, mask)


def _reserved(name: str) -> bool:
    return name.lower().startswith(("sqlite_", OWN))


def _described(
    connection: sqlite3.Connection, name: str, without_rowid: bool, exclude: Sequence[str], mask: Sequence[str]
) -> SqliteTable:
    info = connection.execute(
        "SELECT name, upper(type), pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid", (name,)
    ).fetchall()
    if len(info) > MOST_COLUMNS:
        raise TrackingError(
            f"{name} has {len(info)} columns; {MOST_COLUMNS} is the most", fix="split the table, or leave it untracked"
        )
    columns = [column for column, _, _ in info]
    key = tuple(column for column, _, pk in sorted(info, key=lambda row: row[2]) if pk)
    for column in (*exclude, *mask):
        if column not in columns:
            raise TrackingError(f"{name} has no column {column}", fix=f"its columns: {', '.join(columns)}")
        if column in key:
            raise TrackingError(
                f"{column} is part of the key of {name}", fix="a key can neither be excluded nor masked"
            )
    indexes = connection.execute(
        'SELECT name, origin, partial FROM pragma_index_list(?) WHERE "unique" ORDER BY name', (name,)
    ).fetchall()
    by_index = any(origin == "pk" for _, origin, _ in indexes)
    aliased = not without_rowid and len(key) == 1 and not by_index
    rowid = None if without_rowid else key[0] if aliased else _free_rowid(name, columns)
    uniques = [_unique(connection, name, index, bool(partial)) for index, _, partial in indexes]
    if rowid is not None:
        uniques.insert(0, Unique((quoted(rowid),), ("BINARY",), columns=(rowid,)))
    kinds = {**dict.fromkeys(mask, "masked"), **dict.fromkeys(exclude, "hidden")}
    collations: tuple[str, ...] = ()
    if without_rowid:
        (index,) = (index for index, origin, _ in indexes if origin == "pk")
        collations = tuple(collation for _, collation, _ in _terms(connection, index))
    generated = {
        column
        for (column,) in connection.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden IN (2, 3)", (name,))
    }
    return SqliteTable(
        name,
        tuple(Column(column, kind, kinds.get(column, "plain")) for column, kind, _ in info),
        key,
        tuple(_opaque(unique, generated) for unique in uniques),
        rowid,
        aliased,
        collations,
        any(runs_before(sql) for _, sql in foreign_triggers(connection, name)),
    )


def foreign_triggers(connection: sqlite3.Connection, name: str) -> list[tuple[int, str]]:
    """Return place in the schema and text of the triggers on a table that are not Forge's."""
    return connection.execute(
        "SELECT rowid, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? AND substr(name, 1, ?) <> ?",
        (name, len(OWN), OWN),
    ).fetchall()


def runs_before(sql: str) -> bool:
    """Tell whether a trigger may run before the row is written, as it does if it does not say when.

    >>> runs_before("CREATE TRIGGER x AFTER INSERT ON t …"), runs_before('CREATE TRIGGER "after x" INSERT ON t …')
    (False, True)
    """
    words = [word.upper() for word in _TOKEN.findall(sql) if not word.isspace() and not word.startswith(("--", "/*"))]
    rest = words[words.index("TRIGGER") + 1 :]
    if rest[:3] == ["IF", "NOT", "EXISTS"]:
        rest = rest[3:]
    after_name = 3 if rest[1:2] == ["."] else 1
    return rest[after_name : after_name + 1] != ["AFTER"]


def _opaque(unique: Unique, generated: set[str]) -> Unique:
    """Mark a unique constraint on generated columns as undecidable: they change with other columns."""
    if unique.columns is not None and generated.intersection(unique.columns):
        return msgspec.structs.replace(unique, columns=None)
    return unique


def _free_rowid(name: str, columns: Sequence[str]) -> str:
    taken = {column.lower() for column in columns}
    for word in ("rowid", "_rowid_", "oid"):
        if word not in taken:
            return word
    raise TrackingError(
        f"the row numbers of {name} are hidden by its columns rowid, _rowid_ and oid",
        fix="rename one of them, or give the table an INTEGER PRIMARY KEY",
    )


def _terms(connection: sqlite3.Connection, index: str) -> list[tuple[str | None, str, int]]:
    """Return name (None for an expression), collation and column number of each term of an index."""
    return connection.execute(
        "SELECT name, coll, cid FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", (index,)
    ).fetchall()


def _unique(connection: sqlite3.Connection, table: str, index: str, partial: bool) -> Unique:
    terms = _terms(connection, index)
    collations = tuple(collation for _, collation, _ in terms)
    plain = [name for name, _, _ in terms if name is not None]
    if len(plain) == len(terms) and not partial:
        return Unique(tuple(map(quoted, plain)), collations, columns=tuple(plain))
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?", (index,)).fetchone()
    try:
        expressions, where = index_parts(sql)
    except ValueError:
        expressions, where = [], None
    if len(expressions) != len(terms) or (where is None) == partial:
        raise TrackingError(f"the index {index} of {table} cannot be read: {sql}", fix="write it in a plainer way")
    return Unique(
        tuple(
            quoted(name) if name is not None else f"({expression})"
            for (name, _, _), expression in zip(terms, expressions, strict=True)
        ),
        collations,
        where,
    )


_TOKEN: Final = re.compile(
    r"--[^\n]*|/\*.*?(?:\*/|$)|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]|\w+|\s+|.", re.DOTALL
)


def index_parts(sql: str) -> tuple[list[str], str | None]:
    """Return the terms of an index, without order and collation, and its condition.

    >>> index_parts("CREATE UNIQUE INDEX i ON t (lower(a) COLLATE nocase DESC, b || ',') WHERE c > 0")
    (['lower(a)', "b || ','"], 'c > 0')
    """
    words = [word for word in _TOKEN.findall(sql) if not word.startswith(("--", "/*"))]
    depth, terms, term = 0, [], ""
    rest: Iterator[str] = iter(words)
    for word in rest:
        if word == "(":
            depth += 1
            if depth == 1:
                continue
        elif word == ")":
            depth -= 1
            if depth == 0:
                break
        if depth == 1 and word == ",":
            terms.append(term)
            term = ""
        elif depth:
            term += word
    else:
        raise ValueError("no list of columns")
    terms.append(term)
    condition = "".join(rest).strip().rstrip(";")
    where = None
    if condition:
        if not re.match(r"where\b", condition, re.IGNORECASE):
            raise ValueError("not a condition")
        where = condition[5:].strip()
    return [_bare(term) for term in terms], where


def _bare(term: str) -> str:
    term = re.sub(r"\s+(?:asc|desc)\s*$", "", term.strip(), flags=re.IGNORECASE)
    return re.sub(
        r"\s+collate\s+(?:\w+|\"[^\"]*\"|'[^']*'|\[[^\]]*\]|`[^`]*`)\s*$", "", term, flags=re.IGNORECASE
    ).strip()
