"""For which hosts a server answers where there are no tokens: a page whose own name leads here gets nothing."""

import ipaddress
import json
import re
import warnings
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from forge.app import SERVE_FLAGS
from forge.errors import ConfigError, Forbidden
from forge.postgres.connection import Connection
from forge.serve.node import Options
from forge.serve.permissions import check_host, same_origin
from tests.serve.serving import Served, serving
from tests.serve.test_http import SECURED, application, bearing, shop

__all__ = ["shop"]

EVIL = {"host": "evil.example:8710", "origin": "http://evil.example:8710"}
"""What a browser sends for a page of that name, once the name leads to this machine."""
STREAMS = ("/forge/changes?from=start", "/forge/live/ours", "/forge/session")
READS = (
    "/versions/available",
    "/versions/ed-fi/students",
    "/versions/ed-fi/students/deletes",
    "/forge/history/orders/1",
    "/forge/audit",
    "/forge/openapi.json",
    "/forge/client.js",
    "/console",
    "/console/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/nowhere",
)
WRITES = (
    "/forge/query/ours",
    "/forge/query/forge.tables",
    "/forge/mutation/pay",
    "/forge/session/x/subscribe",
    "/forge/session/x/unsubscribe",
    "/forge/session/x/auth",
)


def refused(answer: httpx.Response) -> bool:
    """Whether it is refused for its host, with what to do about it."""
    if answer.status_code != 403:
        return False
    error = answer.json()["error"]
    return error["code"] == "forbidden" and "the host" in error["message"] and "allowed_hosts" in error["fix"]


async def status(served: Served, **headers: str) -> int:
    return (await served.post("/forge/query/ours", {}, headers=headers)).status_code


async def test_a_page_whose_name_leads_here_gets_nothing_and_one_of_another_site_cannot_write(
    database: str, shop: Connection
) -> None:
    async with serving(application(database)) as served:
        for path in (*STREAMS, *READS):
            assert refused(await served.client.get(path, headers=EVIL)), path
        for path in WRITES:
            assert refused(await served.post(path, {"id": 1}, headers=EVIL)), path
        assert refused(await served.client.options("/forge/mutation/pay", headers=EVIL))
        here = served.url.removeprefix("http://")
        others = (
            "https://evil.example",
            "null",
            "http://127.0.0.1:1",
            f"x://{here}",
            f"//{here}",
            f"evil+http://{here}",
        )
        for origin in others:  # a page of another site, for this host
            answer = await served.post("/forge/mutation/pay", {"id": 1}, headers={"origin": origin})
            assert (answer.status_code, "origins" in answer.text) == (403, True), origin
        assert shop.execute("SELECT status FROM orders WHERE id = 1").fetchone() == ("placed",)
        assert not served.node.sessions


async def test_origins_that_are_allowed_do_not_open_other_hosts(database: str, shop: Connection) -> None:
    async with serving(application(database, origins=("*",))) as served:
        for path in STREAMS:
            assert refused(await served.client.get(path, headers=EVIL)), path
        assert refused(await served.post("/forge/mutation/pay", {"id": 1}, headers=EVIL))


async def open_socket(served: Served, host: str, *, origin: str | None = None) -> dict[str, Any]:
    """The first event of a WebSocket that is opened for a host."""
    port = int(served.url.rpartition(":")[2])
    headers = {"origin": origin} if origin else {}
    url = f"ws://{host}/forge/ws"
    async with connect(url, host="127.0.0.1", port=port, additional_headers=headers, proxy=None) as socket:
        event: dict[str, Any] = json.loads(await socket.recv())
        return event


async def test_the_handshake_of_a_websocket_is_refused_with_the_reason(database: str, shop: Connection) -> None:
    async with serving(application(database)) as served:
        for host, origin, said in (
            ("evil.example:8710", "http://evil.example:8710", "allowed_hosts"),
            ("127.0.0.1", "https://evil.example", "origins"),
            ("127.0.0.1", "null", "origins"),
        ):
            with pytest.raises(InvalidStatus) as answered:
                await open_socket(served, host, origin=origin)
            response = answered.value.response
            assert (response.status_code, said in (response.body or b"").decode()) == (403, True)
        assert (await open_socket(served, "localhost:8710"))["event"] == "session"


