"""Who and why, on a SQLite file."""

import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest

from forge.capture.sqlite import enable, transaction
from forge.errors import ContextError, NotInstalled
from tests.capture.sqlite.files import now, since, url_of, writer

pytestmark = [pytest.mark.contract("W6"), pytest.mark.contract("T4")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    connection = writer(found)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n)")
    connection.close()
    enable(url_of(found), ["t"])
    return found


def insert(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO t DEFAULT VALUES")


def fail(connection: sqlite3.Connection) -> None:
    with transaction(connection, user_id="c"):
        insert(connection)
        raise ZeroDivisionError


async def test_a_block_says_who_and_its_transaction_has_a_name(path: Path) -> None:
    start = await now(path)
    connection = writer(path)
    with transaction(connection, user_id=7, function_name="ship", trace_id="ab", order=[118]):
        insert(connection)
        insert(connection)
    insert(connection)
    with transaction(connection, user_id=uuid.UUID(int=1)):
        insert(connection)
    first, second, third, fourth = await since(path, start)
    assert (first.context.user_id, first.context.function_name, first.context.trace_id) == ("7", "ship", "ab")
    assert first.context.more == {"order": [118]}
    assert first.source.transaction
    assert first.source.transaction == second.source.transaction != fourth.source.transaction
    assert (third.context.user_id, third.source.transaction) == (None, None)
    assert fourth.context.user_id == str(uuid.UUID(int=1))


async def test_an_inner_block_adds_and_gives_back(path: Path) -> None:
    start = await now(path)
    connection = writer(path)
    with transaction(connection, user_id="a", x=1):
        with transaction(connection, user_id="b", y=2):
            insert(connection)
        insert(connection)
        with pytest.raises(ZeroDivisionError):
            fail(connection)
        insert(connection)
    changes = await since(path, start)
    assert [(change.context.user_id, change.context.more) for change in changes] == [
        ("b", {"x": 1, "y": 2}),
        ("a", {"x": 1}),
        ("a", {"x": 1}),
    ]


async def test_a_block_within_the_applications_own_transaction(path: Path) -> None:
    start = await now(path)
    connection = sqlite3.connect(path)
    insert(connection)
    with transaction(connection, user_id="a"):
        insert(connection)
    insert(connection)
    connection.commit()
    assert [change.context.user_id for change in await since(path, start)] == [None, "a", None]


async def test_a_rollback_takes_the_context_with_it(path: Path) -> None:
    connection = writer(path)
    with pytest.raises(ZeroDivisionError):
        fail(connection)
    start = await now(path)
    insert(connection)
    assert [change.context.user_id for change in await since(path, start)] == [None]


async def test_a_commit_inside_of_the_block_is_refused_or_told(path: Path) -> None:
    connection = writer(path)
    with pytest.raises(ContextError, match="ended inside"), transaction(connection, user_id="a"):
        connection.execute("COMMIT")
    assert connection.execute("SELECT count(*) FROM forge_context").fetchone() == (0,)
    connection.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError), transaction(connection, user_id="a"):
        connection.execute("COMMIT")
    assert connection.execute("SELECT count(*) FROM forge_context").fetchone() == (0,)
    assert not connection.in_transaction


@pytest.mark.parametrize(
    "wrong",
    [
        {"user_id": ""},
        {"user_id": 1.5},
        {"user_id": "x" * 256},
        {"trace_id": "x" * 65},
        {"more": object()},
        {"more": float("nan")},
        {"more": "x" * 9000},
        {"more": "\ud800"},
    ],
)
def test_a_malformed_context_is_an_error_before_anything_is_written(path: Path, wrong: dict[str, Any]) -> None:
    connection = writer(path)
    with pytest.raises(ContextError), transaction(connection, **wrong):
        raise AssertionError("the block began")
    assert not connection.in_transaction


def test_a_file_that_is_not_tracked(tmp_path: Path) -> None:
    connection = writer(tmp_path / "x.db")
    with pytest.raises(NotInstalled), transaction(connection, user_id="a"):
        raise AssertionError("the block began")
    assert not connection.in_transaction
