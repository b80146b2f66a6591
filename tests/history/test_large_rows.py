"""A history of large rows comes in pages that are no larger for it."""

from typing import Any

import pytest

from forge.app import Forge
from forge.change import Op
from forge.history import timeline as history
from forge.history.timeline import TimelineEntry, timeline
from forge.postgres.connection import Connection
from forge.serve.node import Options
from tests.history.test_http import AUTH, GRANTED
from tests.serve.serving import SOON, serving

pytestmark = pytest.mark.contract("T9")
ROOM = 100_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a size that is quick to fill."""
    monkeypatch.setattr(history, "MOST_BYTES", ROOM)


def size(entry: TimelineEntry) -> int:
    """The letters of an entry's large column before and after."""
    return sum(len((image or {}).get("body") or "") for image in (entry.change.before, entry.change.after))


def pages(connection: Connection, key: object, limit: int = 50, **more: Any) -> list[tuple[TimelineEntry, ...]]:
    found: list[tuple[TimelineEntry, ...]] = []
    place: str | None = None
    while not found or place is not None:
        page = timeline(connection, "document", key, limit=limit, before=place, **more)
        found.append(page.entries)
        place = page.next
    return found


def ids(entries: tuple[TimelineEntry, ...]) -> list[str]:
    return [entry.change.id for entry in entries]


@pytest.fixture
def document(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body text, n int)")
    connection.execute("SELECT forge_enable_reactivity('document')")
    connection.execute("INSERT INTO document VALUES (1, 'x', 0)")
    for n in range(6):
        connection.execute("UPDATE document SET body = repeat(%s, 20000), n = n + 1", (str(n),))
        connection.execute("UPDATE document SET n = n + 1")
    connection.execute("UPDATE document SET id = 2, body = repeat('y', 40000)")
    connection.execute("UPDATE document SET body = repeat('z', 500000)")
    for _ in range(3):
        connection.execute("UPDATE document SET n = n + 1")
    return connection


@pytest.mark.every_version
def test_a_page_ends_where_it_would_be_too_large(
    document: Connection, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pages(document, 2)
    for entries in found:
        assert entries
        assert len(entries) == 1 or sum(map(size, entries)) <= 2 * ROOM  # an unchanged value is in the log once
    assert len(found) > 6
    monkeypatch.undo()
    (whole,) = pages(document, 2)
    assert [entry.op for entry in whole].count("KEY") == 1
    assert [id for entries in found for id in ids(entries)] == ids(whole)


def test_small_rows_fill_a_page_as_ever(connection: Connection, small: None) -> None:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body text, n int)")
    connection.execute("SELECT forge_enable_reactivity('document')")
    connection.execute("INSERT INTO document VALUES (1, 'x', 0)")
    for _ in range(59):
        connection.execute("UPDATE document SET n = n + 1")
    assert [len(entries) for entries in pages(connection, 1)] == [50, 11]
    assert [len(entries) for entries in pages(connection, 1, limit=61, follow=False)] == [61]


def test_what_a_writer_said_of_itself_counts(connection: Connection, small: None) -> None:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body text)")
    connection.execute("SELECT forge_enable_reactivity('document')")
    with connection.transaction():
        connection.execute("SELECT set_config('forge.user_id', repeat('u', 40000), true)")
        connection.execute("INSERT INTO document VALUES (1, 'x')")
        for n in range(3):
            connection.execute("UPDATE document SET body = %s", (str(n),))
    assert [len(entries) for entries in pages(connection, 1)] == [2, 3]


async def test_answers_over_http_stay_small(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, body text)")
    connection.execute("SELECT forge_enable_reactivity('document')")
    connection.execute("INSERT INTO document VALUES (1, '')")
    for n in range(9):
        connection.execute("UPDATE document SET body = repeat(%s, 3000000)", (str(n),))
    async with serving(Forge(database, options=Options(auth=AUTH))) as served:
        after: list[str] = []
        place: str | None = ""
        answers = 0
        while place is not None:
            path = f"/forge/history/document/1?limit=1000&before={place}"
            answer = await served.client.get(path, headers=GRANTED, timeout=SOON)
            assert answer.status_code == 200, answer.text[:500]
            assert len(answer.content) < history.MOST_BYTES + 100_000
            page, answers = answer.json(), answers + 1
            after += [entry["diff"][-1]["after"][:1] for entry in page["entries"] if entry["op"] == Op.UPDATE.name]
            place = page["next"]
    assert after == [str(n) for n in reversed(range(9))]
    assert answers >= 4
