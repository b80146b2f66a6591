"""What a client sends costs memory and time in proportion to its bytes, whatever it is and wherever it goes.

Inputs are a beginning, a part that is repeated up to thousands of times, and an end, so that what grows faster than its
input shows. Each entry is given such a text as a client would send it and answers or refuses with an error of Forge's.
"""

import contextlib
import json
import time
import tracemalloc
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine
from datetime import datetime
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import jwt
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.requests import Request

from forge.conditions.canonical import ColumnType
from forge.conditions.tree import All, AnyOf, Compare, Parameter
from forge.cursor import After, Cursor, LogIdentity, Snapshot
from forge.errors import ForgeError
from forge.history.instants import instant
from forge.history.tracked import in_order, key_of
from forge.react.analyses import Analyses, kinds
from forge.react.database import Db, bound_reads
from forge.react.readset import ReadAnalysis, TableRead
from forge.react.registry import ANYONE, Auth, Registry
from forge.react.result import encode
from forge.serve import feed, http, ws
from forge.serve.auth import Authenticator, AuthSettings, TokenIdentity, bearer
from forge.serve.channels import Channels
from forge.serve.once import IdempotentCall
from forge.serve.permissions import permissions
from forge.serve.session import Session
from forge.versions.nouns import Resource
from forge.versions.pages import VersionsQuery, opened
from forge.wire import decode_value, encode_value

MOST_BYTES = 64 * 1024
SECRET = "a secret of thirty-two characters!"


async def anything(ctx: Any, x: Any = None, y: Any = None) -> Any:
    """Takes whatever is sent."""


async def typed(
    ctx: Any, n: int = 0, d: Decimal = Decimal(0), t: datetime | None = None, many: list[float] | None = None
) -> Any:
    """Takes values of types."""


REGISTRY = Registry()
REGISTRY.query(anything)
REGISTRY.query(typed)
STATEMENT = "SELECT id FROM orders WHERE id = %(x)s AND n = ANY (%(y)s) AND '%%(z)s' <> ''"
CONDITION = All((Compare("id", "=", Parameter("x")), AnyOf("n", Parameter("y"))))
TYPES = [ColumnType(name) for name in ("integer", "numeric", "double precision", "text", "uuid", "bytea", "date")]
TYPES += [ColumnType("timestamp with time zone"), ColumnType("timestamp without time zone"), ColumnType("boolean")]


def called(name: str, text: str) -> None:
    """The way of arguments from a request to the statement, to what it read and to a result."""
    arguments = http._decoded(text.encode(errors="surrogatepass"))
    call = REGISTRY.call(name, arguments, ANYONE)
    db = Db(SimpleNamespace(cursor=lambda **_: None), call.arguments)  # type: ignore[arg-type]
    _, values = db._statement(STATEMENT, None, {})
    assert set(values) <= {"x", "y"}
    hash(kinds(values))
    for type in TYPES:
        read = TableRead("public", "orders", frozenset({"id"}), CONDITION)
        bound_reads(ReadAnalysis((read,), {("public", "orders"): {"id": type, "n": type}}), values)
    IdempotentCall("key", name, call.arguments, ANYONE)
    encode(list(call.arguments.values()))


def typed_argument(name: str, text: str) -> None:
    called("typed", f'{{"{name}":{text}}}')


def subscribed(text: str) -> None:
    message = ws._message(text)
    REGISTRY.call(message.query or "anything", message.args, ANYONE)


def published(text: str) -> None:
    """A message of a channel, up to where it is handed to the bus."""
    message = ws._message(text)
    said: list[bytes] = []

    async def publish(kind: str, payload: Any) -> None:
        said.append(msgspec.json.encode(payload))

    bus: Any = SimpleNamespace(on=lambda *_: None, while_up=lambda *_: None, on_gap=[], id="n", publish=publish)
    channels = Channels(bus)
    session = Session(TokenIdentity(ANYONE), "", time.time)
    done(channels.join(session, "room"))
    done(channels.publish(session, "room", message.data))
    msgspec.json.decode(said[-1])


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError("it waits")


