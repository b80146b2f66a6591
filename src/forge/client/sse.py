"""Parser for server-sent events: bytes in, split anywhere; events out.

Lines end with CR, LF or both. An event without data is not returned, but its id counts. An event that is incomplete at
the end of the stream is not returned either.
"""

from typing import Final, NamedTuple

_BOM: Final = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """An event; `id` is the last id of the stream so far, empty if there was none."""

    name: str
    data: bytes
    id: str


class Parser:
    r"""Parse one stream.

    >>> parser = Parser()
    >>> parser.feed(b"event: update\r\ndata: {\r")
    []
    >>> parser.feed(b"\ndata: }\r\nid: 7\r\n\r\n: a comment\n")
    [ServerSentEvent(name='update', data=b'{\n}', id='7')]
    """

    def __init__(self) -> None:
        self.last_id = ""
        """The id of the last event, including events without data."""
        self._cut: list[bytes] = []
        self._after_cr = False
        self._first = True
        self._name = ""
        self._data: list[bytes] = []
        self._id = ""

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that end in this piece."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
            self._after_cr = False
        found: list[ServerSentEvent] = []
        for line in piece.splitlines(keepends=True):
            self._after_cr = line.endswith(b"\r")
            if not line.endswith((b"\n", b"\r")):
                self._cut.append(line)
                continue
            self._cut.append(line.rstrip(b"\r\n"))
            whole = b"".join(self._cut)
            self._cut.clear()
            if self._first:
                self._first, whole = False, whole.removeprefix(_BOM)
            if whole:
                self._field(whole)
            elif (event := self._end()) is not None:
                found.append(event)
        return found

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")

    def _end(self) -> ServerSentEvent | None:
        name, data = self._name, self._data
        self._name, self._data, self.last_id = "", [], self._id
        joined = b"\n".join(data)
        return ServerSentEvent(name or "message", joined, self.last_id) if joined else None
