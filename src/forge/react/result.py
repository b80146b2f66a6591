r"""Encoded results: each row is one line of JSON, encoded once for all receivers.

The hash of a result is the hash of its lines. A client that applied deltas can therefore verify that it holds the same
result as the server without reproducing the server's JSON encoding: it keeps the lines it received.

>>> old = encode([{"id": 1, "n": "a"}, {"id": 2, "n": "b"}], key=("id",))
>>> new = encode([{"id": 3, "n": "c"}, {"id": 1, "n": "x"}], key=("id",))
>>> old.rows
(b'{"id":1,"n":"a"}', b'{"id":2,"n":"b"}')
>>> delta = difference(old, new)
>>> delta.removed, delta.changed, delta.added, delta.at
((b'[2]',), (b'{"id":1,"n":"x"}',), (b'{"id":3,"n":"c"}',), (0,))
>>> apply(old, delta).rows == new.rows
True
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from forge.config import Config
from forge.errors import ResultInvalid, ResultTooLarge
from forge.wire import MOST_EXACT_INT, encode_value

MOST_BYTES: Final = Config().realtime.max_cached_result_bytes


class Result(msgspec.Struct, frozen=True):
    """The lines of a result in order. `single` is set when the query returned one value instead of a list of rows.

    `keys` has the key of each row as JSON; None when the query has no key or two rows have the same key.
    """

    rows: tuple[bytes, ...]
    hash: str
    single: bool = False
    key: tuple[str, ...] = ()
    keys: tuple[bytes, ...] | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.rows))

    def json(self) -> bytes:
        """Return the result as JSON, one row per line."""
        if self.single:
            return self.rows[0]
        return lines(self.rows)


class ResultDelta(msgspec.Struct, frozen=True):
    """Difference between two results: keys removed, rows changed in place, rows added at positions of the new one.

    `order` lists all keys in the new order when removing, changing and adding do not produce that order.
    """

    before: str
    after: str
    removed: tuple[bytes, ...]
    changed: tuple[bytes, ...]
    added: tuple[bytes, ...]
    at: tuple[int, ...]
    order: tuple[bytes, ...] | None = None


def lines(rows: Iterable[bytes]) -> bytes:
    r"""Encode rows as a JSON array, one row per line.

    >>> lines([b"1", b"2"]), lines([])
    (b'[\n1,\n2\n]', b'[\n]')
    """
    inner = b",\n".join(rows)
    return b"[\n" + inner + b"\n]" if inner else b"[\n]"


def digest(rows: Iterable[bytes]) -> str:
    """Return the hash of a result's lines."""
    return hashlib.sha256(b"\n".join(rows)).hexdigest()[:32]


def encode(value: Any, *, key: Sequence[str] = (), most: int = MOST_BYTES) -> Result:
    """Encode the return value of a query: a list of rows, or one value."""
    single = not isinstance(value, (list, tuple))
    rows: list[bytes] = []
    keys: list[bytes] = []
    size = 0
    for item in [value] if single else value:
        try:
            plain = _plain(item)
            row = msgspec.json.encode(plain)
        except (RecursionError, UnicodeError):
            raise ResultInvalid("a result has no form in JSON", fix="return rows of plain values") from None
        size += len(row)
        if size > most:
            raise ResultTooLarge(
                f"the result has more than {most} bytes", fix="select less, or page it; max_result_bytes is the limit"
            )
        rows.append(row)
        if key:
            keys.append(_key(plain, key))
    unique = bool(key) and len(set(keys)) == len(keys)
    return Result(tuple(rows), digest(rows), single, tuple(key), tuple(keys) if unique else None)


def difference(old: Result, new: Result) -> ResultDelta | None:
    """Return the delta between two results; None when keys cannot express it."""
    if old.keys is None or new.keys is None or old.single or new.single:
        return None
    before = dict(zip(old.keys, old.rows, strict=True))
    after = dict(zip(new.keys, new.rows, strict=True))
    removed = tuple(key for key in old.keys if key not in after)
    changed = tuple(row for key, row in after.items() if key in before and before[key] != row)
    places = [place for place, key in enumerate(new.keys) if key not in before]
    added = tuple(new.rows[place] for place in places)
    stays = [key for key in old.keys if key in after]
    order = None if stays == [key for key in new.keys if key in before] else new.keys
    return ResultDelta(old.hash, new.hash, removed, changed, added, tuple(places), order)


def apply(old: Result, delta: ResultDelta) -> Result:
    """Apply a delta to a result, as a client does."""
    if old.keys is None or old.hash != delta.before:
        raise ValueError("the delta is of another result")
    rows = dict(zip(old.keys, old.rows, strict=True))
    for key in delta.removed:
        del rows[key]
    for row in delta.changed:
        rows[_key(msgspec.json.decode(row), old.key)] = row
    keys = list(rows)
    for place, row in zip(delta.at, delta.added, strict=True):
        key = _key(msgspec.json.decode(row), old.key)
        rows[key] = row
        keys.insert(place, key)
    if delta.order is not None:
        keys = list(delta.order)
    found = tuple(rows[key] for key in keys)
    return Result(found, digest(found), old.single, old.key, tuple(keys))


def _key(row: Any, names: Sequence[str]) -> bytes:
    try:
        return msgspec.json.encode([row[name] for name in names])
    except (TypeError, KeyError, IndexError):
        raise ResultInvalid(
            f"a row has no {', '.join(names)}, which is the key of its query", fix="select the key's columns"
        ) from None


def _plain(value: Any) -> Any:
    """Convert a row or another value to types that msgspec encodes exactly for every reader: see `forge.wire`."""
    fields = _fields(value)
    return _exact(value) if fields is None else {str(name): _exact(inner) for name, inner in fields.items()}


def _fields(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.model_dump() if hasattr(value, "model_dump") else None


def _exact(value: Any) -> Any:
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if kind is int and -MOST_EXACT_INT <= value <= MOST_EXACT_INT:
        return value
    if isinstance(value, (datetime, date, time, timedelta, UUID)):
        return value
    if isinstance(value, (list, tuple)):
        return [_exact(inner) for inner in value]
    fields = _fields(value)
    if fields is not None:
        coded = {str(name): _exact(inner) for name, inner in fields.items()}
        return {"$object": coded} if any(name.startswith("$") for name in coded) else coded
    try:
        return encode_value(value)
    except TypeError:
        raise ResultInvalid(
            f"a result has a {kind.__name__}, which has no form in JSON", fix="return rows of plain values"
        ) from None
