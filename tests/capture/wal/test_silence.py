"""A server that decodes a large transaction says nothing for long, and is not given up."""

import pytest

from forge.capture import Filter
from forge.capture.wal import WalSource
from forge.postgres.connection import Connection
from tests.capture.wal.reading import END, changes, mark, to_end

pytestmark = pytest.mark.contract("W4")

ROWS = 500_000


async def test_a_large_transaction_of_other_tables(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.connection.SILENCE", 0.15)
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE other (id int, note text)")
    mark(connection)
    # a plug-in that cannot stream large transactions is silent until it has passed over all of it
    source = WalSource(database, Filter(tables=("t", END)), streaming=False, interval=0.03)
    cursor = await source.now()
    connection.execute("INSERT INTO other SELECT n, 'not published' FROM generate_series(1, %s) n", (ROWS,))
    connection.execute("INSERT INTO t VALUES (1)")
    mark(connection)
    seen = changes(await to_end(source, cursor, timeout=60))
    assert [change.row_id for change in seen] == ["1"]
