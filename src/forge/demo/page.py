"""The shop's page in front of its application, and the web server of both.

The page's files are in `static/`: `/` is its frame, `/shop/*` the rest. They need no build step; their only import from
Forge is `/forge/client.js`, which every server has.
"""

import asyncio
import contextlib
import mimetypes
import os
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from forge.errors import ServerError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from forge.app import Forge

PORT: Final = 8710
POLICY: Final = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';" + (
    " frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)


def unavailable() -> str | None:
    """Return why there can be no page here, or None when there can."""
    for needed in ("starlette", "uvicorn"):
        if find_spec(needed) is None:
            return f"no page: {needed} is not installed; pip install 'forge-changes[serve]'"
    if not (files("forge.serve") / "static" / "client.js").is_file():
        return "no page: what it imports is not built; make setup (with Node 20 or newer)"
    return None


def listen(port: int | None) -> socket.socket:
    """Return a socket on this port of the loopback; by default on the usual port, or on any if that is taken."""
    for number in (PORT, 0) if port is None else (port,):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", number))
    raise ServerError(f"port {port} is taken", fix="forge demo without --port takes a free one")


class ShopPage:
    """An ASGI application: the page's files, and for all other paths the shop's application."""

    def __init__(self, app: "Forge") -> None:
        self.app = app
        found = {f"/shop/{file.name}": file.read_bytes() for file in (files("forge.demo") / "static").iterdir()}
        self._files = {"/": found["/shop/index.html"], **found}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        body = self._files.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if body is None:
            await self.app(scope, receive, send)
            return
        kind, _ = mimetypes.guess_type(scope["path"])
        headers = {
            "content-type": f"{kind or 'text/html'}; charset=utf-8",
            "content-length": str(len(body)),
            "content-security-policy": POLICY,
            "x-content-type-options": "nosniff",
            "cache-control": "no-cache",
        }
        head = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(page: ShopPage, listening: socket.socket) -> AsyncIterator[str]:
    """Serve the page while the block lasts; yield its address."""
    import uvicorn

    class DemoServer(uvicorn.Server):
        """Leave signals to the demo."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    options: dict[str, Any] = {"ws": "websockets-sansio", "access_log": False, "log_level": "warning"}
    server = DemoServer(uvicorn.Config(page, timeout_graceful_shutdown=2, server_header=False, **options))
    task = asyncio.get_running_loop().create_task(server.serve([listening]))
    try:
        while not server.started:
            if task.done():
                await task
                raise ServerError("the shop's page cannot be served", fix="forge demo --no-page")
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        if (node := page.app.asgi().node) is not None:
            node.farewell()
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        listening.close()


def has_screen() -> bool:
    """Whether the user of this process would see a browser that is opened here."""
    if os.environ.get("SSH_CONNECTION") or not sys.stdout.isatty():
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def show(url: str) -> bool:
    """Open the page in the browser, where there is one."""
    return has_screen() and webbrowser.open(url)
