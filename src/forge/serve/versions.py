"""Changes since a version, over HTTP: for documents that depend on each other.

    GET /versions/available, or of one resource with ?resource=project/name
    GET /versions/{project}/{resource}?minChangeVersion=98000&maxChangeVersion=99120&limit=100&pageToken=…
    GET /versions/{project}/{resource}/deletes, /keyChanges, /stream, with the same parameters

With tokens, a caller needs the permission that `Options.versions` names: alone for all resources, or followed by
`:project` or `:project/resource` for these. A resource by access shows a token what its subject has access to, and
nothing to a caller without a user name. A window that starts before the journals is 410, with the oldest version that
they have. A page ends before it exceeds the size limit of a result, unless it has one item, and has a `next`; if the
estimate is wrong, because of long names around small items, it is 413.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from forge.errors import (
    AuthFailed,
    BadArguments,
    DocumentUnreadable,
    Forbidden,
    ForgeError,
    TokenInvalid,
    TooLarge,
    UnknownResource,
    VersionsMissing,
    WindowExpired,
    WindowInvalid,
)
from forge.postgres.connection import Connection
from forge.react.registry import Auth
from forge.serve.auth import TokenIdentity, bearer
from forge.serve.http import as_json, status
from forge.serve.messages import error_fields
from forge.serve.node import Node
from forge.serve.permissions import permissions
from forge.serve.slow_queries import Answer, asked
from forge.versions.available import available
from forge.versions.nouns import DEFAULT_VERSION, Page, Resource, encode
from forge.versions.reading import LIMIT, changes, deletes, key_changes, standing, stream
from forge.versions.sync.source import install_id
from forge.versions.wire import told

MOST: Final = 1_000
"""Maximum number of items per page."""

Query = Callable[..., Page[Any]]
QUERIES: Final[Mapping[str, Query]] = {"": changes, "/deletes": deletes, "/keyChanges": key_changes, "/stream": stream}
"""The queries of a resource, by the end of their path."""

_STATUS: Final[Mapping[type[ForgeError], int]] = {
    WindowInvalid: 400,
    TokenInvalid: 400,
    UnknownResource: 404,
    VersionsMissing: 404,
    WindowExpired: 410,
    DocumentUnreadable: 500,
}


async def versions_available(node: Node, request: Request) -> Response:
    """GET /versions/available"""
    name = request.query_params.get("resource")
    try:
        resource = None if name is None else Resource.parse(name)
    except UnknownResource as error:
        return _failure(error)

    def ask(connection: Connection, auth: Auth) -> Answer:
        found = available(connection)
        about: Answer = {"install": install_id(connection), "subject": subject(auth)}
        if resource is not None:
            about["epoch"] = standing(connection, resource).epoch
        return {"oldest": found.oldest, "newest": found.newest, **about}

    return await _answered(node, request, resource, ask)


async def versions_page(node: Node, query: Query, request: Request) -> Response:
    """GET /versions/{project}/{resource}, and the paths below it"""
    given = request.query_params
    named = request.path_params
    resource = Resource(named["project"], named["resource"], given.get("resourceVersion") or DEFAULT_VERSION)

    def ask(connection: Connection, auth: Auth) -> Answer:
        page = query(
            connection,
            resource,
            _number("minChangeVersion", given.get("minChangeVersion")),
            _number("maxChangeVersion", given.get("maxChangeVersion")),
            after=given.get("pageToken"),
            limit=_limit(given.get("limit")),
            subject=lambda by_access: _seen_by(resource, auth) if by_access else None,
            max_bytes=node.reactor.settings.max_result_bytes,
        )
        return {"items": [told(item) for item in page.items], "next": page.next, "epoch": page.epoch}

    return await _answered(node, request, resource, ask)


async def _answered(
    node: Node, request: Request, resource: Resource | None, ask: Callable[[Connection, Auth], Answer]
) -> Response:
    try:
        identity = await node.identify(bearer(request.headers))
        check(node, identity, resource)
        less = "ask for less: a smaller limit, a shorter window"
        most = node.reactor.settings.max_result_bytes
        body = await asked(
            node.threads,
            node.reactor.url,
            "versions",
            lambda connection: _body(ask(connection, identity.auth), most),
            less=less,
        )
        return as_json(body)
    except ForgeError as error:
        return _failure(error)


def _body(answer: Answer, most: int) -> bytes:
    """Encode an answer as JSON. A page is cut when it is read; the names around its items may make it larger."""
    body = encode(answer).encode()
    if len(body) > most and len(answer.get("items", ())) > 1:
        raise TooLarge(f"the page has more than {most} bytes", fix="ask for a smaller limit")
    return body


def _failure(error: ForgeError) -> Response:
    """Return the error response; for a window before the journals, with the oldest version that they have."""
    body: Answer = {"error": error_fields(error)}
    if isinstance(error, WindowExpired):
        body["oldest"] = error.oldest
    headers = {"www-authenticate": "Bearer"} if isinstance(error, AuthFailed) else {}
    return as_json(body, _STATUS.get(type(error)) or status(error), headers)


def check(node: Node, identity: TokenIdentity, resource: Resource | None) -> None:
    """Raise Forbidden unless the token permits the resource; without a resource, unless it permits any."""
    wanted = node.options.versions
    if wanted is None:
        raise Forbidden("change versions are closed here", fix="set versions to the permission that opens them")
    if node.options.auth is None:
        return
    granted = permissions(identity.auth.claims)
    if resource is None:
        found = any(word == wanted or word.startswith(f"{wanted}:") for word in granted)
    else:
        names = (resource.project, f"{resource.project}/{resource.name}")
        found = bool(granted & {wanted, *(f"{wanted}:{name}" for name in names)})
    if not found:
        what = wanted if resource is None else f"{wanted}, or {wanted}:{resource.project}/{resource.name}"
        raise Forbidden("the token does not permit to see these changes", fix=f"have the issuer grant {what}")


def subject(auth: Auth) -> str | None:
    """Return the subject of grants: a user, within the tenant if the token has one. A slash in a name becomes %2F.

    >>> subject(Auth(user="ada")), subject(Auth(user="ada", tenant="acme")), subject(Auth(user="acme/ada"))
    ('ada', 'acme/ada', 'acme%2Fada')
    """
    if auth.user is None:
        return None
    parts = (auth.user,) if auth.tenant is None else (auth.tenant, auth.user)
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def _seen_by(resource: Resource, auth: Auth) -> str:
    """Return the subject that the answer is for, of a resource by access."""
    who = subject(auth)
    if who is None:
        raise Forbidden(f"{resource} is shown by access, and nobody is named", fix="send a token that names a user")
    return who


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 19 or int(value) >= 2**63:
        raise BadArguments(f"{name} cannot be {value[:25]!r}", fix="use a version, a whole number from 0 on")
    return int(value)


def _limit(value: str | None) -> int:
    found = LIMIT if value is None else _number("limit", value)
    if found is None or not 1 <= found <= MOST:
        raise BadArguments(f"limit cannot be {found}", fix=f"use 1 to {MOST}")
    return found
