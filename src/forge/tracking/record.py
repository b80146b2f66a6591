"""The log table of a database without Forge's triggers: changes in, the same changes out.

`forge_tracked_changes` has one row per change. `forge.track` writes it in the transaction of the change, so that both
commit or neither does. Its columns have the names of `forge_events`; `old_data`, `new_data` and `context` are JSON text
in which values that JSON cannot represent are tagged as in the wire form (`forge.wire`); a value that was not read has
the tag for UNAVAILABLE. The `old_data` of an update has the columns that it changed.

    for change in forge.tracking.recorded(engine, after=118):
        ...

Ids are assigned when a statement runs, not when its transaction commits. Within one transaction, and for one row, they
increase in the order of the changes; a reader that continues from its last id may skip a transaction that is still
open. If that matters, follow the database's own feed (`forge.capture`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import repeat
from typing import Any, Final

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from forge.change import Change, ChangeSource, Context, Op, text
from forge.errors import DecodeError, TrackingError
from forge.observing.hub import untold
from forge.wire import decode_row, encode_value

NAME: Final = "forge_tracked_changes"
MARK: Final = "forge_own"
OWN: Final = {MARK: True, "schema_translate_map": None}
"""Execution options of Forge's own statements, which are not tracked, and whose tables are in a fixed schema."""
EVERY_TABLE: Final = "*"
"""The table name of a change that may have touched any table."""

_long = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_instant = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_LONGEST_ID: Final = 255

LOG: Final = Table(
    NAME,
    MetaData(),
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("transaction_id", String(32), nullable=False),
    Column("timestamp", _instant, nullable=False),
    Column("operation", String(10), nullable=False),
    Column("schema_name", String(128)),
    Column("table_name", String(128), nullable=False),
    Column("row_id", String(_LONGEST_ID), nullable=False),
    Column("old_data", _long),
    Column("new_data", _long),
    Column("user_id", String(255)),
    Column("function_name", String(255)),
    Column("trace_id", String(64)),
    Column("context", Text),
    Column("key_columns", Text),
    Index(f"{NAME}_row", "table_name", "row_id"),
    mysql_charset="utf8mb4",
)
_VARYING: Final = ("operation", "row_id", "old_data", "new_data")
_CONSTANT: Final = (
    "transaction_id",
    "timestamp",
    "schema_name",
    "table_name",
    "key_columns",
    "user_id",
    "function_name",
    "trace_id",
    "context",
)
_NAMES: Final = (*_VARYING, *_CONSTANT)
_ARRAYS: Final = tuple(f"forge_{name}" for name in _NAMES)
_INSERT: Final = insert(LOG).inline()  # without RETURNING: a writer needs no permission to read the log


class Entries:
    """Log rows by column, without the values that a statement's rows share; rows are in the form of `encoded`."""

    __slots__ = ("after", "before", "operation", "row_id")

    def __init__(self) -> None:
        self.operation: list[str] = []
        self.row_id: list[str] = []
        self.before: list[str | None] = []
        self.after: list[str | None] = []

    def add(self, operation: str, row_id: str, before: str | None = None, after: str | None = None) -> None:
        """Add one row."""
        self.operation.append(operation)
        self.row_id.append(row_id)
        self.before.append(before)
        self.after.append(after)


class Shared(msgspec.Struct, frozen=True):
    """Values that all entries of a statement share."""

    transaction: str
    at: datetime
    schema: str | None
    table: str
    key: str | None
    """The key's column names, as JSON; None for a change of unknown rows."""
    user_id: str | None
    function_name: str | None
    trace_id: str | None
    more: str | None


def write(connection: Connection, entries: Entries, shared: Shared) -> None:
    """Add entries to the log in the connection's transaction, with one statement."""
    columns: tuple[list[Any], ...] = (entries.operation, entries.row_id, entries.before, entries.after)
    common = msgspec.structs.astuple(shared)
    dialect = connection.dialect
    if dialect.paramstyle in _BY_PLACE:
        _write_by_place(connection, columns, common)
    elif dialect.name == "postgresql" and len(entries.row_id) > 1:
        values: dict[str, Any] = dict(zip(_ARRAYS, (*columns, *common), strict=True))
        connection.execute(_from_arrays(), values, execution_options=OWN)
    else:
        rows = [dict(zip(_NAMES, (*varying, *common), strict=True)) for varying in zip(*columns, strict=True)]
        connection.execute(_INSERT, rows, execution_options=OWN)


