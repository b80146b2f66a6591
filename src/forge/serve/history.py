"""History over HTTP, for permitted callers: the changes of a row, and an audit of who changed what.

    GET /forge/history/{table}/{key}?limit=50&before=…&at=2026-11-10T09:00Z
    GET /forge/audit?user=ada&table=orders&op=delete&since=1d&until=…&by=user,table&limit=50&before=…

Both are closed unless a token has the permission that `Options.history` names, in its claim `scope`, `scp` or
`permissions`. A token with a tenant sees only rows that belonged to that tenant before and after each change, and the
actors only by the rule of `forge.changelog.tenancy`; without a tenant column, it sees nothing. Values of columns that
are excluded or masked, or were when they were dropped, are never in an answer. A page of large rows ends early, so an
answer never exceeds the limit of `forge.history.timeline`, unless a single change does.
"""

from collections.abc import Callable
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from forge.change import Op
from forge.changelog.tenancy import Tenant, owns, readable
from forge.errors import AuthFailed, BadArguments, Forbidden, ForgeError, HistoryUnavailable, TrackingError
from forge.history.asof import row_as_of
from forge.history.audit import AuditFilter, audit, counts
from forge.history.instants import instant, instant_or_now
from forge.history.timeline import LIMIT, MOST, timeline
from forge.history.tracked import key_of
from forge.postgres.connection import Connection
from forge.serve.auth import TokenIdentity, bearer
from forge.serve.http import as_json, status
from forge.serve.messages import error_fields
from forge.serve.node import Node
from forge.serve.permissions import permissions
from forge.serve.slow_queries import Answer, asked
from forge.wire import encode_row, timestamp


async def history(node: Node, request: Request) -> Response:
    """GET /forge/history/{table}/{key}"""

    def ask(connection: Connection, tenant: Tenant | None) -> Answer:
        given = request.query_params
        table, key = request.path_params["table"], key_of(request.path_params["key"])
        if (at := given.get("at")) is not None:
            past = row_as_of(connection, table, key, instant_or_now(at))
            own = tenant is None or (readable(past.columns, tenant.column) and owns(tenant, past.row))
            gap = past.gap if tenant is None else past.gap.untold()
            return {"table": past.table, **gap.wire(), "row": encode_row(past.row if own else None)}
        limit, before = _limit(given.get("limit"), MOST), given.get("before") or None
        page = timeline(connection, table, key, limit=limit, before=before, tenant=tenant)
        entries = [entry.wire() for entry in page.entries]
        return {"table": page.table, "key": encode_row(page.key), "entries": entries, "next": page.next}

    return await _answered(node, request, ask)


async def audited(node: Node, request: Request) -> Response:
    """GET /forge/audit"""

    def ask(connection: Connection, tenant: Tenant | None) -> Answer:
        given = request.query_params
        choice = AuditFilter(
            given.get("user"),
            given.get("table"),
            tuple(map(_op, given.getlist("op"))),
            given.get("trace"),
            _instant(given.get("since")),
            _instant(given.get("until")),
            tenant,
        )
        limit = _limit(given.get("limit"), MOST)
        if by := given.get("by"):
            found = counts(connection, choice, by=by.split(","), limit=limit)
            return {"counts": [count.wire() for count in found]}
        page = audit(connection, choice, limit=limit, before=given.get("before") or None)
        return {"entries": [entry.wire() for entry in page.entries], "next": page.next}

    return await _answered(node, request, ask)


async def _answered(node: Node, request: Request, ask: Callable[[Connection, Tenant | None], Answer]) -> Response:
    try:
        tenant = allowed(node, await node.identify(bearer(request.headers)))
        less = "ask for less: a table, a shorter time"
        return as_json(
            await asked(
                node.threads, node.reactor.url, "history", lambda connection: ask(connection, tenant), less=less
            )
        )
    except ForgeError as error:
        return _failure(error)


def _failure(error: ForgeError) -> Response:
    """Return the error response; history that is gone is 410, with the oldest instant that can be answered."""
    told: Answer = {"error": error_fields(error)}
    if isinstance(error, HistoryUnavailable):
        if error.oldest is not None:
            told["oldest"] = timestamp(error.oldest)
        return as_json(told, 400 if error.oldest is None else 410)
    headers = {"www-authenticate": "Bearer"} if isinstance(error, AuthFailed) else {}
    return as_json(told, 404 if isinstance(error, TrackingError) else status(error), headers)


def allowed(node: Node, identity: TokenIdentity) -> Tenant | None:
    """Return the rows that a caller may see: a column and its value, or None for all; raise Forbidden for no rows."""
    wanted, column = node.options.history, node.options.tenant_column
    if wanted is None or node.options.auth is None:
        raise Forbidden("history is closed here", fix="set auth, and history to the permission that opens it")
    if wanted not in permissions(identity.auth.claims):
        raise Forbidden("the token does not permit to see history", fix=f"have the issuer grant {wanted}")
    if identity.auth.tenant is None:
        return None
    if column is None:
        raise Forbidden("no column says whose a row is", fix="set tenant_column to the column that holds the tenant")
    return Tenant(column, identity.auth.tenant)


def _instant(value: str | None) -> datetime | None:
    return None if value is None else instant(value)


def _limit(value: str | None, most: int) -> int:
    if value is None:
        return LIMIT
    if not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= most:
        raise BadArguments(f"limit cannot be {value[:20]!r}", fix=f"use 1 to {most}")
    return int(value)


def _op(value: str) -> Op:
    try:
        return Op(value.lower())
    except ValueError:
        raise BadArguments(f"op cannot be {value[:20]!r}", fix=f"use {', '.join(Op)}") from None
