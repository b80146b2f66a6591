"""Plan of one execution of an INSERT, UPDATE or DELETE: what is known of it, and its rows before and after.

Every read here may fail without harm: on PostgreSQL, where an error ends the transaction, each runs in a savepoint. If
a failure ends the whole transaction, as a deadlock does in MariaDB, it is raised to the writer: the earlier work is
lost, and continuing would commit only the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from sqlalchemy import Column, ColumnElement, Connection, Delete, Insert, Table
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from forge.errors import one_line
from forge.tracking.events import LOGGER
from forge.tracking.record import OWN
from forge.tracking.sqlalchemy.images import KEYS, Image, Key, Lock, TableImages
from forge.tracking.sqlalchemy.statement import Parameters, StatementAnalysis, given_rows, unique_sets
from forge.tracking.sqlalchemy.subscribers import ChangeSubscriber

Images: TypeAlias = dict[Key, Image]
Collisions: TypeAlias = list[tuple[tuple[Column[Any], ...], list[Key]]]

_FAILURES: Final = (SQLAlchemyError, LookupError, ValueError, TypeError, ArithmeticError)


class ExecutionPlan:
    """One execution."""

    def __init__(
        self,
        connection: Connection,
        analysis: StatementAnalysis,
        parameters: Parameters,
        *,
        records: bool,
        filters: tuple[ChangeSubscriber, ...],
        options: Mapping[str, Any],
    ) -> None:
        self.connection, self.analysis, self.parameters, self.records = connection, analysis, parameters, records
        self.shape: Final[TableImages] = analysis.shape
        self.table: Final[Table] = analysis.shape.table
        self.filters: Final = filters
        self.schema: Final = placed(self.table.schema, options)
        """The table's schema in this execution."""
        self._options = {**OWN, _TRANSLATED: options.get(_TRANSLATED)}
        self._clauses: tuple[ColumnElement[bool], ...] = tuple(one.clause for one in filters if one.clause is not None)
        self.before: Images | None = None
        """The rows before; None if they were not read."""
        self.keys: list[Key] | None = None
        """The keys that a WHERE lists."""
        self.moved: dict[Key, Key] = {}
        """The keys that an UPDATE changes."""
        self.collisions: Collisions = []
        """Unique values in an INSERT with a conflict clause."""
        self.expected = 0
        """Minimum number of rows with those values afterwards, if rows can collide on nothing else."""
        self.found = 0
        """Number of rows the WHERE would touch, counting a row each time it is listed."""

    def prepare(self) -> None:
        """Read the rows that the statement is about to touch."""
        if isinstance(self.analysis.statement, Insert):
            if self.analysis.may_collide:
                self.before = self._tried("before", self._read_collisions)
            return
        self.keys = self.analysis.keys(self.parameters)
        if self.keys and not _hashable(self.keys[0]):
            self.keys = None
        elif self.keys is not None and not self.analysis.computed:
            if self.analysis.moves:
                pairs = zip(self.keys, self.parameters, strict=True)
                self.moved = {key: self.analysis.moved(key, given) for key, given in pairs}
            named = list(dict.fromkeys(self.keys))
            self.before = self._tried("before", lambda: self._read(self.shape.key, named, lock=True))
            self.found = 0 if self.before is None else sum(key in self.before for key in self.keys)
        else:
            self.before = self._tried("before", self._read_where)
            self.found = len(self.before or ())

    def now(self, keys: Sequence[Key]) -> Images | None:
        """Return the present rows with these keys; None if they cannot be read."""
        return self._tried("after", lambda: self._read(self.shape.key, list(dict.fromkeys(keys))))

    def now_colliding(self) -> Images | None:
        """Return the present rows with the unique values of an INSERT, and those that had them before it."""

        def read() -> Images:
            found = self._read_sets(self.collisions)
            gone = [key for key in self.before or () if key not in found]
            return found | self._read(self.shape.key, gone) if gone else found

        return self._tried("after", read)

    def _tried(self, when: str, read: Any) -> Images | None:
        try:
            with guarded(self.connection):
                found: Images = read()
                return found
        except _FAILURES as error:
            if ends_transaction(self.connection, error):
                raise
            line = one_line(error)
            LOGGER.warning("the rows %s a write of %s were not read: %s", when, self.table.fullname, line)
            return None

    def _read(self, columns: Sequence[Column[Any]], keys: list[Key], *, lock: bool = False) -> Images:
        query = self.shape.by_columns(columns, self._clauses, lock=self._strength() if lock else None)
        found: Images = {}
        for chunk in self.shape.chunks(columns, keys):
            rows = self.connection.execute(query, {KEYS: chunk}, execution_options=self._options).all()
            for image in self.shape.images(rows):
                found[image.key] = image
        return found

    def _read_where(self) -> Images:
        query, names = self.analysis.select(self._clauses, lock=self._strength())
        width = len(self.analysis.computed)
        found: Images = {}
        for given in self.parameters:
            bound = {mine: given[name] for name, mine in names.items()}
            rows = self.connection.execute(query, bound, execution_options=self._options).all()
            images = self.shape.images([row[: len(row) - width] for row in rows] if width else rows)
            for row, image in zip(rows, images, strict=True):
                found.setdefault(image.key, image)
                if self.analysis.moves:
                    self.moved[image.key] = self.analysis.moved(image.key, given, row[len(row) - width :])
        return found

    def _strength(self) -> Lock | None:
        if self.connection.dialect.name not in ("postgresql", "mysql", "mariadb"):
            return None
        return "delete" if isinstance(self.analysis.statement, Delete) else "update"

    def _read_collisions(self) -> Images:
        assert isinstance(self.analysis.statement, Insert)
        self.collisions = self._collisions(self.analysis.statement)
        return self._read_sets(self.collisions)

    def _read_sets(self, sets: Collisions) -> Images:
        found: Images = {}
        for columns, keys in sets:
            found |= self._read(columns, keys)
        return found

    def _collisions(self, statement: Insert) -> Collisions:
        if statement.select is not None:
            return []
        rows = given_rows(statement, self.parameters)
        sets: Collisions = []
        named: dict[int, Any] = {}
        for columns in unique_sets(self.table):
            keys = [tuple([row.get(column.key) for column in columns]) for row in rows]
            if good := dict.fromkeys(known(keys)):
                sets.append((columns, list(good)))
                for place, key in enumerate(keys):
                    if None not in key:
                        named[place] = (*named.get(place, ()), key)
        # rows without such a value are new, and cannot be found by one
        self.expected = len(set(named.values())) + len(rows) - len(named)
        return sets


