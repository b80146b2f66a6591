"""The word for a key is one and the same in a Change, on the wire, and in `forge_events`."""

import json

import pytest

from forge import wire
from forge.changelog.reader import Reader
from forge.postgres.connection import Connection
from tests.changelog.log import enable

KEYS = {
    "bigint": "9007199254740993",
    "numeric": "0.0000001",
    "numeric(10,2)": "12.30",
    "float8": "1e15",
    "real": "'NaN'",
    "double precision": "0.1",
    "boolean": "true",
    "text": "'a ''quoted'' \"word\"'",
    "uuid": "'6f1c0b52-3f0e-4c57-9a53-0d6f2a3b9c11'",
    "date": "'0044-03-15 BC'",
    "timestamptz": "'2026-01-31 12:00:00.5+02'",
    "interval": "'1 mon 2 days'",
    "bytea": r"'\xdeadbeef'",
    "int[]": "'{1,2}'",
    "text[]": "'{a,b}'",
    "jsonb": """'{"a": 1}'""",
    "inet": "'10.0.0.1'",
}


@pytest.mark.contract("T2", "T8")
async def test_every_type_of_key_is_named_alike_everywhere(database: str, connection: Connection) -> None:
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        for number, (type_, value) in enumerate(KEYS.items()):
            connection.execute(f"CREATE TABLE k{number} (id {type_} PRIMARY KEY)")
            connection.execute(f"CREATE TABLE p{number} (id {type_}, n int, PRIMARY KEY (id, n))")
            for table, row in ((f"k{number}", f"({value})"), (f"p{number}", f"({value}, 1)")):
                enable(connection, table)
                connection.execute(f"INSERT INTO {table} VALUES {row}")
        changes = [change async for batch in reader.read(cursor) for change in batch.changes if change.after]
    logged: dict[str, str] = dict(
        connection.execute("SELECT table_name, row_id FROM forge_events WHERE operation = 'INSERT'").fetchall()
    )
    assert {change.table: change.row_id for change in changes} == logged
    assert {change.table: json.loads(wire.encode(change))["id"] for change in changes} == logged
    assert len(logged) == 2 * len(KEYS)


async def test_a_batch_has_the_columns_of_then(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    async with Reader.open(database) as reader:
        cursor = await reader.now()
        enable(connection, "t")
        connection.execute("INSERT INTO t VALUES (1, '2026-01-01')")
        connection.execute("ALTER TABLE t ALTER v TYPE date USING v::date")
        connection.execute("INSERT INTO t VALUES (2, '2026-01-02')")
        types = {
            change.key["id"]: columns[1].type
            async for batch in reader.read(cursor)
            for change, columns in zip(batch.changes, batch.columns, strict=True)
            if change.key
        }
    assert types == {1: "text", 2: "date"}
