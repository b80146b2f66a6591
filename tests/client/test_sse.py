"""The reader of server-sent events: however the bytes are cut, the same events come out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.client.sse import Parser, ServerSentEvent
from forge.serve.messages import sse

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)
NAMES = TEXTS.filter(bool)
DATA = st.lists(TEXTS, min_size=1, max_size=4).map("\n".join).filter(bool)
EVENTS = st.lists(st.tuples(NAMES, DATA, TEXTS), max_size=4)
STREAM = (
    b"\xef\xbb\xbf: hello\r\n\r\nevent: update\r\nid: 7\r\ndata: {\r\ndata:  1\r\ndata\r\ndata: }\r\n\r\n"
    b"data:x\rid\r\r: ping\n\nretry: 10\nevent: bye\ndata: {}\n\nevent: cut\ndata: off"
)
READ = [
    ServerSentEvent("update", b"{\n 1\n\n}", "7"),
    ServerSentEvent("message", b"x", ""),
    ServerSentEvent("bye", b"{}", ""),
]


def read(*pieces: bytes) -> list[ServerSentEvent]:
    parser = Parser()
    return [event for piece in pieces for event in parser.feed(piece)]


def test_a_stream_cut_at_any_byte_reads_the_same() -> None:
    assert read(STREAM) == READ
    for cut in range(len(STREAM) + 1):
        assert read(STREAM[:cut], STREAM[cut:]) == READ


def test_a_stream_that_comes_byte_by_byte_reads_the_same() -> None:
    assert read(*(STREAM[place : place + 1] for place in range(len(STREAM)))) == READ


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@given(events=EVENTS, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_what_the_server_writes_is_read(end: bytes, events: list[tuple[str, str, str]], cuts: list[int]) -> None:
    written = b": \n\n" + b"".join(sse(name, data.encode(), id) + b": \n\n" for name, data, id in events)
    stream = written.replace(b"\n", end)
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    expected, last = [], ""
    for name, data, id in events:
        last = id or last
        expected.append(ServerSentEvent(name, data.encode(), last))
    assert read(*(stream[left:right] for left, right in pairwise(places))) == expected


def test_an_event_without_data_is_none_but_its_id_counts() -> None:
    parser = Parser()
    assert parser.feed(b"id: 9\nevent: x\n\n") == []
    assert parser.last_id == "9"
    assert parser.feed(b"id: 1\0\ndata: y\n\n") == [ServerSentEvent("message", b"y", "9")]


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_can_be_read_and_cut(stream: bytes, cut: int) -> None:
    assert read(stream) == read(stream[:cut], stream[cut:])
