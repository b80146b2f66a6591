"""The update hook: what one connection commits, and only that."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import apsw
import pytest

from forge.capture import Filter, need
from forge.capture.sqlite import Hook
from forge.change import UNAVAILABLE, Change, Op
from forge.errors import CapabilityMissing, CursorExpired, CursorForeign, CursorInvalid, SourceError
from tests.capture.sqlite.files import Replica, stored, url_of, writer
from tests.capture.sqlite.fuzz import SCHEMA, TRIGGERS, Fuzz

pytestmark = [pytest.mark.contract("W6")]

PEOPLE = "CREATE TABLE people (id INTEGER PRIMARY KEY, email TEXT UNIQUE, n)"
FUZZED = ("b", "c", "e")


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    path = tmp_path / "shop.db"
    writer(path).execute(PEOPLE)
    async with Hook(url_of(path)) as hook:
        hook.connection.execute("PRAGMA synchronous = OFF")
        yield hook


async def after(hook: Hook, *statements: str) -> list[Change]:
    """What some statements are to the hook."""
    start = await hook.now()
    for statement in statements:
        try:
            hook.connection.execute(statement).fetchall()
        except apsw.ConstraintError:
            continue
    if await hook.now() == start:
        return []
    async with aclosing(hook.stream(start)) as batches:
        return [*(await anext(batches)).changes]


def short(changes: list[Change]) -> list[str]:
    return [f"{change.op.value} {change.row_id} {' '.join(change.changed)}".strip() for change in changes]


@pytest.mark.parametrize(
    ("statements", "seen"),
    [
        (["INSERT INTO people VALUES (3, 'c', 0)"], ["insert 3"]),
        (["REPLACE INTO people VALUES (1, 'b', 0)"], ["delete 1", "delete 2", "insert 1"]),
        (["INSERT INTO people VALUES (1, 'c', 5) ON CONFLICT DO UPDATE SET n = 5"], ["update 1 n"]),
        (["UPDATE OR REPLACE people SET id = 2 WHERE id = 1"], ["delete 2", "delete 1", "insert 2"]),
        (["DELETE FROM people"], ["delete 1", "delete 2"]),
        (["INSERT INTO people VALUES (3, 'c', 0), (1, 'd', 0)"], []),
        (["BEGIN", "INSERT INTO people VALUES (3, 'c', 0), (1, 'd', 0)", "UPDATE people SET n = 3", "COMMIT"],
         ["update 1 n", "update 2 n"]),
        (["BEGIN", "INSERT OR FAIL INTO people VALUES (3, 'c', 0), (1, 'd', 0)", "COMMIT"], ["insert 3"]),
        (["BEGIN", "DELETE FROM people", "ROLLBACK"], []),
        (["SAVEPOINT a", "DELETE FROM people", "ROLLBACK TO a", "UPDATE people SET n = 3 WHERE id = 1", "RELEASE a"],
         ["update 1 n"]),
        (
            ["BEGIN", "UPDATE people SET n = 7 WHERE id = 1", 'savepoint "S p"', "SAVEPOINT t", "DELETE FROM people",
             "RELEASE t", '/* x */ ROLLBACK TRANSACTION TO SAVEPOINT "s P"', "UPDATE people SET n = 8 WHERE id = 2",
             "COMMIT"],
            ["update 1 n", "update 2 n"],
        ),
    ],
)  # fmt: skip
async def test_what_is_committed_is_seen_and_what_is_undone_is_not(
    hook: Hook, statements: list[str], seen: list[str]
) -> None:
    await after(hook, "INSERT INTO people VALUES (1, 'a', 1), (2, 'b', 2)")
    assert short(await after(hook, *statements)) == seen


@pytest.mark.parametrize("seed", range(6))
async def test_replaying_the_hook_ends_with_the_tables(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "fuzz.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(SCHEMA + (TRIGGERS if seed % 3 == 2 else ""))
    connection.execute(f"PRAGMA recursive_triggers = {seed % 2}")
    connection.limit(apsw.SQLITE_LIMIT_TRIGGER_DEPTH, 20)  # a trigger calls itself until SQLite refuses
    async with Hook(url_of(path), connection=connection) as hook:
        start = await hook.now()
        fuzz = Fuzz(connection, seed, FUZZED)
        statements = [fuzz.step() for _ in range(250)]
        fuzz.end()
        end = await hook.now()
        replica = Replica()
        async with aclosing(hook.stream(start)) as batches:
            async for batch in batches:
                for change in batch.changes:
                    replica.apply(change)
                if batch.cursor == end:
                    break
    connection.close()
    check = writer(path)
    for table in set(FUZZED) - replica.invalid:
        assert replica.rows(table) == stored(check, table), statements
    assert len(replica.invalid) < len(FUZZED)


async def test_a_commit_that_fails_is_not_delivered_until_it_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    writer(path, wal=False).execute(PEOPLE)
    async with Hook(url_of(path)) as hook:
        start = await hook.now()
        reader = apsw.Connection(hook.name)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM people").fetchall()
        hook.connection.execute("BEGIN; INSERT INTO people VALUES (1, 'a', 0)")
        with pytest.raises(apsw.BusyError):
            hook.connection.execute("COMMIT")
        assert await hook.now() == start
        reader.close()
        hook.connection.execute("COMMIT")
        assert await hook.now() != start


async def test_another_thread_writes_and_the_stream_wakes(hook: Hook) -> None:
    async with aclosing(hook.stream()) as batches:
        reading = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: hook.connection.execute("INSERT INTO people VALUES (1, 'a', 0)"))
        thread.start()
        batch = await asyncio.wait_for(reading, 10)
        thread.join()
        assert batch.changes[0].after == {"id": 1, "email": "a", "n": 0}
        assert batch.changes[0].source.transaction == "1"


async def test_other_connections_and_other_databases_are_not_seen(hook: Hook) -> None:
    assert (
        await after(hook, "CREATE TEMP TABLE people (id INTEGER PRIMARY KEY)", "INSERT INTO temp.people VALUES (1)")
        == []
    )
    start = await hook.now()
    other = apsw.Connection(hook.name)
    other.execute("INSERT INTO people VALUES (9, 'z', 0)")
    other.close()
    assert await hook.now() == start
    with pytest.raises(CapabilityMissing, match="not durable"):
        need(hook.capabilities, "durable", source="hook")
    with pytest.raises(CapabilityMissing):
        await hook.snapshot().__anext__()


async def test_a_table_that_is_made_later_is_seen(hook: Hook) -> None:
    changes = await after(
        hook,
        "CREATE TABLE pairs (a, b, PRIMARY KEY (b, a)) WITHOUT ROWID",
        "INSERT INTO pairs VALUES (1, 2)",
        "ALTER TABLE people ADD COLUMN more",
        "INSERT INTO people VALUES (1, 'a', 0, 'x')",
    )
    assert [(change.key, change.after) for change in changes] == [
        ({"b": 2, "a": 1}, {"a": 1, "b": 2}),
        ({"id": 1}, {"id": 1, "email": "a", "n": 0, "more": "x"}),
    ]


async def test_virtual_columns_leave_the_key_and_blobs_written_in_place_are_updates(hook: Hook) -> None:
    hook.connection.execute(
        "CREATE TABLE g (id INTEGER PRIMARY KEY, n, twice AS (n * 2)); CREATE TABLE k (n, m AS (n))"
    )
    changes = await after(hook, "INSERT INTO g (id, n) VALUES (4, 5)", "INSERT INTO k (n) VALUES (1)")
    assert [(change.op, change.table) for change in changes] == [(Op.INSERT, "g"), (Op.INVALIDATE, "k")]
    assert changes[0].after == {"id": 4, "n": UNAVAILABLE, "twice": UNAVAILABLE}


async def test_a_view_whose_trigger_fails_midway_invalidates(hook: Hook) -> None:
    hook.connection.execute(
        "CREATE VIEW v AS SELECT * FROM people; CREATE TRIGGER vi INSTEAD OF INSERT ON v BEGIN"
        " INSERT INTO people VALUES (NEW.id, NEW.email, 0); INSERT INTO people VALUES (NEW.id + 1, NEW.n, 0); END"
    )
    changes = await after(hook, "BEGIN", "INSERT INTO v VALUES (1, 'a', 'a')", "COMMIT")
    assert [(change.op, change.table) for change in changes] in ([], [(Op.INVALIDATE, "people")])
    assert hook.connection.execute("SELECT count(*) FROM people").fetchall() == [(0,)]


async def test_the_plain_update_hook_has_numbers_only(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    writer(path).execute(PEOPLE)
    async with Hook(url_of(path), preupdate=False) as hook:
        assert hook.capabilities.before == "never"
        changes = await after(hook, "INSERT INTO people VALUES (7, 'a', 0)", "UPDATE people SET n = 1")
    assert [(change.op, change.key) for change in changes] == [(Op.INSERT, {"id": 7}), (Op.UPDATE, {"id": 7})]
    assert changes[0].after == {"id": 7, "email": UNAVAILABLE, "n": UNAVAILABLE}


async def test_too_much_is_dropped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    writer(path).execute(PEOPLE)
    async with Hook(url_of(path), most=10) as hook:
        start = await hook.now()
        hook.connection.execute("PRAGMA synchronous = OFF")
        for number in range(30):
            hook.connection.execute("INSERT INTO people VALUES (?, ?, 0)", (number, str(number)))
        async with aclosing(hook.stream(start)) as batches:
            first = await anext(batches)
            assert [change.op for change in first.changes] == [Op.INVALIDATE]
            hook.connection.execute("UPDATE people SET n = 1")
            second = await anext(batches)
        assert second.changes[-1].op is Op.INVALIDATE
        assert len(second.changes) <= 11
        await hook.ack(second.cursor)
        with pytest.raises(CursorExpired):
            await hook.stream(first.cursor).__anext__()


async def test_cursors(hook: Hook) -> None:
    start = await hook.now()
    changes = await after(hook, "INSERT INTO people VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)")
    async with aclosing(hook.stream(start)) as batches:
        again = await anext(batches)
    assert again.changes == changes
    await hook.ack(again.cursor)
    await hook.ack(again.cursor)
    assert (await hook.status()).lag_changes == 0
    with pytest.raises(CursorExpired):
        await hook.stream(start).__anext__()
    for nonsense in ("x", "hook1_", again.cursor + "9"):
        with pytest.raises(CursorInvalid):
            await hook.stream(nonsense).__anext__()
    for foreign in ("mysql1_0-1-7", "hook1_" + "0" * 32 + "_1"):
        with pytest.raises(CursorForeign):
            await hook.stream(foreign).__anext__()


async def test_filters(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    connection = writer(path)
    connection.execute(PEOPLE)
    connection.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    async with Hook(url_of(path), Filter(tables=("people",), where="n > 1")) as hook:
        changes = await after(
            hook, "INSERT INTO other VALUES (1)", "INSERT INTO people VALUES (1, 'a', 1)", "UPDATE people SET n = 2"
        )
        assert short(changes) == ["update 1 n"]
        status = await hook.status()
        assert (status.in_feed, status.in_forge) == (("tables",), ("rows",))


async def test_hooks_of_the_application_stay(hook: Hook) -> None:
    calls: list[str] = []

    def committing() -> bool:
        calls.append("commit")
        return False

    hook.connection.set_commit_hook(committing)
    assert len(await after(hook, "INSERT INTO people VALUES (1, 'a', 1)")) == 1
    assert calls == ["commit"]


async def test_it_must_be_open(tmp_path: Path) -> None:
    hook = Hook(url_of(tmp_path / "no" / "shop.db"))
    with pytest.raises(SourceError, match="not open"):
        _ = hook.connection
    with pytest.raises(SourceError, match="cannot be opened"):
        await hook.__aenter__()