_ENDING: Final = {
    "mysql": frozenset({1205, 1206, 1213}),  # lock wait timeout, too many locks, deadlock
    "mariadb": frozenset({1020, 1205, 1206, 1213}),  # and: the row has changed since it was last read
    "sqlite": frozenset({5, 7, 9, 10, 13}),  # busy, out of memory, interrupted, I/O error, full
}


def ends_transaction(connection: Connection, error: BaseException) -> bool:
    """Whether the database may have rolled back the whole transaction with an error."""
    if not isinstance(error, DBAPIError):
        return False
    orig: Any = error.orig
    code = getattr(orig, "sqlite_errorcode", None) or next(iter(getattr(orig, "args", ())), None)
    if isinstance(code, int) and connection.dialect.name == "sqlite":
        code &= 0xFF
    return error.connection_invalidated or code in _ENDING.get(connection.dialect.name, ())


@contextmanager
def guarded(connection: Connection) -> Iterator[None]:
    """On PostgreSQL, keep the transaction usable after an error inside the block."""
    if connection.dialect.name != "postgresql" or connection._is_autocommit_isolation():
        yield
        return
    _run(connection, "SAVEPOINT forge_read")
    try:
        yield
    except BaseException:
        _run(connection, "ROLLBACK TO SAVEPOINT forge_read")
        raise
    finally:
        _run(connection, "RELEASE SAVEPOINT forge_read")


_TRANSLATED: Final = "schema_translate_map"


def placed(schema: str | None, options: Mapping[str, Any]) -> str | None:
    """Return the schema that a Table's schema is translated to under these execution options."""
    names: Mapping[str | None, str | None] = options.get(_TRANSLATED) or {}
    return names.get(schema, schema)


def _run(connection: Connection, sql: str) -> None:
    connection.exec_driver_sql(sql, execution_options=OWN)


def known(keys: Iterable[Key]) -> list[Key]:
    """Return the keys without unknown values."""
    return [key for key in keys if None not in key and _hashable(key)]


def _hashable(key: Key) -> bool:
    try:
        hash(key)
    except TypeError:  # for example an array
        return False
    return True
