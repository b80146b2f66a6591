"""When a table's replica identity changes, so may the keys of its changes: that is told before the first of them."""

import psycopg
import pytest

from forge.capture import Filter
from forge.capture.wal import WalSource
from forge.postgres.connection import Connection
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


@pytest.mark.parametrize("tables", [(), ("public.*",), ("t",)])
async def test_a_table_that_nobody_can_update_is_told(
    database: str, connection: Connection, tables: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """One that was made, or lost its key, after the publication: its writers are told by PostgreSQL, Forge says why."""
    connection.execute("CREATE TABLE t (a int PRIMARY KEY)")
    source = WalSource(database, Filter(tables=tables))
    await source.now()
    assert (await source.status()).warnings == ()
    connection.execute("CREATE TABLE keyless (a int)")
    connection.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    hurt = ["t"] if tables == ("t",) else ["keyless", "t"]
    wanted = [
        f"public.{name} is published without a replica identity, so UPDATE and DELETE of it fail;"
        f" ALTER TABLE public.{name} REPLICA IDENTITY FULL, or a primary key"
        for name in hurt
    ]
    assert list((await source.status()).warnings) == wanted
    caplog.clear()
    await source.now()
    assert caplog.messages == wanted
    for name in hurt:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            connection.execute(f"UPDATE {name} SET a = 1")
        connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    assert (await source.status()).warnings == ()


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
