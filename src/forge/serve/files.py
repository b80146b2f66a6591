"""Static files for browsers: the client, `/forge/client.js`, and the console's page, `/console/`.

They are built from `clients/` into `static/`. Every path is looked up among the existing files, so a request cannot
name any other file. The page may load only from this server, no page may frame it, and it has no cookies.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from forge.errors import Forbidden
from forge.serve.http import failure
from forge.serve.node import Node
from forge.serve.permissions import admit, local

STATIC: Final = Path(__file__).parent / "static"
HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Headers of every response below `/console`."""
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
_BUILD: Final = (
    "It has not been built.\nfix: run make setup, or npm run build in clients/, and start the server again\n"
)


class StaticFile(NamedTuple):
    """A file ready to send."""

    body: bytes
    kind: str
    tag: str


async def client(request: Request) -> Response:
    """GET /forge/client.js"""
    found = built().get("client.js")
    if found is None:
        return Response(f"The browser's client is not here. {_BUILD}", 404, media_type="text/plain")
    headers = {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "cross-origin"}
    return _sent(request, found, {**headers, "access-control-allow-origin": "*"})


async def console(node: Node, request: Request) -> Response:
    """GET /console, /console/ and below. The page has no data, but a caller who could see none with it is refused."""
    options = node.options
    try:
        admit("the console", options.console, local=local(request), secured=options.auth is not None)
    except Forbidden as error:
        return _secured(failure(error))
    path = request.path_params.get("path")
    if path is None:
        return _secured(RedirectResponse("console/", 307))
    found = built().get(f"console/{path or 'index.html'}")
    if found is not None:
        kept = "public, max-age=31536000, immutable" if path.startswith("assets/") else "no-cache"
        return _sent(request, found, {**HEADERS, "cache-control": kept})
    text = f"The console is not here. {_BUILD}" if "console/index.html" not in built() else "There is no such file.\n"
    return _secured(Response(text, 404, media_type="text/plain"))


@cache
def built() -> Mapping[str, StaticFile]:
    """Return all files by their path in `static`; they are read once."""
    return {
        path.relative_to(STATIC).as_posix(): _read(path) for path in sorted(STATIC.rglob("*")) if path.suffix in _KINDS
    }


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(body, _KINDS[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _sent(request: Request, file: StaticFile, headers: Mapping[str, str]) -> Response:
    told = {"cache-control": "no-cache", **headers, "etag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=told)
    return Response(file.body, headers=told, media_type=file.kind)


def _secured(response: Response) -> Response:
    response.headers.update({**HEADERS, "cache-control": "no-store"})
    return response
