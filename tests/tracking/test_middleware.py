"""A request's write is in the log with who asked, by which route, in which trace; and with no other request's."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest
from flask import Flask, Response, stream_with_context
from opentelemetry import context as otel
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from psycopg.conninfo import conninfo_to_dict
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

import forge
from forge.errors import ContextError
from forge.postgres.connection import Connection
from forge.tracking.current import NOTHING, Current
from forge.tracking.middleware import ContextMiddleware, WsgiContextMiddleware, route_of, user_value

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    connection.execute("INSERT INTO orders SELECT n, 'placed' FROM generate_series(1, 20) n")
    connection.execute("SELECT public.forge_enable_reactivity('orders')")
    return connection


def logged(shop: Connection) -> dict[str, Current]:
    """The context of each order's update, by its id."""
    rows = shop.execute(
        "SELECT new_data ->> 'id', user_id, function_name, trace_id, context FROM public.forge_events"
        " WHERE operation = 'UPDATE'"
    ).fetchall()
    return {key: Current(user, function, trace, more or {}) for key, user, function, trace, more in rows}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parent(trace: int) -> str:
    return f"00-{trace:032x}-00f067aa0ba902b7-01"


def client(web: Any, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(web, **options), base_url="http://test")


async def seen(request: Request) -> JSONResponse:
    return JSONResponse(forge.current().user_id)


async def whole(request: Request) -> JSONResponse:
    now = forge.current()
    return JSONResponse([now.user_id, now.function_name, now.trace_id, dict(now.more)])