AUTHENTICATOR = Authenticator(AuthSettings(algorithms=("HS256",), secret=SECRET))


def authenticated(header: dict[str, str]) -> None:
    permissions(done(AUTHENTICATOR.verify(bearer(header))).auth.claims)


def signed(text: str) -> None:
    token = jwt.PyJWS().encode(text.encode(errors="surrogatepass"), SECRET, algorithm="HS256")
    authenticated({"authorization": f"Bearer {token}"})


def asked(text: str) -> None:
    headers = [(b"last-event-id", text.encode("latin-1", "replace"))]
    feed._asked(Request({"type": "http", "query_string": b"table=orders&op=insert", "headers": headers}))


def seen(text: str) -> None:
    """A snapshot of a client's cursor is held against every change that is read."""
    snapshot = Snapshot.parse(text)
    for xid in (*range(snapshot.xmin, min(snapshot.xmax, snapshot.xmin + len(text))), *snapshot.running * 2):
        snapshot.sees(xid)
    snapshot.covers(snapshot)


def decoded(text: str) -> None:
    with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
        value = msgspec.json.decode(text)
        with contextlib.suppress(RecursionError):
            encode_value(decode_value(value))


LOG = str(LogIdentity("6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11", "7310000000000000001", 1))
ENTRIES: dict[str, Callable[[str], object]] = {
    "arguments": lambda text: called("anything", text),
    "typed arguments": lambda text: called("typed", text),
    "argument": lambda text: called("anything", '{"x":' + text + "}"),
    **{f"argument {name}": partial(typed_argument, name) for name in ("n", "d", "t", "many")},
    "text argument": lambda text: called("anything", json.dumps({"x": text, "y": [text]})),
    "websocket message": ws._message,
    "subscription": lambda text: subscribed('{"type":"subscribe","query":"anything","args":{"x":' + text + "}}"),
    "channel message": lambda text: published('{"type":"publish","channel":"room","data":' + text + "}"),
    "cursor": lambda text: Cursor.parse(f"forge1_{LOG}_{text}"),
    "snapshot": seen,
    "after": After.parse,
    "last event id": asked,
    "page token": lambda text: opened(b"k" * 32, VersionsQuery("changes", 7, None), text),
    "resource": Resource.parse,
    "idempotency key": lambda text: IdempotentCall(text, "pay", {}, Auth(user="ada")),
    "key of a row": lambda text: (key_of(text), in_order(text)),
    "instant": lambda text: (instant(text), http._instant(text)),
    "trace": http._trace,
    "authorization": lambda text: authenticated({"authorization": text}),
    "token": lambda text: authenticated({"authorization": f"Bearer {text}"}),
    "token's header": lambda text: authenticated(
        {"authorization": f"Bearer {urlsafe_b64encode(text.encode(errors='replace')).decode().rstrip('=')}.e30.AA"}
    ),
    "token's claims": signed,
    "origin": lambda text: http.check_origin(
        Headers({"host": "a", "origin": text.encode("utf-8", "replace").decode("latin-1")}), ()
    ),
    "wire value": decoded,
}

