"""A consumer that acknowledges while others keep the file locked goes on; what it handled is removed the next time."""

import sqlite3
from pathlib import Path

import pytest

from forge.capture.sqlite import SqliteSource
from forge.capture.sqlite.install import enable
from tests.capture.sqlite.files import url_of, writer

pytestmark = pytest.mark.contract("W6")


@pytest.mark.parametrize("wal", [True, False])
async def test_what_cannot_be_removed_now_is_removed_later(tmp_path: Path, wal: bool) -> None:
    path = tmp_path / "shop.db"
    connection = writer(path, wal=wal)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    enable(url_of(path), ["t"])
    other = sqlite3.connect(path, isolation_level=None)
    async with SqliteSource(url_of(path), patience=0.05) as source:
        cursor = await source.now()
        connection.execute("INSERT INTO t VALUES (1), (2)")
        batches = [batch async for batch in source.until_now(cursor)]
        assert [change.row_id for batch in batches for change in batch.changes] == ["1", "2"]
        waiting = (await source.status()).lag_changes
        other.execute("BEGIN EXCLUSIVE")
        await source.ack(batches[-1].cursor)
        other.execute("COMMIT")
        assert (await source.status()).lag_changes == waiting
        await source.ack(batches[-1].cursor)
        assert (await source.status()).lag_changes == 0
