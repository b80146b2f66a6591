"""The envelope around the values: encode a Change to an event, and decode it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

import msgspec

from forge import wire
from forge.change import Change, ChangeSource, Context, Op
from forge.debezium import codecs as forms
from forge.debezium import connectors, documents
from forge.values import Column

_OPS: Final = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r", Op.TRUNCATE: "t"}
_BACK: Final = {letter: op for op, letter in _OPS.items()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VERSION: Final = version("forge-changes")


class Order(NamedTuple):
    """The position of an event in its transaction, counted from 1: among all, and among those of its table."""

    total: int
    in_table: int


def encode(change: Change, *, columns: Sequence[Column] | None = None, order: Order | None = None) -> bytes | None:
    """Return the envelope; None for a change that is not a row event: schema, invalidate, redact.

    So a reader of envelopes alone does not learn of a redaction.

    With `order`, and a known transaction, there is a `transaction` block. Raise EncodeError as `wire.encode` does.
    """
    op = _OPS.get(change.op)
    if op is None:
        return None
    try:
        return msgspec.json.encode(_envelope(change, op, columns, order))
    except RecursionError:
        raise wire.too_deep(change) from None


def _envelope(change: Change, op: str, columns: Sequence[Column] | None, order: Order | None) -> dict[str, Any]:
    micros = (change.at - _EPOCH) // timedelta(microseconds=1)
    times = {"ts_ms": micros // 1000, "ts_us": micros, "ts_ns": micros * 1000}
    source = change.source
    transaction = source.transaction
    connector = connectors.connector(change)
    return {
        **_rows(change, connector, columns),
        "source": connectors.block(change, connector, _VERSION, times),
        "op": op,
        **times,
        "transaction": None
        if order is None or transaction is None
        else {"id": transaction, "total_order": order.total, "data_collection_order": order.in_table},
        "forge": {
            "change_id": change.id,
            "key": wire.encode_row(change.key),
            "hidden": change.hidden,
            "source": {"kind": source.kind, "position": source.position, "transaction": transaction},
            "context": {
                **{name: getattr(change.context, name) for name in _CONTEXT},
                "more": wire.encode_row(change.context.more),
            },
        },
    }


def _rows(change: Change, connector: str, columns: Sequence[Column] | None) -> dict[str, Any]:
    if connector == "mongodb":
        return {
            "before": documents.encode(change.before),
            "after": documents.encode(change.after),
            "updateDescription": documents.description(change),
        }
    return {
        "before": forms.encode_row(change.before, columns, connector),
        "after": forms.encode_row(change.after, columns, connector),
    }


def decode(raw: bytes | str, columns: Sequence[Column] | None = None) -> Change:
    """Return the change as far as the envelope carries it; raise DecodeError if it is not an envelope.

    An event that Forge did not write has no key, no context, and an id computed from its content.
    """
    try:
        envelope = _decoder.decode(raw)
        source, forge = envelope.source, envelope.forge or _foreign(envelope)
        micros = envelope.source.ts_ms * 1000 if source.ts_us is None else source.ts_us
        return Change(
            id=forge.change_id,
            op=_BACK[envelope.op],
            schema=source.db if source.schema is None else source.schema,
            table=source.collection if source.table is None else source.table,
            source=ChangeSource(forge.source.kind, source.name, forge.source.position, forge.source.transaction),
            at=_EPOCH + timedelta(microseconds=micros),
            key=wire.decode_row(forge.key),
            before=_row(envelope.before, source.connector, columns),
            after=_row(envelope.after, source.connector, columns),
            context=msgspec.structs.replace(forge.context, more=wire.decode_row(forge.context.more) or {}),
            hidden=forge.hidden,
        )
    except (msgspec.DecodeError, ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise wire.malformed(error) from None


def _row(row: dict[str, Any] | str | None, connector: str, columns: Sequence[Column] | None) -> dict[str, Any] | None:
    if isinstance(row, str):
        return documents.decode(row)
    return forms.decode_row(row, columns, connector)


_CONTEXT: Final = tuple(name for name in Context.__struct_fields__ if name != "more")


class _Origin(msgspec.Struct, frozen=True):
    kind: str
    position: str
    transaction: str | None


class _Forge(msgspec.Struct, frozen=True):
    change_id: str
    source: _Origin
    key: dict[str, Any] | None = None
    hidden: tuple[str, ...] = ()
    context: Context = Context()


class _Source(msgspec.Struct, frozen=True):
    name: str
    ts_ms: int
    connector: str = "postgresql"
    db: str = ""
    schema: str | None = None
    table: str | None = None
    collection: str = ""
    ts_us: int | None = None
    sequence: str | None = None
    txId: int | None = None
    lsn: int | None = None
    gtid: str | None = None
    file: str | None = None
    pos: int = 0
    row: int = 0


class _Transaction(msgspec.Struct, frozen=True):
    id: str


class _Envelope(msgspec.Struct, frozen=True):
    source: _Source
    op: Literal["c", "u", "d", "r", "t"]
    before: dict[str, Any] | str | None = None
    after: dict[str, Any] | str | None = None
    transaction: _Transaction | None = None
    forge: _Forge | None = None


_decoder: Final = msgspec.json.Decoder(_Envelope)


def _foreign(envelope: _Envelope) -> _Forge:
    """Return Forge's fields for an event that a Debezium connector wrote."""
    source, transaction = envelope.source, envelope.transaction
    content = msgspec.json.encode([source, envelope.op, envelope.before, envelope.after])
    if source.txId is not None:
        name: str | None = str(source.txId)
    else:
        name = source.gtid or (transaction.id if transaction else None)
    if source.file is not None:
        return _Forge(
            blake2b(content, digest_size=16).hexdigest(),
            _Origin("debezium", f"{source.file}:{source.pos}.{source.row}", name),
        )
    position = source.sequence or ("" if source.lsn is None else str(source.lsn))
    return _Forge(blake2b(content, digest_size=16).hexdigest(), _Origin("debezium", position, name))