PARTS = st.sampled_from(
    [
        *("[", "]", "{", "}", '{"$":', '{"a":', "},", "],", ",", "[]", "{},", '"', '"\\', "\\u0000", "\\", " ", "\t"),
        *("1", "9", "0.", "1e9", "1e999999999,", "-", "1e-999999999", '"1e999999999",', "null,", "true,", "12:", "_"),
        *("5:9:6,", ":", "7,", "~7,", ".", "..", "=", "a=1,", "%", "%(x)s", "é", "\ud800", "\0", "A", "a-", "/", " · "),
        *(
            "e30.",
            "P9999D",
            "9999-12-31T23:59:59+",
            "d ago",
            '"x":[',
            "'",
            "''",
            "$object",
            '{"$numeric":"1E9999999"},',
        ),
    ]
)
WORDS = st.lists(PARTS, max_size=4).map("".join)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A beginning, something over and over, an end over and over."""
    count = draw(st.sampled_from([1, 2, 20, 24, 150, 199, 300, 1000, 5000, 20_000]))
    unit, closing = draw(WORDS), draw(WORDS)
    return (draw(WORDS) + unit * count + draw(WORDS) + closing * count + draw(WORDS))[:MOST_BYTES]


def numbered(count: int) -> str:
    """A snapshot with so many transactions under way."""
    return f"1:{2 * count + 3}:{','.join(str(2 * number + 1) for number in range(count))}"


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=30)
@given(text=texts())
@example(text="[" * 20 + "]" * 20)
@example(text="[" * 150 + "]" * 150)
@example(text="[" * 5000 + "]" * 5000)
@example(text='{"a":' * 150 + "1" + "}" * 150)
@example(text='{"$a":' * 150 + "1" + "}" * 150)
@example(text='{"x":' + "[" * 150 + '"\\\\",' * 8000 + "1" + "]" * 150 + "}")
@example(text="[" + "[]," * 20_000 + "[]]")
@example(text="[" + "{}," * 20_000 + "{}]")
@example(text="9" * MOST_BYTES)
@example(text='"' + "9" * 4000 + '"')
@example(text="1e999999999")
@example(text='"1e999999999"')
@example(text='"-1e-999999999"')
@example(text=numbered(9000))
@example(text=f"{numbered(4500)}_{numbered(4500)}_1.1")
def test_costs_in_proportion_to_its_bytes(entry: str, text: str) -> None:
    size = len(text.encode(errors="replace"))
    if tracemalloc.is_tracing():
        tracemalloc.stop()
    tracemalloc.start()
    began = time.thread_time()
    try:
        with contextlib.suppress(ForgeError):
            ENTRIES[entry](text)
        took, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 512 * 1024 + 200 * size, f"{size} bytes took {peak} bytes of memory"
    assert took < 0.5 + 20e-6 * size, f"{size} bytes took {took:.2f} s"


@given(st.lists(st.integers(1, 60), unique=True).map(sorted), st.lists(st.integers(1, 60), unique=True).map(sorted))
def test_a_snapshot_sees_what_is_not_under_way(running: list[int], others: list[int]) -> None:
    snapshot, older = Snapshot(1, 50, tuple(x for x in running if x < 50)), Snapshot(1, 40, tuple(others[:10]))
    for xid in range(1, 70):
        assert snapshot.sees(xid) == (xid < 50 and xid not in running)
    unseen = {xid for xid in range(1, 70) if older.sees(xid) and not snapshot.sees(xid)}
    assert snapshot.covers(older) == (not unseen)


def test_bound_parameters_are_those_that_the_statement_names() -> None:
    db = Db(SimpleNamespace(cursor=lambda **_: None), {"id": 1, "other": [[]]})  # type: ignore[arg-type]
    assert db._statement("SELECT %(id)s, '%%(other)s'", None, {"more": 2}) == ("SELECT %(id)s, '%%(other)s'", {"id": 1})
    assert db._statement("SELECT 1", None, {}) == ("SELECT 1", {})
    assert db._statement("SELECT %s", [7], {}) == ("SELECT %s", [7])


def test_analyses_are_bounded_in_number_and_text() -> None:
    analyses, nothing = Analyses(most=3, most_characters=100), ReadAnalysis((), {})
    for number in range(5):
        analyses.put((f"SELECT {number}", None, ()), nothing)
        assert analyses.get(("SELECT 0", None, ())) is nothing
    assert len(analyses) == 3
    assert analyses.get(("SELECT 1", None, ())) is None, "it was asked longest ago"
    analyses.put(("x" * 90, None, ()), nothing)
    assert (len(analyses), analyses.characters) == (2, 98)
    analyses.put(("x" * 101, None, ()), nothing)
    assert (len(analyses), analyses.characters) == (0, 0)
