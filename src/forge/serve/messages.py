r"""Wire format of events to clients: each has one JSON object, with one line per row.

Over SSE, an event has its name, an id if it can be resumed from, and the object in `data:` lines; over a WebSocket, the
object begins with `"event"`. The part that all subscribers of a group share is encoded once and kept with the push.

The events of a subscription:

- `snapshot` and `update` have the whole result: `rows`, or `value` where the query returned one value.
- `delta` has `removed` (keys), `changed` (rows) and `added` (rows, with their positions in `at`), `from`, the hash of
  the result it applies to, and `order` (all keys) if these do not determine the order.
- `gap`: deltas were skipped; a snapshot follows.
- `error`: the query cannot run at present.

Each has the `hash` of the result that the client then holds: of the lines of its rows, joined by line feeds.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from forge.errors import ForgeError
from forge.react.push import Push
from forge.react.result import lines

Event = Literal["session", "snapshot", "update", "delta", "gap", "error", "auth", "channel", "change", "answer", "bye"]
PING: Final = b": \n\n"
_encode: Final = msgspec.json.encode


class Frame(msgspec.Struct, frozen=True):
    """An event for one client. `body` is a JSON object without its opening brace."""

    event: Event
    body: bytes


def whole(push: Push) -> bytes:
    """Encode the shared part of `snapshot` and `update`."""
    result = push.result
    rows = b'"value":' + result.rows[0] if result.single else b'"rows":' + lines(result.rows)
    return _head(push) + b',"key":' + _encode(result.key) + b"," + rows + b"}"


def delta(push: Push) -> bytes | None:
    """Encode the shared part of `delta`; None if there is no delta."""
    found = push.delta
    if found is None:
        return None
    order = b"" if found.order is None else b',"order":[' + b",".join(found.order) + b"]"
    parts = (
        _head(push),
        b',"from":"' + found.before.encode() + b'"',
        b',"removed":[' + b",".join(found.removed) + b"]",
        b',"at":' + _encode(found.at),
        order,
        b',"changed":' + lines(found.changed),
        b',"added":' + lines(found.added) + b"}",
    )
    return b"".join(parts)


def shared(push: Push, mode: str) -> bytes | None:
    """Return `whole` or `delta`, encoded once per push."""
    kept: dict[str, bytes | None] = push.__dict__.setdefault("messages", {})
    if mode not in kept:
        kept[mode] = whole(push) if mode == "full" else delta(push)
    return kept[mode]


def shared_sse(push: Push, mode: str, event: str) -> bytes | None:
    """Return a complete SSE event without a subscription name, encoded once per push."""
    kept: dict[str, bytes | None] = push.__dict__.setdefault("events", {})
    if event not in kept:
        body = shared(push, mode)
        kept[event] = None if body is None else sse(event, b"{" + body, push.result.hash)
    return kept[event]


def sse(event: str, data: bytes, id: str | None = None) -> bytes:
    r"""
    >>> sse("update", b'{"rows":[\n1\n]}', "abc")
    b'event: update\nid: abc\ndata: {"rows":[\ndata: 1\ndata: ]}\n\n'
    """
    named = f"event: {event}\n" + (f"id: {id}\n" if id else "")
    return named.encode() + b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def socket(event: str, body: bytes) -> str:
    """Encode a WebSocket message; the body is an object without its opening brace."""
    return f'{{"event":"{event}",{body.decode()}'


def fields(**values: Any) -> bytes:
    """Encode a JSON object without its opening brace.

    >>> fields(a=1)
    b'"a":1}'
    """
    return _encode(values)[1:]


def error_fields(error: ForgeError) -> dict[str, Any]:
    """Return the fields of an error that clients get."""
    found = {"code": type(error).code, "message": str(error), "fix": error.fix}
    retry = getattr(error, "retry_after_secs", None)
    return found if retry is None else {**found, "retry_after_secs": retry}


def _head(push: Push) -> bytes:
    causes: list[Mapping[str, Any]] = [
        {
            "change": cause.id,
            "table": cause.table,
            "op": cause.op,
            "user": cause.user,
            "function": cause.function,
            "trace": cause.trace,
            "at": cause.at,
            "xid": cause.transaction,
        }
        for cause in push.causes
    ]
    more = b',"more_causes":' + _encode(push.more) if push.more else b""
    head = f'"hash":"{push.result.hash}","snapshot":"{push.coverage}","cause":'
    return head.encode() + _encode(causes) + more
