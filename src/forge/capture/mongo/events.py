"""Convert events of a change stream into changes.

insert, update, replace and delete are changes of a row. A dropped collection has lost its rows: `truncate`. So has a
renamed one, and the rows under its new name are not known one by one: `truncate` and `invalidate`. The others
(`dropDatabase`, which follows the drop of each collection, and `invalidate`, which ends a stream that the source opens
again) do not concern rows.

Images of an update and a delete:

- With a pre-image, `before` is it, and `after` is the result of the update: both are exact.
- Without one, `after` is the document as it was looked up, which may be newer than the event, and `before` is the same
  with UNAVAILABLE for what the update touched. If the document was gone at lookup, only its `_id` and what the update
  set are known; a field that is not in the image then is unknown.
- The `before` of a replacement without a pre-image has UNAVAILABLE for each field of `after`, that of a delete only
  the `_id`.

A change's id consists of the event's cluster time and its resume token, so it is the same each time it is read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from forge.capture.mongo.codecs import CODEC, form, row
from forge.capture.mongo.cursor import KIND, hexed
from forge.capture.mongo.delta import applied, touched
from forge.change import UNAVAILABLE, Change, ChangeSource, Op

Event = Mapping[str, Any]


class Fragments:
    """Joins events that a server has split because they were too large.

    >>> fragments = Fragments()
    >>> fragments.joined([{"_id": {"_data": "8201" "2904"}, "splitEvent": {"fragment": 1, "of": 2}, "a": 1}])
    []
    >>> fragments.waiting, fragments.behind
    (True, None)
    >>> fragments.joined([{"_id": {"_data": "8201" "2B0204"}, "splitEvent": {"fragment": 2, "of": 2}, "b": 2}])
    [{'_id': {'_data': '820104'}, 'a': 1, 'b': 2}]
    >>> fragments.waiting, fragments.behind
    (False, {'_data': '82012B0204'})
    """

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self.behind: Mapping[str, Any] | None = None
        """The token behind the last complete event."""

    @property
    def waiting(self) -> bool:
        """Tell whether an event has started and has not ended."""
        return bool(self._parts)

    def joined(self, batch: Sequence[Event]) -> Sequence[Event]:
        """Return the complete events of a reply."""
        if not self._parts and not any("splitEvent" in event for event in batch):
            if batch:
                self.behind = batch[-1]["_id"]
            return batch
        found = []
        for part in batch:
            event = self._whole(part)
            if event is not None:
                found.append(event)
                self.behind = part["_id"]
        return found

    def _whole(self, event: Event) -> Event | None:
        split = event.get("splitEvent")
        if split is None:
            return event
        if split["fragment"] == 1:
            self._parts = {**event, "_id": _unsplit(event["_id"])}
        else:
            self._parts |= {name: value for name, value in event.items() if name != "_id"}
        if split["fragment"] < split["of"]:
            return None
        joined, self._parts = self._parts, {}
        del joined["splitEvent"]
        return joined


def _unsplit(token: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the token that the event would have without the split: a first fragment adds a zero before the end."""
    data = token.get("_data")
    if isinstance(data, str) and data.endswith("2904"):
        return {**token, "_data": f"{data[:-4]}04"}
    return token


