"""Values come out as SQLite has them, whatever they are."""

import json
import math
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge import debezium, wire
from forge.capture import Filter, SourceBatch
from forge.capture.sqlite import SqliteSource, enable
from forge.capture.sqlite.file import SqliteFile
from forge.capture.sqlite.queue import Queue
from tests.capture.sqlite.files import exact, now, rows_of, since, url_of, writer

pytestmark = pytest.mark.contract("W6")

VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.floats(width=64, allow_nan=True),
    st.text(),
    st.sampled_from(["", "\0", "a\0b", "1", "1.0", "\ufeff", "\U0010ffff", "'", "NULL"]),
    st.binary(),
)
ROWS = st.lists(st.tuples(*[VALUES] * 6), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a column of every affinity."""
    path = tmp_path_factory.mktemp("values") / "values.db"
    connection = writer(path)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, n NUMERIC, x)")
    connection.execute("CREATE TABLE w (k ANY PRIMARY KEY, v ANY) STRICT, WITHOUT ROWID")
    connection.close()
    enable(url_of(path), ["t", "w"])
    return path


def bits(value: Any) -> Any:
    return struct.pack(">d", value) if isinstance(value, float) else value


@given(rows=ROWS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_inserts_updates_and_deletes_have_the_stored_values(shelf: Path, rows: list[tuple[Any, ...]]) -> None:
    queue = Queue(SqliteFile(url_of(shelf)), Filter())
    connection = writer(shelf)
    try:
        start = queue.head()
        connection.execute("DELETE FROM t")
        connection.executemany("INSERT INTO t (i, r, t, b, n, x) VALUES (?, ?, ?, ?, ?, ?)", rows)
        kept = connection.execute("SELECT * FROM t ORDER BY id").fetchall()
        connection.execute("UPDATE t SET x = i, i = x")
        changed = connection.execute("SELECT * FROM t ORDER BY id").fetchall()
        batch = queue.read(start)
        assert batch is not None
        inserted = [change.after for change in batch.changes if change.op == "insert"]
        updated = [change for change in batch.changes if change.op == "update"]
        assert [[*map(bits, row.values())] for row in inserted if row] == [[*map(bits, row)] for row in kept]
        for change, before, after in zip(updated, kept, changed, strict=True):
            assert change.before is not None
            assert change.after is not None
            assert [*map(bits, change.before.values())] == [*map(bits, before)]
            assert [*map(bits, change.after.values())] == [*map(bits, after)]
            assert wire.decode(wire.encode(change)) == change
    finally:
        connection.close()
        queue.close()


@given(keys=st.lists(VALUES.filter(lambda value: value is not None and value == value), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_can_be_a_key(shelf: Path, keys: list[Any]) -> None:
    queue = Queue(SqliteFile(url_of(shelf)), Filter())
    connection = writer(shelf)
    try:
        connection.execute("DELETE FROM w")
        start = queue.head()
        for number, key in enumerate(keys):
            connection.execute("REPLACE INTO w VALUES (?, ?)", (key, number))
        batch = queue.read(start)
        assert batch is not None
        replica: dict[str, Any] = {}
        for change in batch.changes:
            assert change.key is not None
            word = repr(exact(change.key))
            if change.op == "delete":
                assert change.before is not None
                assert replica.pop(word) == exact(change.before)
            else:
                assert change.after is not None
                assert word not in replica
                replica[word] = exact(change.after)
        rows = connection.execute("SELECT k, v FROM w")
        assert sorted(replica.values()) == sorted(exact({"k": k, "v": v}) for k, v in rows)
    finally:
        connection.close()
        queue.close()


async def test_infinities_nan_and_zero(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    enable(url_of(path), ["t"])
    start = await now(path)
    connection.executemany("INSERT INTO t (x) VALUES (?)", [(math.inf,), (-math.inf,), (math.nan,), (-0.0,)])
    found = [change.after["x"] for change in await since(path, start) if change.after]
    assert found == [math.inf, -math.inf, None, 0.0]


@pytest.mark.parametrize("tables", [1, 2])
async def test_a_text_that_is_not_utf8_is_its_bytes(tmp_path: Path, tables: int) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")
    connection.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, x TEXT)")
    enable(url_of(path), ["t", "u"])
    start = await now(path)
    connection.execute("INSERT INTO t VALUES (1, 'fine'), (2, CAST(x'ff61' AS TEXT)), (3, 'too')")
    if tables == 2:
        connection.execute("INSERT INTO u VALUES (1, 'fine')")
    changes = await since(path, start)
    assert [change.after["x"] for change in changes if change.after][:3] == ["fine", b"\xffa", "too"]
    rows, _ = await rows_of(path)
    assert [row.after["x"] for row in rows if row.after][:3] == ["fine", b"\xffa", "too"]


@pytest.mark.contract("W15")
async def test_the_debezium_envelope_of_any_value(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, d date, n numeric(10, 2), b bytea, s timestamp)")
    enable(url_of(path), ["t"])
    start = await now(path)
    connection.execute("INSERT INTO t VALUES (1, 'no date', 1.5, x'00ff', 12)")
    batches = [batch async for batch in queue_batches(path, start)]
    [(change, columns)] = [each for batch in batches for each in zip(batch.changes, batch.columns, strict=True)]
    raw = debezium.encode(change, columns=columns)
    assert raw is not None
    envelope = json.loads(raw)
    assert envelope["op"] == "c"
    assert envelope["after"] == {"id": 1, "d": "no date", "n": 1.5, "b": "AP8=", "s": 12}
    assert debezium.decode(raw, columns).id == change.id


def queue_batches(path: Path, start: str) -> AsyncIterator[SourceBatch]:
    return SqliteSource(url_of(path)).until_now(start)


async def test_megabytes_in_a_row_and_many_of_them(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = writer(path)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    enable(url_of(path), ["t"])
    start = await now(path)
    connection.execute("INSERT INTO t VALUES (1, zeroblob(20000000))")
    connection.executemany("INSERT INTO t VALUES (?, zeroblob(1000000))", [(number,) for number in range(2, 12)])
    sizes = []
    async for batch in queue_batches(path, start):
        sizes.append(len(batch.changes))
    assert sizes[0] == 1
    assert max(sizes) <= 5
    assert sum(sizes) == 11
