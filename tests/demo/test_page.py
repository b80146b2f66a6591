"""The demo's page: where it is served, when a browser is opened for it, and what it lets a browser load."""

import socket
from typing import Any

import pytest

from forge.demo import page
from forge.errors import ServerError


def test_a_port_that_is_named_is_taken_or_refused_and_else_any_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {taken} is taken"):
            page.listen(taken)
        monkeypatch.setattr(page, "PORT", taken)
        with page.listen(None) as found:
            assert found.getsockname()[1] not in (taken, 0)
    with page.listen(taken) as found:
        assert found.getsockname() == ("127.0.0.1", taken)


@pytest.mark.parametrize(
    ("terminal", "variables", "expected"),
    [
        (True, {"DISPLAY": ":0"}, True),
        (True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (True, {}, False),
        (False, {"DISPLAY": ":0"}, False),
        (True, {"DISPLAY": ":0", "SSH_CONNECTION": "elsewhere"}, False),
    ],
    ids=["x11", "wayland", "no screen", "no terminal", "far away"],
)
def test_a_browser_is_opened_where_somebody_sees_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], expected: bool
) -> None:
    opened: list[str] = []

    def opening(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("webbrowser.open", opening)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert page.show("http://127.0.0.1:8710") is expected
    assert opened == (["http://127.0.0.1:8710"] if expected else [])


@pytest.mark.parametrize("path", ["/", "/shop/counter.html", "/shop/shared.js", "/shop/shop.css", "/shop/mark.svg"])
async def test_its_files_are_served_with_a_strict_policy(path: str) -> None:
    status, headers, body = await asked(path)
    assert status == 200
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert int(headers["content-length"]) == len(body) > 0
    assert "<script>" not in body.decode()
    assert "https://" not in body.decode()


async def test_all_else_is_the_applications() -> None:
    for path in ("/forge/client.js", "/shop/", "/shop/../app.py", "/console"):
        assert await asked(path) == (0, {}, path.encode())


async def asked(path: str) -> tuple[int, dict[str, str], bytes]:
    """What the page answers, or the application behind it, with the path as its body."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 0, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async def receive() -> Any:
        raise AssertionError("nothing is to be received")

    async def send(message: Any) -> None:
        sent.append(message)

    await page.ShopPage(app)({"type": "http", "method": "GET", "path": path}, receive, send)  # type: ignore[arg-type]
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]