class MongoEvents:
    """Converts the events of one database into changes."""

    def __init__(self, name: str, database: str) -> None:
        self._name = name
        self._database = database

    def changes(self, events: Iterable[Event]) -> list[Change]:
        """Return the changes of events; none for an event that does not concern rows."""
        made: list[Change] = []
        for event in events:
            found = _ROWS.get(event["operationType"])
            if found is None:
                made += self._of_a_collection(event)
                continue
            op, images = found
            before, after = images(event)
            ns = event["ns"]
            at, mark, source = self._where(event)
            key = {"_id": form(event["documentKey"]["_id"])}
            made.append(Change(mark, op, ns["db"], ns["coll"], source, at, key, before, after))
        return made

    def _of_a_collection(self, event: Event) -> list[Change]:
        kind = event["operationType"]
        if kind == "drop":
            return [self._whole(event, Op.TRUNCATE, event["ns"])]
        if kind == "rename":
            return [
                self._whole(event, op, place, end)
                for op, place, end in (
                    (Op.TRUNCATE, event["ns"], "-from"),
                    (Op.INVALIDATE, event["to"], "-to"),
                )
                if place["db"] == self._database
            ]
        return []

    def read(self, collection: str, document: Mapping[str, Any], time: Timestamp) -> Change:
        """Convert a document of a snapshot that was taken at a cluster time."""
        identity = document["_id"]
        mark = blake2b(collection.encode() + bson.encode({"": identity}, codec_options=CODEC), digest_size=8)
        digits = hexed(time)
        return Change(
            f"{digits}-{mark.hexdigest()}",
            Op.READ,
            self._database,
            collection,
            ChangeSource(KIND, self._name, f"{digits}~"),
            datetime.fromtimestamp(time.time, UTC),
            {"_id": form(identity)},
            None,
            row(document),
        )

    def _whole(self, event: Event, op: Op, place: Mapping[str, str], end: str = "") -> Change:
        at, mark, source = self._where(event)
        return Change(mark + end, op, place["db"], place["coll"], source, at)

    def _where(self, event: Event) -> tuple[datetime, str, ChangeSource]:
        """Return time, id and position: the token, which sorts as events do and begins with its time."""
        data = event["_id"].get("_data")
        if type(data) is str and data[:2] == "82":
            digits, position = data[2:18], data[2:]
        else:
            digits = hexed(event["clusterTime"])
            data = bson.encode(event["_id"], codec_options=CODEC).hex()
            position = f"{digits}.{data}"
        mark = blake2b(data.encode(), digest_size=8).hexdigest()
        number = event.get("txnNumber")
        transaction = digits if number is None else f"{event['lsid']['id']}:{number}"
        at = event.get("wallTime")
        if type(at) is not datetime:
            at = datetime.fromtimestamp(event["clusterTime"].time, UTC)
        return at, f"{digits}-{mark}", ChangeSource(KIND, self._name, position, transaction)


_Images = tuple[dict[str, Any] | None, dict[str, Any] | None]


def _inserted(event: Event) -> _Images:
    return None, row(event["fullDocument"])


def _deleted(event: Event) -> _Images:
    return row(event.get("fullDocumentBeforeChange") or event["documentKey"]), None


def _replaced(event: Event) -> _Images:
    after = row(event["fullDocument"])
    image = event.get("fullDocumentBeforeChange")
    return (dict.fromkeys(after, UNAVAILABLE) | row(event["documentKey"]) if image is None else row(image)), after


def _updated(event: Event) -> _Images:
    description = event["updateDescription"]
    image, found = event.get("fullDocumentBeforeChange"), event.get("fullDocument")
    if image is not None:
        before = row(image)
        after = applied(before, description)
        if after is not None:
            return before, after
    after = row(event["documentKey"]) | _set_whole(description) if found is None else row(found)
    if image is None:
        before = after | dict.fromkeys(sorted(touched(description)), UNAVAILABLE)
    return before, after


def _set_whole(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the fields that an update touched: those that it set, and the others UNAVAILABLE."""
    removed = {path for path in description.get("removedFields", ()) if "." not in path}
    fields: dict[str, Any] = dict.fromkeys(sorted(touched(description) - removed), UNAVAILABLE)
    return fields | row(
        {path: value for path, value in description.get("updatedFields", {}).items() if "." not in path}
    )


_ROWS: Final[dict[str, tuple[Op, Callable[[Event], _Images]]]] = {
    "insert": (Op.INSERT, _inserted),
    "update": (Op.UPDATE, _updated),
    "replace": (Op.UPDATE, _replaced),
    "delete": (Op.DELETE, _deleted),
}
