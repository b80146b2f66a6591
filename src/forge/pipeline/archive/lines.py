"""Parse one archived line: a change in Forge's wire form, or an event in Debezium's envelope.

An envelope may come bare, wrapped with its schema part as `{"schema": …, "payload": …}`, and with the message's key, as
`{"key": …, "value": …}` or beside it. A message stored as text inside JSON is parsed again. A tombstone, which repeats
that a row is gone, and an empty line have no content.

Any other input raises an error of reading malformed JSON: ValueError and its subclasses, RecursionError, DecodeError.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from forge import wire
from forge.change import NO_CONTEXT, Change, ChangeSource, Context, Op
from forge.pipeline.archive.connectors import Described, columns_of
from forge.pipeline.archive.order import EnvelopeSource, seq_of_event
from forge.wire import malformed

Envelope = Literal["forge", "debezium"]


class ArchiveEvent(msgspec.Struct, frozen=True):
    """A Debezium event with its values as in JSON; `change` is all of it but its key and its rows.

    `seq` is None when Forge wrote the event: its position is then that of the change.
    """

    change: Change
    seq: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    key: Mapping[str, Any] | None
    described: Described | None

    @property
    def by_forge(self) -> bool:
        return self.seq is None


def read_line(raw: bytes, key: bytes | None = None, envelope: Envelope | None = None) -> Change | ArchiveEvent | None:
    """Return the content of a line, in the given or the detected form; None for an empty line."""
    if raw.strip() in (b"", b"null"):
        return None
    outline = _outline.decode(raw)
    if envelope == "forge" or (envelope is None and outline.operation):
        return wire.decode(raw)
    schema = b""
    for _ in range(_MOST_WRAPPERS):
        if outline.op:
            return _event(raw, schema, key)
        raw = _opened(outline.value or outline.payload)
        if not raw:
            raise malformed("no change of a row" if outline.source else "neither Forge's wire form nor an envelope")
        if raw == b"null":
            return None
        key = bytes(outline.key) or key
        schema = bytes(outline.schema) or schema
        outline = _outline.decode(raw)
    raise malformed("an envelope in too many wrappers")


_MOST_WRAPPERS: Final = 4
_NOTHING: Final = msgspec.Raw(b"")


class _Outline(msgspec.Struct, frozen=True):
    """The members that distinguish the forms, not parsed."""

    operation: msgspec.Raw = _NOTHING
    op: msgspec.Raw = _NOTHING
    source: msgspec.Raw = _NOTHING
    payload: msgspec.Raw = _NOTHING
    value: msgspec.Raw = _NOTHING
    schema: msgspec.Raw = _NOTHING
    key: msgspec.Raw = _NOTHING


_outline: Final = msgspec.json.Decoder(_Outline)


def _opened(part: msgspec.Raw) -> bytes:
    """Return a part of a line, or the JSON that it contains as text."""
    raw = bytes(part)
    return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw


def key_of(raw: bytes | None) -> dict[str, Any] | None:
    """Return the columns of a message's key; None when it is not an object."""
    if not raw:
        return None
    if raw.startswith(b'"'):
        raw = msgspec.json.decode(raw, type=str).encode()
    try:
        key = _values.decode(raw)
    except ValueError:
        return None
    if isinstance(key, dict) and key.keys() <= {"schema", "payload"} and "payload" in key:
        key = key["payload"]
    return key if isinstance(key, dict) and key else None


_values: Final = msgspec.json.Decoder(float_hook=Decimal)


class _Transaction(msgspec.Struct, frozen=True):
    total_order: int | None = None


class _Place(msgspec.Struct, frozen=True):
    kind: str
    position: str
    transaction: str | None = None


class _Forge(msgspec.Struct, frozen=True):
    change_id: str
    source: _Place
    key: dict[str, Any] | None = None
    hidden: tuple[str, ...] = ()
    context: Context = NO_CONTEXT


class _Envelope(msgspec.Struct, frozen=True):
    op: str
    source: EnvelopeSource
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    ts_ms: int | None = None
    ts_us: int | None = None
    ts_ns: int | None = None
    transaction: _Transaction | None = None
    forge: _Forge | None = None


_envelopes: Final = msgspec.json.Decoder(_Envelope, float_hook=Decimal)
_OPS: Final = {"c": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE, "r": Op.READ, "t": Op.TRUNCATE}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _event(raw: bytes, schema: bytes, key: bytes | None) -> ArchiveEvent:
    envelope = _envelopes.decode(raw)
    origin, forge = envelope.source, envelope.forge
    op = _OPS.get(envelope.op)
    if op is None:
        raise malformed(f"the unknown operation {envelope.op[:20]!r}")
    space = origin.schema or origin.db
    if not (space and origin.table):
        raise malformed("its source names no table")
    if forge is not None:
        place = forge.source
        seq = None
        id = forge.change_id
        source = ChangeSource(place.kind, origin.name, place.position, place.transaction)
        context = msgspec.structs.replace(forge.context, more=wire.decode_row(forge.context.more) or {})
    else:
        tie, rest = _tie(envelope)
        seq = seq_of_event(origin, tie, read=op is Op.READ)
        id = f"{origin.name}:{seq[4:]}{rest}:{envelope.op}"
        transaction = None if origin.txId is None or op is Op.READ else str(origin.txId)
        source, context = ChangeSource("debezium", origin.name, seq[4:], transaction), NO_CONTEXT
    return ArchiveEvent(
        Change(
            id=id,
            op=op,
            schema=space,
            table=origin.table,
            source=source,
            at=_EPOCH + timedelta(microseconds=_micros(envelope)),
            key=None if forge is None else wire.decode_row(forge.key),
            context=context,
            hidden=() if forge is None else forge.hidden,
        ),
        seq,
        envelope.before,
        envelope.after,
        key_of(key),
        _described(schema) if schema else None,
    )


@lru_cache(maxsize=256)
def _described(schema: bytes) -> Described | None:
    return columns_of(schema)


def _micros(envelope: _Envelope) -> int:
    """Return the time of the event; the capture time if the source gives none."""
    for times in (envelope.source, envelope):
        if times.ts_ns is not None:
            return times.ts_ns // 1000
        if times.ts_us is not None:
            return times.ts_us
        if times.ts_ms is not None:
            return times.ts_ms * 1000
    raise malformed("it says no time")


def _tie(envelope: _Envelope) -> tuple[int, str]:
    """Return what distinguishes events at one position: their order in the transaction, or else their content."""
    transaction, source = envelope.transaction, envelope.source
    if transaction is not None and transaction.total_order is not None and envelope.op != "r":
        return transaction.total_order, ""
    content = [source.schema, source.table, envelope.op, envelope.before, envelope.after]
    digest = blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big") >> 1, f"-{digest[8:].hex()}"