async def test_hosts_of_this_machine_and_allowed_ones_are_answered(
    database: str, shop: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVE_FLAGS, json.dumps({"host": "forge.internal"}))  # forge serve --host forge.internal
    async with serving(application(database, allowed_hosts=("shop.example", "10.0.0.7"))) as served:
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.8.9.10:80", "[::1]:8710", "forge.internal:8710"):
            assert await status(served, host=host) == 200, host
        for host in ("shop.example", "Shop.Example.:443", "10.0.0.7:8710"):
            assert await status(served, host=host) == 200, host
        for host in (
            "a.shop.example",
            "10.0.0.8",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil",
            "[::1]evil.example",
            "[::1].evil.example:80",
            "[127.0.0.1]",
            "127.0.0.1:80:80",
            "localhost:99999",
            "*",
        ):
            assert await status(served, host=host) == 403, host
        assert (await open_socket(served, "shop.example"))["event"] == "session"


async def test_with_tokens_any_host_may_lead_here(database: str, shop: Connection) -> None:
    """A proxy in front of a server has a name of its own, and a page has no token of its visitor's."""
    async with serving(application(database, **SECURED)) as served:
        public = {"host": "shop.example", "x-forwarded-for": "192.0.2.7"}
        assert await status(served, **public, **bearing("ada")) == 200
        assert await status(served, **public) == 401
        assert (await served.client.get("/healthz", headers=public)).status_code == 200


PIECES = st.sampled_from(
    [
        "localhost",
        "127.0.0.1",
        "::1",
        "[::1]",
        "[",
        "]",
        ":",
        ":80",
        ".",
        "@",
        "/",
        "%",
        "evil.example",
        "0",
        " ",
        "\x85",
    ]
)


@example("[::1]evil.example")
@example("[::1]:80evil")
@example("localhost:٣")
@given(st.lists(PIECES, max_size=5).map("".join) | st.text())
def test_nothing_of_a_host_is_left_out_of_what_is_checked(host: str) -> None:
    """What is answered for is, to the letter, an own name or address, in brackets where it has colons, and a port."""

    def answered() -> bool:
        scope = {"type": "http", "headers": [(b"host", host.encode("latin-1", "replace"))], "server": ("10.0.0.7", 80)}
        try:
            check_host(HTTPConnection(scope), ("shop.example",))
        except Forbidden:
            return False
        return True

    name, _, port = host.rpartition(":") if re.search(r":[0-9]*$", host) else (host, "", "")
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") and ":" in name else name
    plain = bare.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        ours = plain in ("localhost", "shop.example")
    else:
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        ours = (mapped or address).is_loopback or str(mapped or address) == "10.0.0.7"
        ours = ours and (bare != name) == (address.version == 6)
    assert answered() == (ours and len(port) <= 5 and int(port or 0) <= 65535)


@example("x://shop.example")
@example("https://shop.example/")
@given(st.text() | st.text().map("{}://shop.example".format) | st.text().map("https://shop.example{}".format))
def test_an_origin_is_of_the_host_only_as_browsers_write_it(origin: str) -> None:
    assert same_origin(origin, "shop.example") is (origin in ("http://shop.example", "https://shop.example"))


@pytest.mark.parametrize(
    ("here", "host", "answered"),
    [
        ("10.0.0.7", "10.0.0.7:8710", True),
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("fd00::7", "[fd00:0:0::7]:8710", True),
        ("10.0.0.7", "10.0.0.8:8710", False),
        ("10.0.0.7", "10.0.0.7.evil.example", False),
        ("10.0.0.7", "", False),
        ("", "", False),
        (None, "evil.example", False),
        ("/run/forge.sock", "evil.example", False),
    ],
)
def test_the_address_that_a_request_came_in_at_is_answered_for(here: str | None, host: str, answered: bool) -> None:
    """As web servers say it: of one that listens on 0.0.0.0, the address that the connection was made to."""
    server = None if here is None else (here, 8710)
    connection = HTTPConnection({"type": "http", "headers": [(b"host", host.encode())], "server": server})
    if answered:
        check_host(connection, ())
    else:
        with pytest.raises(Forbidden):
            check_host(connection, ())


def test_a_test_client_needs_no_setting(database: str, shop: Connection) -> None:
    """What calls the application without a network says that it listens at the name it asks for."""
    with warnings.catch_warnings():  # that it is to be used with another HTTP client
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient
    with TestClient(application(database)) as client:
        assert client.post("/forge/query/ours", json={}).status_code == 200
        assert client.post("/forge/query/ours", json={}, headers=EVIL).status_code == 403
        with client.websocket_connect("/forge/ws") as socket:
            assert socket.receive_json()["event"] == "session"


@pytest.mark.parametrize("name", ["origins", "allowed_hosts"])
def test_one_text_is_not_taken_for_its_letters(name: str) -> None:
    given: dict[str, Any] = {name: "*.shop.example"}
    with pytest.raises(ConfigError, match=f"{name} is a tuple of texts"):
        Options(**given)
