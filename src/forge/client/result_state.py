"""A client's copy of a result: the received text of each row, and the hash over them.

Input: messages of a subscription. Output: the next result.

Invariants:
- A result whose hash differs from the server's is never returned; ResultMismatch is raised instead.
- Nothing here modifies its arguments.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forge.client.messages import DeltaMessage, Whole, decode_result, malformed
from forge.errors import ResultMismatch


class HeldResult(msgspec.Struct, frozen=True):
    """A result with a verified hash. `single` is set when it is one value instead of a list of rows."""

    rows: tuple[bytes, ...]
    hash: str
    single: bool = False
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: Whole) -> "HeldResult":
        """Return the result of a full message."""
        if message.value is not msgspec.UNSET:
            return _proven(cls((bytes(message.value),), message.hash, single=True))
        if message.rows is msgspec.UNSET:
            raise malformed("a result without rows")
        return _proven(cls(tuple(map(bytes, message.rows)), message.hash, key=message.key))

    def after(self, delta: DeltaMessage) -> "HeldResult":
        """Apply a delta and return the new result."""
        if delta.before != self.hash or self.single or not self.key:
            raise _mismatch("the delta is of another result")
        try:
            rows = {_key(row, self.key): row for row in self.rows}
            for key in delta.removed:
                del rows[bytes(key)]
            for row in map(bytes, delta.changed):
                key_of_row = _key(row, self.key)
                if key_of_row not in rows:
                    raise KeyError(key_of_row)
                rows[key_of_row] = row
            order = list(rows)
            for place, row in zip(delta.at, map(bytes, delta.added), strict=True):
                key_of_row = _key(row, self.key)
                rows[key_of_row] = row
                order.insert(place, key_of_row)
            if delta.order is not None:
                order = list(map(bytes, delta.order))
            found = tuple(rows[key] for key in order)
        except (KeyError, ValueError, msgspec.DecodeError):
            raise _mismatch("the delta does not fit the result") from None
        return _proven(HeldResult(found, delta.hash, key=self.key))

    def value(self) -> Any:
        """Return the result as Python values, decoded again on each call."""
        return decode_result(self.rows[0] if self.single else b"[" + b",".join(self.rows) + b"]")


def digest(rows: Iterable[bytes]) -> str:
    """Return the hash of a result's lines.

    >>> digest([b'{"id":1}', b'{"id":2}'])
    'c4b5e8c2cfb9818791b2df904a604c6d'
    """
    return hashlib.sha256(b"\n".join(rows)).hexdigest()[:32]


def _proven(held: HeldResult) -> HeldResult:
    if digest(held.rows) != held.hash:
        raise _mismatch("the result does not have its hash")
    return held


def _mismatch(message: str) -> ResultMismatch:
    return ResultMismatch(message, fix="see that nothing on the way changes what the server sends")


def _key(row: bytes, names: Sequence[str]) -> bytes:
    """Return the key of a row as JSON, from the row's text."""
    values = msgspec.json.decode(row, type=dict[str, msgspec.Raw])
    return b"[" + b",".join(bytes(values[name]) for name in names) + b"]"
