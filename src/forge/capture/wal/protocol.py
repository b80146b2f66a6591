"""PostgreSQL's replication messages: bytes in, structs out; no I/O.

A message of the server is `w` (the LSN of a record, the end of the WAL, a time, then a message of the plug-in) or `k`
(a keep-alive). `forge.capture.wal.decode` decodes row messages; this module decodes everything else that pgoutput
sends: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html

Inside a block of a streamed transaction (`S` … `E`) each message carries the number of its subtransaction; `unstreamed`
removes it, so that the same message reads the same in both.
"""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

HEAD: Final = 25
"""Length of the head of a `w` message."""

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_MICROS: Final = 946_684_800_000_000

_begin = struct.Struct(">qqI").unpack_from
_commit = struct.Struct(">Bqqq").unpack_from
_keep_alive = struct.Struct(">qqB").unpack_from
_status = struct.Struct(">cqqqqB").pack
_prepared = struct.Struct(">qqqI").unpack_from
_rolled_back = struct.Struct(">qqqqI").unpack_from
_relation = struct.Struct(">I").unpack_from
_column = struct.Struct(">Ii").unpack_from
_truncate = struct.Struct(">IB").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u16 = struct.Struct(">H").unpack_from
_u64 = struct.Struct(">Q").unpack_from


def time_of(micros: int) -> datetime:
    """Convert the server's microseconds since 2000 to an instant."""
    return EPOCH + timedelta(microseconds=micros)


class Begin(NamedTuple):
    commit: int
    at: int
    xid: int


class Commit(NamedTuple):
    commit: int
    end: int
    at: int


class Prepared(NamedTuple):
    """PREPARE TRANSACTION or its end: for COMMIT PREPARED, `lsn` is that of its commit."""

    lsn: int
    end: int
    at: int
    xid: int
    name: str


class RelationColumn(NamedTuple):
    name: str
    type: int
    modifier: int
    identity: bool


class RelationMessage(NamedTuple):
    """The definition of a table from here on; `identity` is d, n, f or i: the replica identity's setting."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


class LogicalMessage(NamedTuple):
    """A message written by pg_logical_emit_message."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class Truncate(NamedTuple):
    cascade: bool
    restart_identity: bool
    relations: tuple[bytes, ...]


class Abort(NamedTuple):
    """The rollback of a streamed transaction, or of one of its subtransactions."""

    xid: int
    part: int


class KeepAlive(NamedTuple):
    end: int
    at: int
    wants_reply: bool


def begin(data: bytes) -> Begin:
    return Begin(*_begin(data, HEAD + 1))


def commit(data: bytes) -> Commit:
    return Commit(*_commit(data, HEAD + 1)[1:])


def stream_start(data: bytes) -> tuple[int, bool]:
    """Return the transaction, and whether this is its first block."""
    return _u32(data, HEAD + 1)[0], bool(data[HEAD + 5])


def stream_commit(data: bytes) -> tuple[int, Commit]:
    return _u32(data, HEAD + 1)[0], Commit(*_commit(data, HEAD + 5)[1:])


def stream_abort(data: bytes) -> Abort:
    return Abort(_u32(data, HEAD + 1)[0], _u32(data, HEAD + 5)[0])


def begin_prepare(data: bytes) -> Prepared:
    lsn, end, at, xid = _prepared(data, HEAD + 1)
    return Prepared(lsn, end, at, xid, _text(data, HEAD + 29)[0])


def prepared(data: bytes) -> Prepared:
    """Parse PREPARE, a streamed PREPARE, or COMMIT PREPARED."""
    lsn, end, at, xid = _prepared(data, HEAD + 2)
    return Prepared(lsn, end, at, xid, _text(data, HEAD + 30)[0])


def rollback_prepared(data: bytes) -> Prepared:
    lsn, end, _, at, xid = _rolled_back(data, HEAD + 2)
    return Prepared(lsn, end, at, xid, _text(data, HEAD + 38)[0])


def relation(data: bytes) -> RelationMessage:
    (oid,) = _relation(data, HEAD + 1)
    schema, place = _text(data, HEAD + 5)
    table, place = _text(data, place)
    identity = chr(data[place])
    (count,) = _u16(data, place + 1)
    place += 3
    columns = []
    for _ in range(count):
        flags = data[place]
        name, place = _text(data, place + 1)
        kind, modifier = _column(data, place)
        place += 8
        columns.append(RelationColumn(name, kind, modifier, bool(flags & 1)))
    return RelationMessage(oid, schema or "pg_catalog", table, identity, tuple(columns))


def message(data: bytes) -> LogicalMessage:
    prefix, place = _text(data, HEAD + 10)
    (size,) = _u32(data, place)
    return LogicalMessage(bool(data[HEAD + 1] & 1), _u64(data, HEAD + 2)[0], prefix, data[place + 4 : place + 4 + size])


def truncate(data: bytes) -> Truncate:
    count, options = _truncate(data, HEAD + 1)
    start = HEAD + 6
    oids = tuple(data[start + 4 * n : start + 4 * n + 4] for n in range(count))
    return Truncate(bool(options & 1), bool(options & 2), oids)


def keep_alive(data: bytes) -> KeepAlive:
    end, at, wants = _keep_alive(data, 1)
    return KeepAlive(end, at, bool(wants))


def status_update(received: int, flushed: int, now: datetime, *, wants_reply: bool = False) -> bytes:
    """Build the status update of a standby: all before `flushed` is safe there."""
    micros = (now - EPOCH) // timedelta(microseconds=1)
    return _status(b"r", received, flushed, flushed, micros, wants_reply)


def unstreamed(data: bytes) -> tuple[int, bytes]:
    """Return the subtransaction of a message in a block, and the message in its form outside of one."""
    return _u32(data, HEAD + 1)[0], data[: HEAD + 1] + data[HEAD + 5 :]


def records(block: bytes) -> Iterator[bytes]:
    """Yield the messages of a spooled block, each after its length."""
    place = 0
    while place < len(block):
        (size,) = _u32(block, place)
        yield block[place + 4 : place + 4 + size]
        place += 4 + size


def _text(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(0, place)
    return data[place:end].decode(), end + 1
