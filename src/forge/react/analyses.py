"""Cache of statement analyses, and the key under which the types of a statement's parameters are told apart."""

from collections import OrderedDict
from collections.abc import Hashable, ItemsView, Mapping
from datetime import datetime, time
from typing import Any, Final

from forge.react.database import Parameters
from forge.react.readset import ReadAnalysis

_Asked = tuple[str, str | None, Hashable]
"""A statement, the role that runs it, and the types of its parameters."""
MOST_ANALYSES: Final = 10_000
"""Maximum number of statements whose reads are remembered."""
MOST_ANALYSED: Final = 8 * 1024 * 1024
"""Maximum total length of those statements, in characters."""


class Analyses:
    """LRU cache of statement analyses, limited by number and by total text length."""

    def __init__(self, most: int = MOST_ANALYSES, most_characters: int = MOST_ANALYSED) -> None:
        self._most = most
        self._most_characters = most_characters
        self._known: OrderedDict[_Asked, ReadAnalysis] = OrderedDict()
        self.characters = 0

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> ItemsView[_Asked, ReadAnalysis]:
        return self._known.items()

    def get(self, asked: _Asked) -> ReadAnalysis | None:
        known = self._known.get(asked)
        if known is not None:
            self._known.move_to_end(asked)
        return known

    def put(self, asked: _Asked, analysis: ReadAnalysis) -> None:
        """Store an analysis; the least recently used ones are dropped to make room."""
        if asked not in self._known:
            self.characters += len(asked[0])
        self._known[asked] = analysis
        self._known.move_to_end(asked)
        while len(self._known) > self._most or self.characters > self._most_characters:
            (statement, _, _), _ = self._known.popitem(last=False)
            self.characters -= len(statement)

    def clear(self) -> None:
        self._known.clear()
        self.characters = 0


def kinds(parameters: Parameters) -> Hashable:
    """Return a key of what decides the types that psycopg sends for parameters.

    >>> kinds({"id": 7}) == kinds({"id": 8}), kinds([[1]]) == kinds([["a"]]), kinds([1]) == kinds([2**40])
    (True, False, False)
    """
    if isinstance(parameters, Mapping):
        return frozenset((name, _kind(value)) for name, value in parameters.items())
    return tuple(map(_kind, parameters))


def _kind(value: Any) -> Hashable:
    """Return the type of a value. For an array: the set of its members' types, at any depth."""
    if not isinstance(value, (list, tuple)):
        return _plain_kind(value)
    members: set[Hashable] = set()
    inner: list[Any] = [value]
    while inner:
        for member in inner.pop():
            if isinstance(member, (list, tuple)):
                members.add(type(member))
                inner.append(member)
            else:
                members.add(_plain_kind(member))
    return type(value), frozenset(members)


def _plain_kind(value: Any) -> Hashable:
    if type(value) is int:
        return f"int{sum(abs(value) >= 1 << bits for bits in (15, 31, 63))}"
    if isinstance(value, (datetime, time)):
        return type(value), value.tzinfo is None
    kind: type = type(value)
    return kind
