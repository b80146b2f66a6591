"""The log table of a database without Forge's triggers: changes in, the same changes out.

`forge_tracked_changes` has one row for each change, written by `forge.track` in the transaction that makes the change,
so that both commit or neither. Its columns bear the names of `forge_events`; `row_key`, `old_data`, `new_data` and
`context` are JSON text in which values that JSON does not keep are tagged as in the wire form (`forge.wire`).

    for change in forge.track.recorded(engine, after=118):
        ...

Ids are given when a statement runs, not when its transaction commits: within one transaction, and for one row, they
rise in the order of the changes; a reader that goes on from the last id it saw may pass a transaction that is still
open. Where that matters, follow the database's own feed (`forge.capture`).
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
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

from forge.change import Change, Context, Op, Source, text
from forge.errors import DecodeError, TrackingError
from forge.wire import decode_row, encode_value

NAME: Final = "forge_tracked_changes"
OWN: Final = {"forge_own": True}
"""The execution options of Forge's own statements, which nobody tracks."""
EVERY_TABLE: Final = "*"
"""The table of a change that may have touched any."""

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
    Column("row_key", Text),
    Column("old_data", _long),
    Column("new_data", _long),
    Column("user_id", String(255)),
    Column("function_name", String(255)),
    Column("trace_id", String(64)),
    Column("context", Text),
    Index(f"{NAME}_row", "table_name", "row_id"),
    mysql_charset="utf8mb4",
)
_VARYING: Final = ("operation", "schema_name", "table_name", "row_id", "row_key", "old_data", "new_data")
_CONSTANT: Final = ("transaction_id", "timestamp", "user_id", "function_name", "trace_id", "context")
_INSERT: Final = insert(LOG)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A row of the log, but for what all rows of a statement share."""

    op: Op
    schema: str | None
    table: str
    key: Mapping[str, Any] | None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


class Shared(msgspec.Struct, frozen=True):
    """What all entries of a statement share."""

    transaction: str
    at: datetime
    user_id: str | None
    function_name: str | None
    trace_id: str | None
    more: str | None


def write(connection: Connection, entries: Sequence[Entry], shared: Shared) -> None:
    """Add entries to the log in the connection's transaction, by one statement."""
    rows = [
        (
            entry.op.name,
            entry.schema,
            entry.table,
            row_id(entry.key),
            encoded(entry.key),
            encoded(entry.before),
            encoded(entry.after),
        )
        for entry in entries
    ]
    common = (
        shared.transaction,
        shared.at,
        shared.user_id,
        shared.function_name,
        shared.trace_id,
        shared.more,
    )
    dialect = connection.dialect.name
    if dialect == "postgresql" and len(rows) > 1:
        columns = zip(*rows, strict=True)
        values: dict[str, Any] = {f"forge_{name}": list(column) for name, column in zip(_VARYING, columns, strict=True)}
        values |= {f"forge_{name}": value for name, value in zip(_CONSTANT, common, strict=True)}
        connection.execute(_from_arrays(), values, execution_options=OWN)
        return
    names = (*_VARYING, *_CONSTANT)
    connection.execute(_INSERT, [dict(zip(names, (*row, *common), strict=True)) for row in rows], execution_options=OWN)


_arrays: Any = None


def _from_arrays() -> Any:
    """INSERT … SELECT … FROM unnest(…): PostgreSQL takes any number of rows as seven arrays."""
    global _arrays
    if _arrays is None:
        given = [bindparam(f"forge_{name}", type_=ARRAY(LOG.c[name].type)) for name in _VARYING]
        rows = func.unnest(*given).table_valued(*(f"v_{name}" for name in _VARYING), name="forge_rows").render_derived()
        constant = [bindparam(f"forge_{name}", type_=LOG.c[name].type) for name in _CONSTANT]
        found = select(*(rows.c[f"v_{name}"] for name in _VARYING), *constant)
        _arrays = insert(LOG).from_select([*_VARYING, *_CONSTANT], found)
    return _arrays


def row_id(key: Mapping[str, Any] | None) -> str:
    """The key as one word, as `Change.row_id` says it, cut to what an index takes."""
    if key is None:
        return "*"
    if len(key) == 1:
        (value,) = key.values()
        return str(value) if type(value) is int else text(value)[:_LONGEST_ID]
    return msgspec.json.encode([text(value) for value in key.values()]).decode()[:_LONGEST_ID]


_AS_THEY_ARE: Final = frozenset({str, int, bool, type(None)})


def encoded(row: Mapping[str, Any] | None) -> str | None:
    """A row as JSON text.

    >>> encoded({"id": 7, "total": __import__("decimal").Decimal("12.30")})
    '{"id":7,"total":{"$numeric":"12.30"}}'
    """
    if row is None:
        return None
    said = {name: value if type(value) in _AS_THEY_ARE else encode_value(value) for name, value in row.items()}
    return msgspec.json.encode(said).decode()


def create(engine: Engine) -> None:
    """Make the log table if it is not there, on a connection of its own: DDL ends a transaction in some databases."""
    side = Engine(engine.pool.recreate(), engine.dialect, engine.url)
    try:
        with side.begin() as connection:
            LOG.create(connection, checkfirst=True)
    except DBAPIError as error:
        with side.connect() as connection:
            if exists(connection):
                return  # another process made it at the same moment
        raise TrackingError(
            f"the log table {NAME} cannot be created: {str(error.orig).splitlines()[0]}",
            fix="call forge.track.create_log(engine) once, as a role that may create tables",
        ) from error
    finally:
        side.dispose()


def exists(connection: Connection) -> bool:
    """Whether the log table is there."""
    return inspect(connection).has_table(NAME)


def recorded(connection: Connection, *, after: int = 0, limit: int | None = None) -> Iterator[Change]:
    """The changes of the log table by id, those above `after`."""
    query = select(LOG).where(LOG.c.id > after).order_by(LOG.c.id).limit(limit)
    name = connection.engine.url.render_as_string(hide_password=True)
    name = name.partition("://")[2].rpartition("@")[2] or name
    for row in connection.execute(query, execution_options=OWN):
        yield _change(row._mapping, name)


def _change(row: Mapping[Any, Any], source: str) -> Change:
    at = row["timestamp"]
    key = _row(row["row_key"])
    more = _row(row["context"]) or {}
    return Change(
        id=f"{NAME}:{row['id']}",
        op=Op[row["operation"]],
        schema=row["schema_name"] or "",
        table=row["table_name"],
        source=Source("track", source, str(row["id"]), row["transaction_id"]),
        at=at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC),
        key=key,
        before=_row(row["old_data"]),
        after=_row(row["new_data"]),
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
