"""A column that no followed table has is refused where a reader begins: it would wait for ever otherwise."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from forge.capture import Filter, Source, open_source, sqlite, until_now
from forge.capture.sqlite.hook import Hook
from forge.errors import ConfigError
from forge.postgres.connection import connect
from forge.testing.mariadb import fresh_mariadb, run

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status varchar(9), total int)"
WRONG = [
    Filter(columns=("statsu",)),
    Filter(where="statsu = 'paid'"),
    Filter(where="total > 1 OR orders.statsu IS NULL"),
]
RIGHT = [
    Filter(columns=("status",)),
    Filter(where="orders.status = 'paid' AND total > 10"),
    Filter(tables=("later",), where="statsu = 'paid'"),
]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a database with the table, tracked where that is needed."""
    if request.param == "mysql":
        with fresh_mariadb(request.getfixturevalue("maria")) as url:
            run(url, ORDERS)
            yield url
    elif request.param == "sqlite":
        yield f"sqlite:///{tracked(tmp_path)}"
    else:
        database = request.getfixturevalue("database")
        with connect(database) as connection:
            connection.execute(ORDERS)
            connection.execute("SELECT forge_enable_reactivity('orders')")
        yield f"{database}{'&' if '?' in database else '?'}feed={request.param}"


def tracked(folder: Path) -> Path:
    """A file with the table."""
    connection = sqlite3.connect(folder / "shop.db")
    connection.execute(ORDERS)
    connection.close()
    sqlite.enable(f"sqlite:///{folder}/shop.db", every=True)
    return folder / "shop.db"


@asynccontextmanager
async def first(source: Source, *, snapshot: bool) -> AsyncIterator[None]:
    """What is there was read, or the stream has begun."""
    async with source:
        if snapshot:
            async with aclosing(source.snapshot()) as batches:
                async for _ in batches:
                    pass
        else:
            async with aclosing(until_now(source, await source.now())) as batches:
                async for _ in batches:
                    pass
        yield


@pytest.mark.contract("W9")
@pytest.mark.parametrize("url", ["log", "wal", "mysql", "sqlite"], indirect=True)
async def test_a_misspelt_column_is_refused(url: str) -> None:
    for snapshot in (False, True):
        for wrong in WRONG:
            with pytest.raises(ConfigError, match=r"orders has no column (orders\.)?statsu") as caught:
                async with first(open_source(url, wrong), snapshot=snapshot):
                    pass
            assert caught.value.fix == "did you mean status? there are: id, status, total"
    if "feed=wal" in url:
        with connect(url.replace("?feed=wal", "").replace("&feed=wal", "")) as connection:
            assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
            assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == []


@pytest.mark.contract("W9")
@pytest.mark.parametrize("url", ["log", "mysql", "sqlite"], indirect=True)
async def test_a_column_of_a_table_that_is_there_or_not_known_yet_is_not(url: str) -> None:
    for right in RIGHT:
        async with first(open_source(url, right), snapshot=True):
            pass


async def test_the_hook_refuses_it_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tracked(tmp_path)}"
    with pytest.raises(ConfigError, match="orders has no column statsu"):
        async with Hook(url, WRONG[0]):
            pass
    async with Hook(url, RIGHT[0]):
        pass


def test_several_tables_are_named_as_such() -> None:
    known = [("public", "a", ["id", "x"]), ("public", "b", ["id", "y"])]
    Filter(columns=("x", "y")).check_columns(known)
    with pytest.raises(ConfigError, match="no followed table has a column z") as caught:
        Filter(columns=("z",)).check_columns(known)
    assert caught.value.fix == "there are: id, x, y"
