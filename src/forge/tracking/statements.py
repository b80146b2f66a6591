"""Find the tables that a SQL text writes, as far as a parser can tell.

>>> written("WITH gone AS (DELETE FROM orders RETURNING *) INSERT INTO archive SELECT * FROM gone", "postgresql").writes
(Write(verb='insert', table='archive', schema=None), Write(verb='delete', table='orders', schema=None))
>>> written("SELECT * FROM orders FOR UPDATE", "postgresql") is NOTHING
True
>>> written("CALL month_end()", "postgresql") is EVERYTHING
True

Invariants:
- No text raises, and no write is missed silently. A text that cannot be parsed, or that runs code outside the text (a
  procedure, a DO block, a prepared statement), counts as writing EVERYTHING.
- The functions that a SELECT calls are not examined.
"""

import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError


class Write(msgspec.Struct, frozen=True):
    """A table that a text writes: `verb` is insert, update, delete, merge, truncate or schema."""

    verb: str
    table: str
    schema: str | None = None


class WrittenTables(msgspec.Struct, frozen=True):
    """The writes of a text. `countable`: it is one insert, update or delete, so a row count of 0 means no change."""

    writes: tuple[Write, ...] = ()
    everything: bool = False
    countable: bool = False


NOTHING: Final = WrittenTables()
EVERYTHING: Final = WrittenTables(everything=True)

_DIALECTS: Final = {"postgresql": "postgres", "mariadb": "mysql", "mssql": "tsql", "cockroachdb": "postgres"}

_WRITING: Final = re.compile(
    r"\b(?:insert|update|delete|merge|replace|truncate|copy|load|import|create|alter|drop|rename|into"
    r"|call|do|exec|execute)\b",
    re.IGNORECASE,
)
_VERB: Final = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([a-z]+)", re.IGNORECASE | re.DOTALL)
# Verbs that write no rows of tables. EXPLAIN is examined further; WITH and SELECT are parsed.
_HARMLESS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        show set reset begin start commit end rollback abort savepoint release pragma analyze vacuum notify listen
        unlisten lock unlock discard fetch declare close move checkpoint comment grant revoke use describe desc attach
        detach reindex cluster deallocate prepare kill flush optimize help refresh security xa
        """,
    )
)
_READING: Final = _HARMLESS | {"select", "with", "values", "table", "explain"}
_EXPLAIN: Final = re.compile(r"(\s*)explain\s+(?:\([^)]*\)|(?:analyze|verbose|extended|query\s+plan)\b|\s+)*", re.I)
_PARAMETER: Final = re.compile(r"%(?:\(\w+\))?[sbt]\b|\?\d+")
_REPLACE: Final = re.compile(r"(^|;)(\s*)replace(\s+into)?\b", re.IGNORECASE)
_UPDATE_OR: Final = re.compile(r"\bupdate\s+or\s+(?:rollback|abort|replace|fail|ignore)\b", re.IGNORECASE)
_VERBS: Final[dict[type[exp.Expr], str]] = {
    exp.Insert: "insert",
    exp.Update: "update",
    exp.Delete: "delete",
    exp.Merge: "merge",
    exp.TruncateTable: "truncate",
    exp.Copy: "insert",
    exp.LoadData: "insert",
    exp.Into: "schema",
    exp.Create: "schema",
    exp.Drop: "schema",
    exp.Alter: "schema",
}
_COUNTABLE: Final = (exp.Insert, exp.Update, exp.Delete)


@lru_cache(maxsize=2048)
def written(sql: str, dialect: str) -> WrittenTables:
    """Return the writes of a text in a dialect, named as in SQLAlchemy."""
    if not _WRITING.search(sql) and verb(sql) in _READING:
        return NOTHING
    if verb(sql) == "explain":
        sql = _EXPLAIN.sub(r"\1", sql, count=1)
    if ";" not in sql.rstrip().rstrip(";") and verb(sql) in _HARMLESS:
        return NOTHING
    text = _UPDATE_OR.sub("UPDATE", _REPLACE.sub(r"\1\2INSERT\3", _PARAMETER.sub("NULL", sql)))
    try:
        with _quiet:
            trees = [tree for tree in sqlglot.parse(text, dialect=_DIALECTS.get(dialect, dialect)) if tree is not None]
    except (SqlglotError, ValueError, RecursionError):
        return EVERYTHING
    writes: list[Write] = []
    for tree in trees:
        if _opaque(tree) or (isinstance(tree, exp.TruncateTable) and tree.args.get("option") == "CASCADE"):
            return EVERYTHING
        for node in tree.find_all(*_VERBS):
            for table in _targets(node):
                if not table.name:
                    return EVERYTHING
                writes.append(Write(_VERBS[type(node)], _name(table.this, dialect), _schema(table, dialect)))
    if not writes:
        return NOTHING
    countable = len(trees) == 1 and len(writes) == 1 and isinstance(trees[0], _COUNTABLE)
    return WrittenTables(tuple(dict.fromkeys(writes)), countable=countable)


def _opaque(tree: exp.Expr) -> bool:
    """Whether the parser knows only the first word of the statement."""
    if isinstance(tree, exp.Command):
        return str(tree.this).lower() not in _HARMLESS
    if isinstance(tree, (exp.Query, exp.DDL, exp.DML, *_VERBS)):
        return False
    return verb(tree.sql()) not in _HARMLESS and not isinstance(
        tree, (exp.Set, exp.Show, exp.Pragma, exp.Transaction, exp.Commit, exp.Rollback, exp.Use, exp.Describe)
    )


def _targets(node: exp.Expr) -> Iterator[exp.Table]:
    """Yield the tables that a node writes, not those it reads."""
    if isinstance(node, (exp.Update, exp.Insert)) and isinstance(node.parent, exp.When):
        return  # a branch of a MERGE; the MERGE names the table
    if isinstance(node, exp.Copy) and not node.args.get("kind"):
        return  # COPY … TO
    if isinstance(node, exp.Create) and node.kind not in ("TABLE", "INDEX"):
        return
    if isinstance(node, exp.Drop) and node.kind != "TABLE":
        return
    named: list[exp.Expr] = [node.this] if node.this is not None else []
    if isinstance(node, exp.TruncateTable):
        named = list(node.expressions)
    elif isinstance(node, exp.Drop):
        named += node.args.get("tables") or []
    elif isinstance(node, exp.Delete) and node.args.get("tables"):
        # the names before FROM may be aliases: then any table of the statement may be written
        named = [*node.args["tables"], *named]
    for item in named:
        if not isinstance(item, (exp.Delete, exp.Insert)):
            yield from (item,) if isinstance(item, exp.Table) else item.find_all(exp.Table)
        if isinstance(item, exp.Table) and isinstance(node, (exp.Update, exp.Delete)):
            for join in item.args.get("joins") or []:
                yield from join.find_all(exp.Table)


def verb(sql: str) -> str:
    """Return the first word of a text, after comments and brackets, in lower case."""
    found = _VERB.match(sql)
    return found[1].lower() if found else ""


def _name(identifier: exp.Expr | None, dialect: str) -> str:
    if isinstance(identifier, exp.Identifier):
        return identifier.name.lower() if dialect == "postgresql" and not identifier.quoted else identifier.name
    return identifier.name if identifier is not None else ""


def _schema(table: exp.Table, dialect: str) -> str | None:
    schema = table.args.get("db")
    return _name(schema, dialect) if schema is not None else None


class _Quiet(logging.Filter):
    """Suppress the parser's warnings about statements of which it knows only the first word."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        logging.getLogger("sqlglot").addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return self._depth == 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1


_quiet: Final = _Quiet()
