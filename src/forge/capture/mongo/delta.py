"""Apply an update to the document before it. In: the row before and `updateDescription`. Out: the row after.

Paths have dots and numbers; the document decides which of these are names and which are steps. If that is ambiguous (a
field whose name has a dot), there is no answer.

>>> before = {"_id": 1, "a": [1, {"b": 2}, 3], "c": 4}
>>> applied(before, {"updatedFields": {"a.1.b": 5}, "removedFields": ["c"],
...     "truncatedArrays": [{"field": "a", "newSize": 2}]})
{'_id': 1, 'a': [1, {'b': 5}]}
>>> before
{'_id': 1, 'a': [1, {'b': 2}, 3], 'c': 4}
>>> applied({"_id": 1, "a.b": 1, "a": {"b": 2}}, {"updatedFields": {"a.b": 3}}) is None
True
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from forge.capture.mongo.codecs import form


class _Doubtful(Exception):
    """A path that is ambiguous in the document."""


def applied(before: Mapping[str, Any], description: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the row after an update, or None if it is unknown; unchanged values are shared with `before`."""
    after = dict(before)
    try:
        for cut in description.get("truncatedArrays") or ():
            _at(after, cut["field"].split("."), partial(_cut, cut["newSize"]))
        for path, value in description.get("updatedFields", {}).items():
            _at(after, path.split("."), partial(_set, form(value)))
        for path in description.get("removedFields", ()):
            _at(after, path.split("."), _remove)
    except _Doubtful:
        return None
    return after


def touched(description: Mapping[str, Any]) -> set[str]:
    """Return the top-level fields that an update changed.

    >>> sorted(touched({"updatedFields": {"a.1.b": 5, "x": 1}, "removedFields": ["c"]}))
    ['a', 'c', 'x']
    """
    paths = [
        *description.get("updatedFields", ()),
        *description.get("removedFields", ()),
        *(cut["field"] for cut in description.get("truncatedArrays") or ()),
    ]
    return {path.partition(".")[0] for path in paths}


def _at(place: Any, steps: Sequence[str], act: Callable[[Any, Any], None]) -> None:
    """Act on the last step of a path; copy every container on the way."""
    first = _step(place, steps)
    if len(steps) == 1:
        act(place, first)
        return
    try:
        inner = place[first]
    except (KeyError, IndexError):
        raise _Doubtful from None
    if type(inner) is dict:
        inner = dict(inner)
    elif type(inner) is list:
        inner = list(inner)
    else:
        raise _Doubtful
    place[first] = inner
    _at(inner, steps[1:], act)


def _step(place: Any, steps: Sequence[str]) -> Any:
    if type(place) is list:
        if not steps[0].isdigit():
            raise _Doubtful
        return int(steps[0])
    if any(".".join(steps[:length]) in place for length in range(2, len(steps) + 1)):
        raise _Doubtful
    return steps[0]


def _set(value: Any, place: Any, step: Any) -> None:
    if type(place) is list and step >= len(place):
        place.extend([None] * (step - len(place) + 1))
    place[step] = value


def _remove(place: Any, step: Any) -> None:
    if type(place) is list or step not in place:
        raise _Doubtful
    del place[step]


def _cut(size: int, place: Any, step: Any) -> None:
    array = place[step] if type(place) is list or step in place else None
    if type(array) is not list:
        raise _Doubtful
    place[step] = array[:size]