async def test_the_starlette_example(shop: Connection, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    web = example("starlette_app").web
    async with web.router.lifespan_context(web), client(web) as http:
        answers = await asyncio.gather(
            *(
                http.post(
                    f"/orders/{n}/pay", auth=(f"user-{n}", "x"), headers={"traceparent": f"00-{n:032x}-{n:016x}-01"}
                )
                for n in range(1, 11)
            ),
            http.post("/orders/11/pay"),
        )
    assert [answer.json() for answer in answers] == [{"paid": 1}] * 11
    route = "POST /orders/{order_id:int}/pay"
    assert logged(shop) == {
        **{str(n): Current(f"user-{n}", route, f"{n:032x}", {"order": n}) for n in range(1, 11)},
        "11": Current(None, route, None, {"order": 11}),
    }


def test_the_flask_example(shop: Connection, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database)
    app = example("flask_app").app
    with app.test_client() as http:
        paid = http.post("/orders/7/pay", auth=("ada", "x"), headers={"traceparent": PARENT})
        assert (paid.status_code, paid.json) == (200, {"paid": 1})
        assert http.post("/orders/8/pay").json == {"paid": 1}
    route = "POST /orders/<int:order_id>/pay"
    assert logged(shop) == {
        "7": Current("ada", route, TRACE, {"order": 7}),
        "8": Current(None, route, None, {"order": 8}),
    }
    assert forge.current() == NOTHING


DJANGO = """
import asyncio, sys
sys.path.insert(0, {examples!r})
import django_app as app
from django.db import connection, transaction
from django.test import AsyncClient, Client, RequestFactory
from django.core.handlers.asgi import ASGIHandler
from django.core.exceptions import SynchronousOnlyOperation
import forge
from forge.tracking.django import watch

Order = app.Order
auth = {{"authorization": "Basic YWRhOng=", "traceparent": {parent!r}}}
assert Client().post("/orders/1/pay", headers=auth).json() == {{"paid": 1}}
assert Client().post("/orders/2/pay").json() == {{"paid": 1}}

async def asynchronous():
    answer = await AsyncClient().post("/orders/3/pay", headers=auth)
    assert answer.json() == {{"paid": 1}}

asyncio.run(asynchronous())


def update(key):
    Order.objects.filter(pk=key).update(status="x")

update(4)
with forge.context(user_id="job", batch=9):
    update(5)
    with transaction.atomic():
        assert Order.objects.count() == 20
        update(6)
        with forge.context(user_id="inner"):
            update(7)
        update(8)
        try:
            with transaction.atomic():
                with forge.context(user_id="undone"):
                    update(9)
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        update(10)
    with transaction.atomic():
        try:
            with transaction.atomic():
                update(9)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        update(11)
with transaction.atomic():
    update(12)
connection.close()
watch()
with forge.context(user_id="again"):
    update(13)
assert len(connection.execute_wrappers) == 1
"""


def test_the_django_example(shop: Connection, database: str) -> None:
    """In a process of its own, since Django's settings are the process's."""
    found = conninfo_to_dict(database)
    names = {"dbname": "NAME", "host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    variables = {f"DATABASE_{names[key]}": str(value) for key, value in found.items() if key in names}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DJANGO.format(examples=str(EXAMPLES), parent=PARENT)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    route = "POST /orders/<int:order_id>/pay"
    job = Current("job", None, None, {"batch": 9})
    assert logged(shop) == {
        "1": Current("ada", route, TRACE),
        "2": Current(None, route),
        "3": Current("ada", route, TRACE),
        "4": NOTHING,
        "5": job,
        "6": job,
        "7": Current("inner", None, None, {"batch": 9}),
        "8": job,
        "10": job,
        "11": job,
        "12": NOTHING,
        "13": Current("again"),
    }


async def test_no_header_says_who_it_is_unless_it_is_named() -> None:
    headers = {"x-user": "mallory", "user": "mallory", "remote-user": "mallory", "authorization": "Bearer mallory"}
    web = Starlette(routes=[Route("/", whole)])
    async with client(ContextMiddleware(web)) as http:
        assert (await http.get("/", headers=headers)).json() == [None, "GET /", None, {}]
    async with client(ContextMiddleware(web, user_header="X-User")) as http:
        assert (await http.get("/", headers=headers)).json()[0] == "mallory"
        assert (await http.get("/")).json()[0] is None
        assert (await http.get("/", headers=[("x-user", "a"), ("x-user", "b")])).json()[0] is None
    with pytest.raises(TypeError, match="give one"):
        ContextMiddleware(web, user=lambda scope: 1, user_header="x-user")


async def test_what_a_callable_finds_is_asked_for_once_and_only_when_needed() -> None:
    asked = []

    def user(scope: Any) -> int:
        asked.append(scope["path"])
        assert forge.current().user_id is None  # whoever is asked may use the database itself
        return 7

    async def twice(request: Request) -> JSONResponse:
        return JSONResponse([forge.current().user_id, forge.current().user_id])

    async def idle(request: Request) -> JSONResponse:
        return JSONResponse("idle")

    web = Starlette(routes=[Route("/twice", twice), Route("/idle", idle)])
    async with client(ContextMiddleware(web, user=user, more=lambda scope: {"ip": scope["client"][0]})) as http:
        assert (await http.get("/twice")).json() == ["7", "7"]
        await http.get("/idle")
    assert asked == ["/twice"]


async def test_a_user_that_the_log_cannot_hold_stops_the_write(shop: Connection) -> None:
    async def write(request: Request) -> JSONResponse:
        with forge.transaction(shop):
            shop.execute("UPDATE orders SET status = 'x' WHERE id = 1")
        return JSONResponse("done")

    web = ContextMiddleware(Starlette(routes=[Route("/", write)]), user=lambda scope: "x" * 300)
    async with client(web) as http:
        with pytest.raises(ContextError, match="255"):
            await http.get("/")
    assert logged(shop) == {}


async def test_routes_of_mounts_and_wrapped_middleware_are_known() -> None:
    async def through(request: Request, call_next: Callable[[Request], Any]) -> Any:
        return await call_next(request)

    inner = Starlette(routes=[Route("/items/{id}", whole)])
    web = Starlette(routes=[Mount("/shop", app=inner), Mount("/raw", app=whole_raw)])
    web.add_middleware(BaseHTTPMiddleware, dispatch=through)
    web.add_middleware(forge.ContextMiddleware)
    async with client(web, root_path="/proxy") as http:
        assert (await http.get("/proxy/shop/items/5", headers={"traceparent": PARENT})).json() == [
            None,
            "GET /shop/items/{id}",
            TRACE,
            {},
        ]
        assert (await http.get("/proxy/raw/x")).json() == "GET /raw"


async def whole_raw(scope: Any, receive: Any, send: Any) -> None:
    await JSONResponse(forge.current().function_name)(scope, receive, send)


def test_an_endpoint_names_itself_where_no_route_is_known() -> None:
    assert route_of({}) is None
    assert route_of({"endpoint": whole}) == f"{__name__}.whole"


@pytest.mark.parametrize("header", ["", "00-zz", PARENT.upper(), f"ff-{TRACE}-00f067aa0ba902b7-01", PARENT + "x"])
async def test_a_malformed_traceparent_is_no_trace(header: str) -> None:
    async with client(ContextMiddleware(Starlette(routes=[Route("/", whole)]))) as http:
        assert (await http.get("/", headers={"traceparent": header})).json()[2] is None


async def test_opentelemetrys_span_goes_before_the_header() -> None:
    async def spanned(request: Request) -> JSONResponse:
        span = NonRecordingSpan(SpanContext(0xABC, 1, is_remote=False, trace_flags=TraceFlags(1)))
        token = otel.attach(set_span_in_context(span))
        try:
            return await whole(request)
        finally:
            otel.detach(token)

    async with client(ContextMiddleware(Starlette(routes=[Route("/", spanned)]))) as http:
        assert (await http.get("/", headers={"traceparent": PARENT})).json()[2] == f"{0xABC:032x}"


async def test_requests_at_once_and_their_background_tasks_see_only_their_own() -> None:
    together = asyncio.Barrier(20)
    after: dict[str, str | None] = {}
    tasks: list[asyncio.Task[None]] = []

    async def later(name: str) -> None:
        await together.wait()
        after[name] = forge.current().user_id

    async def handle(request: Request) -> JSONResponse:
        name = request.path_params["name"]
        request.scope["user"] = name  # as an authentication that runs within does
        await together.wait()
        found = await asyncio.to_thread(lambda: forge.current().user_id)
        tasks.append(asyncio.create_task(later(f"task of {name}")))
        return JSONResponse(found, background=BackgroundTask(later, name))

    web = ContextMiddleware(Starlette(routes=[Route("/{name}", handle)]))
    names = [f"u{n}" for n in range(10)]
    async with asyncio.timeout(20), client(web) as http:
        fillers = [asyncio.create_task(together.wait()) for _ in names]
        answers = await asyncio.gather(*(http.get(f"/{name}") for name in names))
        await asyncio.gather(*fillers, *tasks)
    assert [answer.json() for answer in answers] == names
    assert after == {**{name: name for name in names}, **{f"task of {name}": name for name in names}}
    assert forge.current() == NOTHING


async def test_websockets_have_a_context_and_lifespan_has_none() -> None:
    at_start: list[Current] = []

    @asynccontextmanager
    async def lifespan(web: Starlette) -> AsyncIterator[None]:
        at_start.append(forge.current())
        yield

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(f"{forge.current().user_id} {forge.current().function_name}")
        await websocket.close()

    web = Starlette(routes=[WebSocketRoute("/ws/{room}", socket)], lifespan=lifespan)
    web.add_middleware(forge.ContextMiddleware, user=lambda scope: "ada")
    scope = {"type": "websocket", "path": "/ws/1", "query_string": b"", "headers": []}
    sent = await exchanged(web, scope, [{"type": "websocket.connect"}])
    assert sent[1]["text"] == "ada WEBSOCKET /ws/{room}"
    await exchanged(web, {"type": "lifespan"}, [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    assert at_start == [NOTHING]


async def exchanged(web: Any, scope: dict[str, Any], messages: list[dict[str, str]]) -> list[Any]:
    """What an application sends when it receives these messages."""
    sent: list[Any] = []
    waiting = iter(messages)

    async def receive() -> dict[str, str]:
        return next(waiting)

    async def send(message: Any) -> None:
        sent.append(message)

    await web(scope, receive, send)
    return sent


def test_a_streamed_wsgi_response_is_made_in_the_requests_context() -> None:
    app = Flask(__name__)

    @app.get("/numbers")
    def numbers() -> Response:
        def parts() -> Iterator[str]:
            yield f"{forge.current().user_id} "
            yield f"{forge.current().function_name}"

        return Response(stream_with_context(parts()))

    closed: list[str | None] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"x"])

        def close(self) -> None:
            closed.append(forge.current().user_id)

    def raw(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        return Body()

    app.wsgi_app = forge.WsgiContextMiddleware(app.wsgi_app)  # type: ignore[method-assign]
    with app.test_client() as http:
        assert http.get("/numbers", environ_base={"REMOTE_USER": "ada"}).text == "ada GET /numbers"
        assert http.get("/numbers", headers={"Remote-User": "mallory"}).text == "None GET /numbers"
    body = WsgiContextMiddleware(raw, user_header="X-User")({"HTTP_X_USER": "bob"}, lambda *_: None)
    assert list(body) == [b"x"]
    body.close()  # type: ignore[attr-defined]
    assert closed == ["bob"]
    assert forge.current() == NOTHING


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, None),
        ("", None),
        (0, 0),
        (UUID(int=3), UUID(int=3)),
        (SimpleNamespace(is_authenticated=False, id=7), None),
        (SimpleNamespace(is_authenticated=True, id=7), 7),
        (SimpleNamespace(identity="sub"), "sub"),
        (SimpleNamespace(id=None, display_name="Ada"), "Ada"),
    ],
)
def test_who_an_object_stands_for(user: Any, expected: Any) -> None:
    assert user_value(user) == expected
