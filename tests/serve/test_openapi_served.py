"""Whatever the document allows or forbids is sent to a real server: never a 500, always what the document says."""

import socket
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from forge.app import Forge
from forge.changelog.install import install
from forge.postgres.connection import connect
from forge.testing.postgres import fresh_database, temporary_postgres

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = r"^/forge/(live/.*|session|changes)$"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of a served application."""
    with temporary_postgres() as server, fresh_database(server) as url:
        with connect(url) as connection:
            install(connection)
            connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric)")
            connection.execute("SELECT public.forge_enable_reactivity('orders')")
        app = Forge(url)

        @app.query
        async def orders(ctx: Any, status: str, least: Decimal = Decimal(0), ids: list[int] | None = None) -> Any:
            return await ctx.db.fetch(
                "SELECT id, total FROM orders WHERE status = %(status)s AND total >= %(least)s"
                " AND (%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))"
            )

        @app.query
        async def nothing(ctx: Any) -> Any:
            return None

        @app.mutation
        async def add(ctx: Any, id: int, status: str = "new", note: UUID | None = None) -> Any:
            return await ctx.db.execute("INSERT INTO orders VALUES (%(id)s, %(status)s, 1) ON CONFLICT DO NOTHING")

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        served = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=served.run, kwargs={"sockets": [listening]})
        thread.start()
        deadline = time.monotonic() + 30
        while not served.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            served.should_exit = True
            thread.join()


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
def test_every_answer_is_as_the_document_says(served: str, mode: schemathesis.GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{served}/forge/openapi.json").exclude(path_regex=STREAMS)
    tested = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        tested += 1

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def check(case: schemathesis.Case[Any]) -> None:
            response = case.call()
            assert response.status_code < 500, (case.as_curl_command(), response.text)
            case.validate_response(response, checks=CHECKS)

        try:
            check()
        except Unsatisfiable:
            assert mode is schemathesis.GenerationMode.NEGATIVE  # nothing can be wrong where nothing is asked
    assert tested >= 8
