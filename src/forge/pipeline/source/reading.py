"""Read one piece of a batch, in a task: rows in PostgreSQL's COPY format become Arrow batches.

Python handles no single rows, and at most `BLOCK` bytes (or one row) are in memory at a time. Every attempt reads the
same rows: a piece of the log must have the planned number of changes, or CursorExpired is raised.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from psycopg import Error, OperationalError, errors, pq
from pyarrow import compute as pc
from pyarrow import csv

from forge.cursor import Snapshot
from forge.errors import CursorExpired
from forge.pipeline.source.offset import LogPiece, Piece, TableShare
from forge.pipeline.source.planner import RESNAPSHOT
from forge.pipeline.source.shares import statements
from forge.pipeline.source.statements import bound, source_query
from forge.postgres.connection import Connection, connect, typed_errors

BLOCK: Final = 4 * 1024 * 1024
ARROW: Final = pa.schema(
    [
        pa.field("seq", pa.string(), False),
        pa.field("id", pa.string(), False),
        pa.field("op", pa.string(), False),
        pa.field("schema", pa.string(), False),
        pa.field("table", pa.string(), False),
        pa.field("version", pa.int32(), False),
        pa.field("row_id", pa.string()),
        pa.field("before", pa.string()),
        pa.field("after", pa.string()),
        pa.field("hidden", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), False),
        pa.field("transaction", pa.int64()),
        pa.field("user_id", pa.string()),
        pa.field("function_name", pa.string()),
        pa.field("trace_id", pa.string()),
        pa.field("context", pa.string()),
        pa.field("session_user", pa.string()),
        pa.field("application_name", pa.string()),
    ]
)
"""`forge.pipeline.changes.CHANGES` as an Arrow schema; a test checks that the two agree."""

_PARSE: Final = csv.ParseOptions(delimiter="\t", quote_char=False, escape_char=False, newlines_in_values=False)
_CONVERT: Final = csv.ConvertOptions(column_types=ARROW, null_values=["\\N"], strings_can_be_null=True)
_STANDS_FOR: Final = (
    ("\\\\", "\0"),
    *(("\\" + letter, character) for letter, character in zip("bfnrtv", "\b\f\n\r\t\v", strict=True)),
    ("\0", "\\"),
)
"""COPY's escapes for special characters. A PostgreSQL text never contains a NUL."""


class StreamScope:
    """The scope common to every piece of a stream."""

    def __init__(
        self, url: str, log: str, first_id: int, tables: tuple[str, ...] | None, where: str | None = None
    ) -> None:
        self.url = url
        self.log = log
        self.first_id = first_id
        self.tables = tables
        self.where = where
        """A condition that leaves changes out; only then may a piece have fewer than were planned."""


def read(scope: StreamScope, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a piece, unordered."""
    with typed_errors(), connect(scope.url) as connection:
        connection.execute(source_query("settings"))
        if isinstance(piece, LogPiece):
            yield from _changes(connection, scope, piece)
        else:
            yield from _copied_share(connection, scope, piece)


def _changes(connection: Connection, scope: StreamScope, piece: LogPiece) -> Iterator[pa.RecordBatch]:
    values = {
        **Snapshot.parse(piece.since).bounds,
        "until": piece.until,
        "place": piece.after.rank,
        "id": piece.after.id,
        "last_place": piece.last.rank,
        "last_id": piece.last.id,
        "lowest": str(piece.lowest),
        "highest": str(piece.highest),
        "since": piece.first_day,
        "upto": piece.last_day,
        "first": scope.first_id,
        "tables": list(scope.tables) if scope.tables is not None else None,
        "log": scope.log,
        "generation": f"{piece.generation:04x}",
    }
    statement = bound(connection, source_query("changes"), values)
    if scope.where is not None:
        statement += f" AND ({scope.where})"
    count = 0
    for batch in _copied(connection, statement):
        count += batch.num_rows
        yield batch
    if count != piece.count and scope.where is None:
        raise CursorExpired(
            f"{piece.count - count} of {piece.count} changes of a batch are gone from the log", fix=RESNAPSHOT
        )


def _copied_share(connection: Connection, scope: StreamScope, share: TableShare) -> Iterator[pa.RecordBatch]:
    with connection.transaction():
        for statement in statements(connection, share, scope.log, scope.first_id):
            yield from _copied(connection, statement)


def _copied(connection: Connection, statement: str) -> Iterator[pa.RecordBatch]:
    """Copy with libpq directly: psycopg's own loop takes longer per row than PostgreSQL does."""
    rows: list[bytes | memoryview] = []
    size = 0
    for row in _lines(connection.pgconn, f"COPY ({statement}) TO STDOUT".encode()):
        rows.append(row)
        size += len(row)
        if size >= BLOCK:
            yield from _batches(b"".join(rows))
            rows, size = [], 0
    if rows:
        yield from _batches(b"".join(rows))


def _lines(server: pq.abc.PGconn, command: bytes) -> Iterator[bytes | memoryview]:
    result = server.exec_(command)
    if result.status != pq.ExecStatus.COPY_OUT:
        raise _failure(server, result)
    get = server.get_copy_data
    while True:
        size, line = get(0)
        if size <= 0 or line is None:
            break
        yield line
    failure = None
    while (rest := server.get_result()) is not None:
        if rest.status == pq.ExecStatus.FATAL_ERROR:
            failure = _failure(server, rest)
    if size < -1 and failure is None:
        failure = OperationalError(server.get_error_message())
    if failure is not None:
        raise failure


def _failure(server: pq.abc.PGconn, result: pq.abc.PGresult) -> Error:
    if server.status == pq.ConnStatus.BAD:
        return OperationalError(server.get_error_message())
    return errors.error_from_result(result)


def _batches(block: bytes) -> list[pa.RecordBatch]:
    """Convert COPY lines to batches: tabs between fields, `\\N` for NULL, a backslash before escaped characters."""
    table = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(column_names=ARROW.names, use_threads=False, block_size=len(block) + 1),
        parse_options=_PARSE,
        convert_options=_CONVERT,
    )
    for place, field in enumerate(ARROW):
        if pa.types.is_string(field.type) and pc.any(pc.match_substring(table[place], "\\")).as_py():
            column = table[place]
            for written, meant in _STANDS_FOR:
                column = pc.replace_substring(column, written, meant)
            table = table.set_column(place, field, column)
    batches: list[pa.RecordBatch] = table.cast(ARROW).to_batches()
    return batches
