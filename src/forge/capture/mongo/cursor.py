"""Cursors of a change stream, as a type and as a text.

`mongo1_{server}_{place}`, and inside a snapshot `+{progress}`. A place is `t` and a cluster time in hex, behind which
the reader is, or a resume token: its `_data`, or `b` and the whole token as BSON in base64url if it has more than that.
The progress of a snapshot is the collection being read and the `_id` of its last row: all that sorts before is read, as
of the place.

>>> cursor = MongoCursor.parse("mongo1_5e1f.9b2c_t6afa902a00000003")
>>> cursor.place, cursor.progress
(MongoPosition(time=Timestamp(1794805802, 3), token=None), None)
>>> inside = MongoCursor(cursor.server, cursor.place, CollectionProgress("orders", 7))
>>> str(inside), MongoCursor.parse(str(inside)) == inside
('mongo1_5e1f.9b2c_t6afa902a00000003+GgAAAAJjAAcAAABvcmRlcnMAEGkABwAAAAA', True)
>>> str(MongoCursor("5e1f.9b2c", MongoPosition(token={"_data": "826AFA"})))
'mongo1_5e1f.9b2c_826AFA'
>>> MongoCursor.parse("mongo1_5e1f.9b2c_nonsense")
Traceback (most recent call last):
  ...
forge.errors.CursorInvalid: 'mongo1_5e1f.9b2c_nonsense' is not a cursor of a MongoDB source
fix: use a cursor that this source gave
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import bson
from bson.errors import BSONError
from bson.timestamp import Timestamp

from forge.capture.mongo.codecs import CODEC
from forge.errors import CursorForeign, CursorInvalid

KIND: Final = "mongo"

_FORM = re.compile(
    r"mongo1_(?P<server>[0-9a-f]{1,32}(?:\.[0-9a-f]{1,32}){0,2})_"
    r"(?:t(?P<time>[0-9a-f]{16})|(?P<data>[0-9A-F]+)|b(?P<token>[0-9A-Za-z_-]+))(?:\+(?P<progress>[0-9A-Za-z_-]+))?"
)
_FIX = "use a cursor that this source gave"


class MongoPosition(NamedTuple):
    """Behind a cluster time, or behind the event of a resume token: one of the two."""

    time: Timestamp | None = None
    token: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        if self.token is None:
            assert self.time is not None
            return f"t{hexed(self.time).lower()}"
        data = self.token.get("_data")
        if len(self.token) == 1 and isinstance(data, str) and re.fullmatch("[0-9A-F]+", data):
            return data
        return f"b{_packed(self.token)}"

    @property
    def reached(self) -> Timestamp | None:
        """Return the cluster time of the place, if it is known.

        >>> MongoPosition(token={"_data": "826AFA902A000000032B0429296E1404"}).reached
        Timestamp(1794805802, 3)
        """
        if self.token is None:
            return self.time
        found = re.match("82([0-9A-F]{8})([0-9A-F]{8})", str(self.token.get("_data")))
        return Timestamp(int(found[1], 16), int(found[2], 16)) if found else None


class CollectionProgress(NamedTuple):
    """Progress of a snapshot: the collection, and the `_id` of its last row; `last` is NOTHING before the first."""

    collection: str
    last: Any


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Final = _Nothing()


class MongoCursor(NamedTuple):
    """A place on a server, and the progress of the snapshot that was started there."""

    server: str
    place: MongoPosition
    progress: CollectionProgress | None = None

    @classmethod
    def parse(cls, text: str) -> "MongoCursor":
        """Parse a cursor; raise CursorInvalid for an invalid one, CursorForeign for one of another kind of source."""
        found = _FORM.fullmatch(text)
        if found is None:
            kind = re.match(r"([a-z]+)1_", text)
            if kind and kind[1] != KIND:
                raise CursorForeign(f"{text[:80]!r} is a cursor of another source: {kind[1]}", fix=_FIX)
            raise _invalid(text)
        try:
            place = MongoPosition(
                _time(found["time"]) if found["time"] else None,
                {"_data": found["data"]} if found["data"] else _unpacked(found["token"]) if found["token"] else None,
            )
            progress = None
            if found["progress"]:
                held = _unpacked(found["progress"])
                progress = CollectionProgress(held["c"], held.get("i", NOTHING))
                if type(progress.collection) is not str:
                    raise _invalid(text)
        except (ValueError, KeyError, BSONError):
            raise _invalid(text) from None
        return cls(found["server"], place, progress)

    def __str__(self) -> str:
        text = f"mongo1_{self.server}_{self.place}"
        if self.progress is None:
            return text
        held = {"c": self.progress.collection}
        if self.progress.last is not NOTHING:
            held["i"] = self.progress.last
        return f"{text}+{_packed(held)}"


def hexed(time: Timestamp) -> str:
    """Return a cluster time as 16 hex digits, which sort in the same order.

    >>> hexed(Timestamp(1794805802, 3))
    '6AFA902A00000003'
    """
    return f"{time.time:08X}{time.inc:08X}"


def following(time: Timestamp) -> Timestamp:
    """Return the next cluster time.

    >>> following(Timestamp(7, 4294967295))
    Timestamp(8, 0)
    """
    return Timestamp(time.time, time.inc + 1) if time.inc < 0xFFFFFFFF else Timestamp(time.time + 1, 0)


def _time(digits: str) -> Timestamp:
    return Timestamp(int(digits[:8], 16), int(digits[8:], 16))


def _packed(document: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(bson.encode(document, codec_options=CODEC)).decode().rstrip("=")


def _unpacked(text: str) -> dict[str, Any]:
    return bson.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), CODEC)


def _invalid(text: str) -> CursorInvalid:
    return CursorInvalid(f"{text[:80]!r} is not a cursor of a MongoDB source", fix=_FIX)
