"""The console's page of a row: it follows the row, and is read again only when there is something to read."""

from typing import Any

import pytest

from forge.app import Forge
from forge.history.timeline import timeline as whole
from forge.postgres.connection import Connection
from forge.react.group import Settings
from forge.serve.console import past
from tests.serve.serving import SOON, Served, serving


async def history(served: Served, **arguments: Any) -> Any:
    answer = await served.post("/forge/query/forge.history", {"table": "orders", **arguments}, timeout=SOON)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


async def test_a_history_is_read_again_when_it_has_changed(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, card text)")
    connection.execute("SELECT public.forge_enable_reactivity('orders')")
    connection.execute("INSERT INTO orders VALUES (1, 'placed', '4111'), (2, 'placed', '4222')")
    read: list[object] = []

    def timeline(*words: Any, **more: Any) -> Any:
        read.append(words[2])
        return whole(*words, **more)

    monkeypatch.setattr(past, "timeline", timeline)
    async with serving(Forge(database)) as served:
        first = await history(served, key=1)
        connection.execute("UPDATE orders SET status = 'paid' WHERE id = 2")
        assert (await history(served, key=1), read) == (first, [1])
        assert len((await history(served, key=1, limit=1))["entries"]) == 1
        assert [entry["op"] for entry in (await history(served, key=2))["entries"]] == ["UPDATE", "INSERT", "SCHEMA"]
        assert read == [1, 1, 2]
        for statement in (
            "UPDATE orders SET status = 'paid' WHERE id = 1",
            "ALTER TABLE orders RENAME COLUMN status TO state",
            "SELECT public.forge_enable_reactivity('orders', exclude => '{card}')",
            "UPDATE orders SET id = 3 WHERE id = 1",
            "TRUNCATE orders",
        ):
            connection.execute(statement.encode())
            before, count = first, len(read)
            first = await history(served, key=1)
            assert (first != before, len(read)) == (True, count + 1), statement
        assert "4111" not in str(first)


async def test_a_history_lives(database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "EVERY", 0.1)
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
    connection.execute("SELECT public.forge_enable_reactivity('orders')")
    connection.execute("INSERT INTO orders VALUES (1, 0)")
    async with (
        serving(Forge(database, settings=Settings(check=0.1))) as served,
        served.stream('/forge/live/forge.history?args={"table":"orders","key":1}') as live,
    ):
        await live.next()
        for n in (7001, 7002):
            connection.execute("UPDATE orders SET n = %s", (n,))
            await live.until(lambda event, n=n: str(n) in event.data)  # type: ignore[misc]


def test_a_page_is_not_kept_for_ever() -> None:
    now = [0.0]
    pages = past.Pages(lambda: now[0])
    answers = iter(range(100))
    assert [pages.get("one", None, lambda: next(answers)) for _ in range(2)] == [0, 0]
    now[0] = past.KEPT
    assert pages.get("one", None, lambda: next(answers)) == 1
    for number in range(past.PAGES):
        pages.get(number, None, lambda: next(answers))
    assert pages.get("one", None, lambda: next(answers)) == past.PAGES + 2
