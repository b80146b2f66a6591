"""When a table's replica identity changes, so may the keys of its changes: that is told before the first of them."""

import pytest

from forge.capture.wal import WalSource
from forge.changelog.connection import Connection
from tests.capture.wal.reading import changes, mark, to_end

pytestmark = [pytest.mark.contract("W4"), pytest.mark.contract("X11")]


async def test_another_key_is_another_definition(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (a int NOT NULL, b text NOT NULL UNIQUE)")
    connection.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_b_key")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    connection.execute("ALTER TABLE t ADD PRIMARY KEY (a), REPLICA IDENTITY DEFAULT")
    connection.execute("UPDATE t SET a = 2")
    mark(connection)
    batches = await to_end(source, cursor)
    seen = changes(batches)
    assert [(change.op.value, change.key) for change in seen] == [
        ("insert", {"b": "x"}), ("schema", None), ("delete", {"a": 1}), ("insert", {"a": 2}),
    ]  # fmt: skip
    assert changes(await to_end(WalSource(database), cursor)) == seen


@pytest.mark.parametrize("identity", ["FULL", "NOTHING", "DEFAULT"])
async def test_an_identity_that_stays_is_not_told(database: str, connection: Connection, identity: str) -> None:
    connection.execute("CREATE TABLE t (a int, b int, g int GENERATED ALWAYS AS (b * 2) STORED, PRIMARY KEY (b, a))")
    source = WalSource(database)
    await source.now()
    connection.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1, 2)")
    connection.execute("ALTER TABLE t SET (fillfactor = 90)")  # the definition is sent again
    connection.execute("INSERT INTO t VALUES (2, 3)")
    mark(connection)
    assert [change.op.value for change in changes(await to_end(source, cursor))] == ["insert", "insert"]
