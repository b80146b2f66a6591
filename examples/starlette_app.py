"""A Starlette application whose writes say who made them, by which route, in which trace.

pip install 'forge-changes[serve]'
DATABASE_URL=postgresql://… uvicorn starlette_app:web
curl -X POST 'http://127.0.0.1:8000/orders/118/pay' -u ada:lovelace
forge tail            # orders UPDATE 118   status: placed → paid   ada · POST /orders/{order_id}/pay

FastAPI is the same: `web = FastAPI(); web.add_middleware(forge.ContextMiddleware)`.
"""

import os
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg_pool import AsyncConnectionPool
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import forge

pool = AsyncConnectionPool(os.environ.get("DATABASE_URL", ""), open=False, kwargs={"autocommit": True})


class Basic(AuthenticationBackend):
    """Whoever says a name is believed: put your own check here."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        scheme, _, credentials = conn.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        name, _, _ = b64decode(credentials).decode().partition(":")
        return AuthCredentials(["authenticated"]), SimpleUser(name)


async def pay(request: Request) -> JSONResponse:
    order_id = request.path_params["order_id"]
    async with pool.connection() as connection, forge.transaction(connection, order=order_id):
        done = await connection.execute("UPDATE orders SET status = 'paid' WHERE id = %s", (order_id,))
    return JSONResponse({"paid": done.rowcount})


@asynccontextmanager
async def lifespan(web: Starlette) -> AsyncIterator[None]:
    async with pool:
        yield


web = Starlette(
    routes=[Route("/orders/{order_id:int}/pay", pay, methods=["POST"])],
    middleware=[Middleware(forge.ContextMiddleware), Middleware(AuthenticationMiddleware, backend=Basic())],
    lifespan=lifespan,
)