def _write_by_place(connection: Connection, columns: tuple[list[Any], ...], common: tuple[Any, ...]) -> None:
    """Write with the driver directly: for 1,000 rows, SQLAlchemy's parameters would take as long as the database."""
    dialect: Any = connection.dialect
    bind = LOG.c.timestamp.type.dialect_impl(dialect).bind_processor(dialect)
    if bind is not None:
        common = (common[0], bind(common[1]), *common[2:])
    sql = _by_place(dialect.paramstyle)
    cursor = connection.connection.cursor()
    try:
        rows: Any = zip(*columns, *map(repeat, common), strict=False)
        cursor.executemany(sql, rows)
    except dialect.loaded_dbapi.Error as error:
        raise DBAPIError.instance(sql, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
    finally:
        cursor.close()


_BY_PLACE: Final = {"qmark": "?", "format": "%s"}


@cache
def _by_place(style: str) -> str:
    places = ", ".join([_BY_PLACE[style]] * len(_NAMES))
    return f"INSERT INTO {NAME} ({', '.join(_quoted(name, style) for name in _NAMES)}) VALUES ({places})"


def _quoted(name: str, style: str) -> str:
    return f"`{name}`" if style == "format" else f'"{name}"'


_arrays: Any = None


def _from_arrays() -> Any:
    """INSERT … SELECT … FROM unnest(…): PostgreSQL accepts any number of rows as four arrays."""
    global _arrays
    if _arrays is None:
        given = [bindparam(f"forge_{name}", type_=ARRAY(LOG.c[name].type)) for name in _VARYING]
        rows = func.unnest(*given).table_valued(*(f"v_{name}" for name in _VARYING), name="forge_rows").render_derived()
        constant = [bindparam(f"forge_{name}", type_=LOG.c[name].type) for name in _CONSTANT]
        found = select(*(rows.c[f"v_{name}"] for name in _VARYING), *constant)
        _arrays = insert(LOG).from_select([*_VARYING, *_CONSTANT], found)
    return _arrays


def row_id(key: Sequence[Any]) -> str:
    """Return a key's values as one text, in the form of `Change.row_id`, cut to the size limit of an index."""
    if len(key) == 1:
        value = key[0]
        return str(value) if type(value) is int else text(value)[:_LONGEST_ID]
    return json.dumps([text(value) for value in key], ensure_ascii=False)[:_LONGEST_ID]


_AS_THEY_ARE: Final = frozenset({str, int, bool, float, type(None)})


def encoded(row: Mapping[str, Any]) -> str:
    """Encode a row as JSON text: two texts are equal if and only if the rows are equal.

    >>> encoded({"id": 7, "total": __import__("decimal").Decimal("12.30")})
    '{"id":7,"total":{"$numeric":"12.30"}}'
    """
    kinds = set(map(type, row.values()))
    if kinds <= _AS_THEY_ARE:
        raw = _encode(row)
        # msgspec writes a float that JSON cannot represent as null
        if float not in kinds or b"null" not in raw:
            return raw.decode()
    return _encode({name: encode_value(value) for name, value in row.items()}).decode()


_encode: Final = msgspec.json.Encoder().encode


def create(engine: Engine) -> None:
    """Create the log table if it is missing, on a separate connection: DDL ends a transaction in some databases."""
    side = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    try:
        with side.begin() as connection:
            LOG.create(connection, checkfirst=True)
    except DBAPIError as error:
        with side.connect() as connection:
            if exists(connection):
                return  # another process created it at the same moment
        raise TrackingError(
            f"the log table {NAME} cannot be created: {str(error.orig).splitlines()[0]}",
            fix="call forge.tracking.create_log(engine) once, as a role that may create tables",
        ) from error
    finally:
        side.dispose()


def create_within(connection: Connection) -> None:
    """Create the log table in the connection's transaction; a rollback also removes the table."""
    connection.execute(CreateTable(LOG, if_not_exists=True), execution_options=OWN)
    for index in LOG.indexes:
        connection.execute(CreateIndex(index, if_not_exists=True), execution_options=OWN)


def exists(connection: Connection) -> bool:
    """Whether the log table exists."""
    with untold():
        return inspect(connection).has_table(NAME)


def recorded(connection: Connection, *, after: int = 0, limit: int | None = None) -> Iterator[Change]:
    """Yield the changes of the log table with an id above `after`, by id."""
    query = select(LOG).where(LOG.c.id > after).order_by(LOG.c.id).limit(limit)
    name = connection.engine.url.render_as_string(hide_password=True)
    name = name.partition("://")[2].rpartition("@")[2] or name
    for row in connection.execute(query, execution_options=OWN):
        yield _change(row._mapping, name)


def _change(row: Mapping[Any, Any], source: str) -> Change:
    at = row["timestamp"]
    before, after = _row(row["old_data"]), _row(row["new_data"])
    image = after or before
    if before is not None and after is not None:
        before = {**after, **before}
    names = row["key_columns"]
    key = None if image is None or names is None else {name: image[name] for name in json.loads(names)}
    more = _row(row["context"]) or {}
    return Change(
        id=f"{NAME}:{row['id']}",
        op=Op[row["operation"]],
        schema=row["schema_name"] or "",
        table=row["table_name"],
        source=ChangeSource("track", source, str(row["id"]), row["transaction_id"]),
        at=at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC),
        key=key,
        before=before,
        after=after,
        context=Context(row["user_id"], row["function_name"], row["trace_id"], more),
    )


_decoder: Final = msgspec.json.Decoder(dict[str, Any])


def _row(raw: str | None) -> dict[str, Any] | None:
    if raw is None:
        return None
    try:
        return decode_row(_decoder.decode(raw))
    except msgspec.DecodeError as error:
        raise DecodeError(f"a row of {NAME} cannot be decoded: {error}", fix="the table was altered by hand") from None
