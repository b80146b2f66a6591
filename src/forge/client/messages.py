"""Messages and answers of the server, as types. Rows stay the received text, because the result's hash is over it.

Unknown fields from later servers are ignored.
"""

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from forge.errors import DecodeError, ForgeError, ProtocolError
from forge.wire import decode_row, decode_value

T = TypeVar("T")


class Cause(msgspec.Struct, frozen=True):
    """A change that made a query run again: the change, its actor, its time and its transaction."""

    change: str
    table: str
    op: str
    at: datetime
    user: str | None = None
    function: str | None = None
    trace: str | None = None
    xid: str | None = None


class Whole(msgspec.Struct, frozen=True):
    """`snapshot` or `update`: a result; with `unchanged`, the client already has it."""

    hash: str
    subscription: str = ""
    unchanged: bool = False
    snapshot: str | None = None
    cause: tuple[Cause, ...] = ()
    more_causes: int = 0
    key: tuple[str, ...] = ()
    rows: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class DeltaMessage(msgspec.Struct, frozen=True, rename={"before": "from"}):
    """`delta`: the difference between the results with the hashes `before` and `hash`."""

    hash: str
    before: str
    removed: list[msgspec.Raw]
    changed: list[msgspec.Raw]
    added: list[msgspec.Raw]
    at: list[int]
    order: list[msgspec.Raw] | None = None
    subscription: str = ""
    snapshot: str | None = None
    cause: tuple[Cause, ...] = ()
    more_causes: int = 0


class Opened(msgspec.Struct, frozen=True):
    """`session`: the stream is open."""

    session: str


class NoticeMessage(msgspec.Struct, frozen=True):
    """`gap` and `error`: about a subscription, or about the session if the name is empty."""

    subscription: str = ""
    code: str = "failed"
    message: str = "the server failed"
    fix: str = "see the server's log"
    retry_after_secs: float | None = None


class AuthTold(msgspec.Struct, frozen=True):
    """`auth`: the server wants a newer token, or ends the session for a reason."""

    renew: bool = False
    reason: str | None = None


class Bye(msgspec.Struct, frozen=True):
    """`bye`: the server ends the stream; reconnect after a delay."""

    retry_after_ms: float = 0.0


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: NoticeMessage


class CallResponse(msgspec.Struct, frozen=True):
    """The answer to a query or a mutation."""

    result: msgspec.Raw
    xid: str | None = None


def read(kind: type[T], text: bytes) -> T:
    """Parse a message; raise ProtocolError if the text is not one."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise malformed(error) from None


def malformed(reason: object) -> ProtocolError:
    """Return the error for a message that no Forge server sends."""
    line = " ".join(str(reason).split())[:200]
    return ProtocolError(f"the server sent what cannot be read: {line}", fix="use client and server of one version")


def decode_result(text: bytes) -> Any:
    """Decode a result to Python values: tags are decoded, a list of rows is a list.

    >>> decode_result(b'[{"id":1,"total":{"$numeric":"12.30"}},{"id":2,"total":null}]')
    [{'id': 1, 'total': Decimal('12.30')}, {'id': 2, 'total': None}]
    >>> decode_result(b'{"$int":"9007199254740993"}')
    9007199254740993
    """
    try:
        value = msgspec.json.decode(text)
        if b'"$' not in text:
            return value
        return [_row(row) for row in value] if isinstance(value, list) else _row(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ForgeError) as error:
        raise malformed(error) from None


def _row(row: Any) -> Any:
    """Decode a row. Its column names are never tags, but a row may be one tagged value."""
    if not isinstance(row, dict):
        return decode_value(row)
    if len(row) == 1:
        try:
            return decode_value(row)
        except DecodeError:
            pass
    return decode_row(row)
