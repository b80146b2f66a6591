"""Thousands of clients of server-sent events in one process: plain sockets that are only ever read.

They count messages, or note when each `"sent":…` that they had not seen before arrived: the difference is how long it
took from the writer to here. What is cut in two by the network is put together again before it is looked at.
"""

import re
import select
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final

import msgspec

from benchmarks.process import Child, child, many_files, question, reply
from benchmarks.served import now

_AT_ONCE: Final = 64
"""Requests that wait for their answer while clients are being connected."""
_SENT: Final = re.compile(rb'"sent":(\d+)')
_END: Final = b"\n\n"


class Client(msgspec.Struct, frozen=True):
    """What one client asks for."""

    path: str
    token: str | None = None


class Connecting(msgspec.Struct, frozen=True):
    """Whom to connect to, and with what."""

    port: int
    clients: list[Client]


class Count(msgspec.Struct, frozen=True, tag=True):
    """Count what arrives within some seconds."""

    seconds: float


class Counted(msgspec.Struct, frozen=True):
    """How many messages arrived, in how many seconds, and what the last of them looks like on the wire."""

    messages: int
    seconds: float
    sample: str


class Time(msgspec.Struct, frozen=True, tag=True):
    """Wait for so many values, some seconds at the most."""

    values: int
    seconds: float


class Timed(msgspec.Struct, frozen=True):
    """How many values arrived, and after how many milliseconds."""

    values: int
    p50: float
    p95: float
    p99: float


class Clients:
    """The process, as its starter sees it."""

    def __init__(self, process: Child) -> None:
        self.process = process

    def count(self, seconds: float) -> None:
        """Count from now on; `counted` has the result."""
        self.process.tell(msgspec.to_builtins(Count(seconds)))

    def counted(self) -> Counted:
        return msgspec.convert(self.process.answer(), Counted)

    def time(self, values: int, seconds: float) -> None:
        """Time what arrives from now on; `timed` has the result."""
        self.process.tell(msgspec.to_builtins(Time(values, seconds)))

    def timed(self) -> Timed:
        return msgspec.convert(self.process.answer(), Timed)


@contextmanager
def connected(port: int, clients: Sequence[Client]) -> Iterator[Clients]:
    """Clients that have all got their first event."""
    with child("benchmarks.clients", msgspec.to_builtins(Connecting(port, list(clients)))) as (process, _):
        yield Clients(process)


def percentile(ordered: Sequence[float], share: float) -> float:
    """
    >>> [percentile([1, 2, 3, 4], share) for share in (0, 0.5, 0.95)]
    [1, 3, 4]
    """
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("inf")


def split(data: bytes) -> tuple[bytes, bytes]:
    r"""The whole messages at the beginning, and what is left.

    >>> split(b"event: a\n\nevent: b\n\n\r\nev")
    (b'event: a\n\nevent: b\n\n', b'\r\nev')
    """
    cut = data.rfind(_END) + len(_END)
    return (b"", data) if cut < len(_END) else (data[:cut], data[cut:])


class _Sockets:
    """All the connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        self._newest: dict[int, int] = {}
        self._room = memoryview(bytearray(262_144))
        self.waiting: set[int] = set()
        self.messages = 0
        self.sample = b""
        self.taken: array[float] = array("d")

    def connect(self, client: Client) -> None:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        bearer = f"Authorization: Bearer {client.token}\r\n" if client.token else ""
        made.sendall(f"GET {client.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n".encode())
        made.setblocking(False)
        number = made.fileno()
        self._sockets[number], self._tails[number], self._newest[number] = made, b"", 0
        self.waiting.add(number)
        self._epoll.register(number, select.EPOLLIN)

    def read(self, patience: float, *, looking: bool) -> None:
        """Take in what there is; with `looking`, note when values came that are new."""
        for number, _ in self._epoll.poll(patience):
            size = self._sockets[number].recv_into(self._room)
            if not size:
                raise RuntimeError("the server ended a stream")
            data = self._tails[number] + self._room[:size]
            if data.startswith(b"HTTP/") and b" 200 " not in data[:16]:
                raise RuntimeError(f"refused: {data[:500].decode()}")
            whole, self._tails[number] = split(data)
            if not whole:
                continue
            self.messages += whole.count(_END)
            if number in self.waiting:
                self._first(number, whole)
            if looking:
                self._look(number, whole)
            elif b"\nevent: update" in whole:
                self.sample = whole[: whole.index(_END) + len(_END)]

    def _first(self, number: int, whole: bytes) -> None:
        if b"\nid: " in whole:
            self.waiting.discard(number)
            self._newest[number] = max(map(int, _SENT.findall(whole)), default=0)

    def _look(self, number: int, whole: bytes) -> None:
        arrived = now()
        known = newest = self._newest[number]
        for value in set(map(int, _SENT.findall(whole))):
            if value > known:
                self.taken.append((arrived - value) / 1000)
                newest = max(newest, value)
        self._newest[number] = newest


def main() -> None:
    """Connect all, then do what is asked."""
    many_files()
    what = msgspec.convert(question(), Connecting)
    sockets = _Sockets(what.port)
    for client in what.clients:
        sockets.connect(client)
        while len(sockets.waiting) >= _AT_ONCE:
            sockets.read(1.0, looking=False)
    while sockets.waiting:
        sockets.read(1.0, looking=False)
    reply("ready")
    while True:
        asked = msgspec.convert(question(), Count | Time)
        sockets.read(0, looking=False)
        reply(msgspec.to_builtins(_count(sockets, asked) if isinstance(asked, Count) else _time(sockets, asked)))


def _count(sockets: _Sockets, asked: Count) -> Counted:
    sockets.messages, sockets.sample = 0, b""
    start = perf_counter()
    while (taken := perf_counter() - start) < asked.seconds:
        sockets.read(0.05, looking=False)
    return Counted(sockets.messages, taken, sockets.sample.decode("latin-1"))


def _time(sockets: _Sockets, asked: Time) -> Timed:
    sockets.taken = array("d")
    end = perf_counter() + asked.seconds
    while len(sockets.taken) < asked.values and perf_counter() < end:
        sockets.read(0.05, looking=True)
    found = sorted(sockets.taken)
    return Timed(len(found), percentile(found, 0.5), percentile(found, 0.95), percentile(found, 0.99))


if __name__ == "__main__":
    main()
