"""Consumers of an application: in a serving node, with its metrics and live tables, and bounded in memory."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from forge.app import Forge
from forge.change import Change
from forge.cli import main
from forge.deliver.consumers import ConsumerContext, Consumers
from forge.postgres.connection import Connection, connect
from tests.deliver.consumers.working import SOON, table, until, working
from tests.serve.serving import serving


@pytest.mark.contract("R16")
async def test_a_serving_node_works_on_them_counts_them_and_their_table_is_live(
    database: str, connection: Connection
) -> None:
    table(connection)
    app = Forge(database)
    seen: list[str] = []

    @app.consumer("search", tables=["item"], tries=1)
    async def index(ctx: ConsumerContext, change: Change) -> None:
        if change.row_id == "2":
            raise ValueError("no")
        seen.append(change.row_id)

    @app.query(scope="public")
    async def consumers(ctx: Any) -> Any:
        return await ctx.db.fetch("SELECT name, state, delivered, parked FROM forge.consumer")

    async with serving(app) as served, served.stream("/forge/live/consumers") as live:
        await live.next()
        connection.execute("INSERT INTO item VALUES (1), (2), (3)")
        wanted = [{"name": "search", "state": "running", "delivered": 2, "parked": 1}]
        await live.until(lambda event: event.name != "bye" and event.body.get("rows") == wanted)
        metrics = (await served.client.get("/metrics")).text
        assert 'forge_consumer_delivered_total{consumer="search",shard="0"} 2.0' in metrics
        assert 'forge_consumer_parked_total{consumer="search",shard="0"} 1.0' in metrics
        assert 'forge_consumer_lag_events{consumer="search",shard="0"}' in metrics
    assert seen == ["1", "3"]


@pytest.mark.contract("W10")
async def test_a_stuck_consumer_keeps_no_more_than_a_page_in_memory(database: str, connection: Connection) -> None:
    table(connection)
    stuck = asyncio.Event()
    go = asyncio.Event()
    count = 0
    consumers = Consumers()

    @consumers.consumer("stuck", tables=["item"], timeout=None)
    async def take(ctx: ConsumerContext, change: Change) -> None:
        nonlocal count
        stuck.set()
        await go.wait()
        count += 1

    async with working(database, consumers):
        connection.execute("INSERT INTO item VALUES (0, 'first')")
        async with asyncio.timeout(SOON):
            await stuck.wait()
        process = psutil.Process()
        before = process.memory_info().rss
        for n in range(60):
            connection.execute(
                "INSERT INTO item SELECT g, repeat('x', 2000) FROM generate_series(%s::int, %s::int) g",
                (n * 1000 + 1, n * 1000 + 1000),
            )
        grown = process.memory_info().rss - before
        assert grown < 40 * 2**20, f"{grown / 2**20:.0f} MB for 120 MB of changes that wait"
        go.set()
        await until(lambda: count >= 5000)
        assert process.memory_info().rss - before < 80 * 2**20


SHOP = """
    import forge
    app = forge.Forge()

    @app.consumer("search", tables=["item"], tries=1)
    async def index(ctx, change):
        if change.row_id == "2":
            raise ValueError("no twos")
        print(change.op.value, change.row_id, flush=True)
"""


def test_the_command_line_runs_lists_and_steers_them(
    database: str,
    connection: Connection,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table(connection)
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    (tmp_path / "bare.py").write_text("import forge\napp = forge.Forge()\n")
    forge = [str(Path(sys.executable).with_name("forge")), "consumers"]
    options: dict[str, Any] = {"cwd": tmp_path, "text": True, "env": {**os.environ, "FORGE_DATABASE_URL": database}}
    monkeypatch.setenv("FORGE_DATABASE_URL", database)

    def run(*words: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["consumers", *words, "--json"])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return json.loads(printed.out)

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["consumers", *words])
        assert ended.value.code in (1, 2)
        return capsys.readouterr().err

    worker = subprocess.Popen([*forge, "run", "shop:app"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "✓ working on search\n"
        with connect(database) as other:
            owned = "SELECT count(*) FROM forge.consumer WHERE owner IS NOT NULL"
            asyncio.run(until(lambda: other.execute(owned).fetchone() == (1,)))
        connection.execute("INSERT INTO item VALUES (1), (2), (3)")
        assert [worker.stdout.readline() for _ in range(2)] == ["insert 1\n", "insert 3\n"]
        (letter,) = run("dead", "search")
        assert (letter["key"], letter["error"], letter["change"]["operation"]) == ("2", "ValueError: no twos", "INSERT")
        assert run("replay-dead", "search") == {"sent": 0, "left": 1, "waiting": 0}
        assert run("pause", "search") == {"name": "search", "state": "paused", "working": False}
        (listed,) = run("list")
        assert (listed["state"], listed["dead_letters"], listed["lag_events"]) == ("paused", 1, 0)
        assert run("lag", "search") == [{"name": "search", "shard": 0, "events": 0, "seconds": 0.0}]
        assert run("rewind", "search", "--to", "start")["cursor"].endswith("_1:1:")
        assert run("resume", "search") == {"name": "search", "state": "running"}
        assert [worker.stdout.readline() for _ in range(2)] == ["insert 1\n", "insert 3\n"]
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        worker.communicate()
    assert run("forget", "search", "--yes") == {"name": "search", "forgotten": True}
    assert "there is no consumer 'search'" in refused("pause", "search")
    assert "has no time zone" in refused("rewind", "search", "--to", "2026-01-01")
    bare = subprocess.run([*forge, "run", "bare:app"], capture_output=True, timeout=60, **options)
    assert bare.returncode == 1
    assert "bare:app has no consumers" in bare.stderr
    assert "Traceback" not in bare.stderr
