"""The examples do what their documents say: the shop is set up, served, watched and written to."""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

import forge
from tests.command import environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SOON = 60.0


@pytest.fixture
def shop(tmp_path: Path, empty_database: str) -> Iterator[str]:
    """The URL of a served shop, as its docstring says how."""
    for name in ("shop.py", "fastapi_shop.py", "page.html"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "forge.toml").write_text(f"database_url = {json.dumps(empty_database)}\n")
    variables = environment()
    for _ in range(2):  # the second time changes nothing
        done = subprocess.run(
            [sys.executable, "shop.py", "setup"],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "forge", "serve", "shop:app", "--port", str(port)],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            serving.terminate()
            _, errors = serving.communicate(timeout=30)
    assert "Traceback" not in errors


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def ready(url: str) -> None:
    async with asyncio.timeout(SOON), httpx.AsyncClient(base_url=url, verify=False) as client:
        while True:
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


async def test_the_shop_is_live_for_the_python_client(shop: str) -> None:
    await ready(shop)
    async with asyncio.timeout(SOON), forge.connect(shop) as client:
        orders = client.subscribe("open_orders", customer_id=7)
        first, second = await anext(orders)
        assert first == {"id": 1, "status": "placed", "total": Decimal("12.30")}
        paid = await client.mutate("pay", order_id=1)
        assert paid.result == 1
        assert await anext(orders) == [{**first, "status": "paid"}, second]
        assert orders.contains(paid.xid)
        assert [cause.function for cause in orders.cause] == ["pay"]
        placed = await client.mutate("order", customer_id=7, total="9.90")
        assert (await anext(orders))[2] == {"id": placed.result, "status": "placed", "total": Decimal("9.90")}


async def test_the_shop_is_live_for_a_page(shop: str) -> None:
    """What a page's EventSource and fetch do, with the origin that it is opened from."""
    await ready(shop)
    headers = {"origin": "http://127.0.0.1:8000"}
    async with asyncio.timeout(SOON), httpx.AsyncClient(base_url=shop, headers=headers, verify=False) as client:
        args = json.dumps({"customer_id": 7})
        async with client.stream("GET", "/forge/live/open_orders", params={"args": args}) as stream:
            assert stream.headers["access-control-allow-origin"] == headers["origin"]
            lines = stream.aiter_lines()
            assert (await event(lines))[0] == "snapshot"
            preflight = await client.options(
                "/forge/mutation/pay",
                headers={"access-control-request-method": "POST", "access-control-request-headers": "content-type"},
            )
            assert preflight.status_code == 200
            assert (await client.post("/forge/mutation/pay", json={"order_id": 2})).json()["result"] == 1
            name, body = await event(lines)
            assert name == "update"
            assert [row["status"] for row in body["rows"]] == ["placed", "paid"]
            assert body["rows"][0]["total"] == {"$numeric": "12.30"}
            assert [cause["function"] for cause in body["cause"]] == ["pay"]


async def event(lines: Any) -> tuple[str, Any]:
    name, data = "", []
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            return name, json.loads("\n".join(data))
    raise AssertionError("the stream ended")
