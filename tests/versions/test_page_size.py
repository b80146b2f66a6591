"""What a page costs: one statement as a rule, and never more bytes than it may have, however large documents are."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forge.postgres.connection import Connection
from forge.versions import reading
from forge.versions.nouns import Page
from forge.versions.reading import changes, deletes, pages, stream
from tests.versions.world import STRATEGIES, World

LARGE = 100_000


class Brought(list[tuple[int, int]]):
    """Of each page statement, how many rows it brought, and bytes of bodies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run = reading._planned
        monkeypatch.setattr(reading, "_planned", self._planned)

    def _planned(self, connection: Connection, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        rows = self._run(connection, statement, values)
        self.append((len(rows), sum(len(row[8] or "") for row in rows)))
        return rows


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Brought:
    return Brought(monkeypatch)


@pytest.fixture(params=STRATEGIES)
def world(request: pytest.FixtureRequest, versions: Connection) -> World:
    found = World(versions)
    found.use(request.param)
    return found


@contextmanager
def sent(connection: Connection, path: Path) -> Iterator[list[str]]:
    """The statements that leave for the server within the block, as libpq tells them."""
    found: list[str] = []
    with path.open("w") as file:
        connection.pgconn.trace(file.fileno())
        try:
            yield found
        finally:
            connection.pgconn.untrace()
    found += re.findall(r"\tF\t\d+\t(?:Execute|Query)\b.*", path.read_text())


def every(world: World, query: Any, *asked: Any, **more: Any) -> list[Page[Any]]:
    return list(pages(lambda after: query(world.connection, *asked, after=after, **more)))


@pytest.mark.contract("V4")
def test_a_usual_page_is_one_statement(world: World, brought: Brought, tmp_path: Path) -> None:
    """And few are around it: the settings, the newest, the plan, the transaction, the names of what is referred to."""
    students, plans = world.resource("students"), world.resource("plans")
    student = world.put(students, 1)
    for n in range(120):
        world.put(plans, n, {"student": student})
    changes(world.connection, plans)
    for query in (changes, stream):
        for window in ((), (1,), (1, 100)):
            brought.clear()
            with sent(world.connection, tmp_path / "trace") as statements:
                page = query(world.connection, plans, *window)
            assert len(page.items) == (100 if len(window) < 2 else 99)
            assert [rows for rows, _ in brought] == [101 if len(window) < 2 else 99]
            assert 3 <= len(statements) <= 7, statements
            if page.next is not None:
                rest = query(world.connection, plans, after=page.next)
                assert (len(rest.items), rest.next) == (20, None)
                assert len(brought) == 2


@pytest.mark.contract("V4")
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "window"])
def test_large_documents_make_short_pages_that_lose_nothing(world: World, brought: Brought, whole: bool) -> None:
    """What compresses well too: a page is as large as its texts, not as what is stored."""
    plans = world.resource("plans")
    sizes = [LARGE if n % 3 else 10 for n in range(30)]
    made = [world.put(plans, n, body={"text": "x" * size}) for n, size in enumerate(sizes)]
    window = () if whole else (1,)
    found = every(world, stream, plans, *window, limit=1000, max_bytes=3 * LARGE)
    assert [item.id for page in found for item in page.items] == made
    assert all(sum(len(item.document.body["text"]) for item in page.items) <= 3 * LARGE for page in found)
    assert len(found) < 15
    assert max(size for _, size in brought) < 5 * LARGE


def test_a_document_that_is_larger_than_a_page_is_one(world: World, brought: Brought) -> None:
    plans = world.resource("plans")
    made = [world.put(plans, n, body={"text": "x" * size}) for n, size in enumerate((10, LARGE, LARGE, 10))]
    found = every(world, changes, plans, max_bytes=1000)
    assert [[item.id for item in page.items] for page in found] == [made[:1], made[1:2], made[2:3], made[3:]]
    assert max(size for _, size in brought) < 2 * LARGE


def test_many_small_documents_are_one_page_of_few_statements(world: World, brought: Brought) -> None:
    plans = world.resource("plans")
    made = [world.put(plans, n) for n in range(400)]
    for asked in ((plans,), (plans, 1)):
        brought.clear()
        (page,) = every(world, changes, *asked, limit=1000)
        assert [item.id for item in page.items] == made
        assert [rows for rows, _ in brought] == [reading.STEP, 400 - reading.STEP]


def test_tombstones_have_a_size_too(world: World) -> None:
    plans = world.resource("plans")
    gone = [world.put(plans, f"{n}" * 500) for n in range(10)]
    for document in gone:
        world.delete(document)
    found = every(world, deletes, plans, max_bytes=2000)
    assert [item.id for page in found for item in page.items] == gone
    assert len(found) == 5
