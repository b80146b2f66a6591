"""What was written is what the WAL says, value by value, in the order of commits; and equal to the trigger log."""

from contextlib import suppress

import pytest

import forge
from forge.capture import Filter
from forge.capture.wal import WalSource
from forge.change import UNAVAILABLE, Change, Op, same
from forge.changelog.reader import Reader
from forge.postgres.connection import Connection, connect
from tests.capture.wal.reading import changes, mark, said, to_end
from tests.changelog import log as logs
from tests.changelog.test_capture_values import HOSTILE, TYPES, VALUES, write

pytestmark = pytest.mark.contract("W4")


def enable(connection: Connection, table: str) -> None:
    """Track a table in the log as well; what is logged before a copied log has an identity of its own is not read."""
    logs.enable(connection, table)
    connection.execute("SELECT forge.current_identity()")


async def logged(url: str) -> list[Change]:
    """What the trigger log has of the same writes."""
    async with Reader.open(url) as reader:
        found = [change async for batch in reader.read(reader.start()) for change in batch.changes]
    return [change for change in found if change.op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)]


@pytest.mark.every_version
@pytest.mark.parametrize("session", ["usual", "hostile"])
async def test_every_type_and_operation_equals_the_trigger_log(
    database: str, connection: Connection, session: str
) -> None:
    connection.execute(TYPES)
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(VALUES))
    connection.execute(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns})")
    connection.execute("ALTER TABLE every_type REPLICA IDENTITY FULL")
    enable(connection, "every_type")
    source = WalSource(database)
    cursor = await source.now()
    if session == "hostile":
        connection.execute(HOSTILE)
    write(connection)
    mark(connection)
    seen = changes(await to_end(source, cursor))
    wanted = await logged(database)
    assert [change.op for change in seen] == [change.op for change in wanted]
    for wal, log in zip(seen, wanted, strict=True):
        assert (wal.schema, wal.table, wal.key, wal.source.transaction) == (
            log.schema, log.table, log.key, log.source.transaction,
        )  # fmt: skip
        for mine, theirs in ((wal.before, log.before), (wal.after, log.after)):
            assert (mine is None) == (theirs is None)
            for name, value in (theirs or {}).items():
                assert mine is not None
                kind = VALUES[int(name[1:])][:2] if name != "id" else name
                assert same(mine[name], value), (kind, mine[name], value)


@pytest.mark.every_version
async def test_snapshot_rows_have_the_same_forms(database: str, connection: Connection) -> None:
    connection.execute(TYPES)
    columns = ", ".join(f"c{n} {kind}" for n, (kind, *_) in enumerate(VALUES))
    connection.execute(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns})")
    enable(connection, "every_type")
    connection.execute(f"INSERT INTO every_type VALUES (1, {', '.join(value for _, value, *_ in VALUES)})")
    (log,) = await logged(database)
    found = [change async for batch in WalSource(database).snapshot() for change in batch.changes]
    assert [change.op for change in found] == [Op.READ]
    assert found[0].after is not None
    assert log.after is not None
    for name, value in log.after.items():
        assert same(found[0].after[name], value), name


async def test_commits_come_in_their_order_and_whole(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, who text)")
    source = WalSource(database)
    cursor = await source.now()
    with connect(database) as other, connection.transaction():
        connection.execute("INSERT INTO t VALUES (1, 'slow')")
        with other.transaction():
            other.execute("INSERT INTO t VALUES (2, 'quick')")
        connection.execute("INSERT INTO t VALUES (3, 'slow')")
        with other.transaction():
            other.execute("INSERT INTO t VALUES (4, 'quick')")
    mark(connection)
    seen = changes(await to_end(source, cursor))
    assert [change.row_id for change in seen] == ["2", "4", "1", "3"]
    assert len({change.source.transaction for change in seen}) == 3
    assert [change.source.position for change in seen] == sorted(change.source.position for change in seen)
    assert len({change.id for change in seen}) == 4


async def test_positions_sort_as_changes_come(database: str, connection: Connection) -> None:
    """Of the rows of one record, of a definition before its first row, of a truncate of several tables, too."""
    for name in "ab":
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    source = WalSource(database)
    cursor = await source.now()
    with connection.cursor().copy("COPY a FROM STDIN") as copy:
        for number in range(30):
            copy.write_row((number,))
    connection.execute("INSERT INTO b VALUES (1)")
    for name in "ab":
        connection.execute(f"ALTER TABLE {name} ADD n int")
    with connection.transaction():
        connection.execute("TRUNCATE b, a")
        connection.execute("INSERT INTO a VALUES (1, 1)")
    connection.execute("ALTER TABLE a ADD m int")
    connection.execute("UPDATE a SET id = 2, n = 2")
    mark(connection)
    seen = changes(await to_end(source, cursor))
    told = [change.op.value for change in seen]
    assert told[:31] == ["insert"] * 31
    assert told[31:] == ["schema", "truncate", "schema", "truncate", "insert", "schema", "delete", "insert"]
    positions = [change.source.position for change in seen]
    assert positions == sorted(set(positions))
    assert positions[9].startswith(f"{positions[0]}.")
    assert len({change.id for change in seen}) == len(seen)


async def test_what_is_rolled_back_is_never_seen(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database)
    cursor = await source.now()
    with suppress(ZeroDivisionError), connection.transaction():
        connection.execute("INSERT INTO t VALUES (1)")
        raise ZeroDivisionError
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (2)")
        with suppress(ZeroDivisionError), connection.transaction():
            connection.execute("INSERT INTO t VALUES (3)")
            raise ZeroDivisionError
        connection.execute("INSERT INTO t VALUES (4)")
    mark(connection)
    assert [change.row_id for change in changes(await to_end(source, cursor))] == ["2", "4"]


@pytest.mark.every_version
async def test_a_changed_key_is_a_delete_and_an_insert(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (b int, a text, v int, PRIMARY KEY (a, b))")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1, 'x', 10), (2, 'y', 20)")
    connection.execute("UPDATE t SET b = b + 10, v = v + 1 WHERE a = 'x'")
    connection.execute("UPDATE t SET v = 21 WHERE a = 'y'")
    connection.execute("DELETE FROM t WHERE a = 'y'")
    mark(connection)
    seen = changes(await to_end(source, cursor))
    assert [said(change) for change in seen] == [
        ("insert", '["x", "1"]', {"b": 1, "a": "x", "v": 10}),
        ("insert", '["y", "2"]', {"b": 2, "a": "y", "v": 20}),
        ("delete", '["x", "1"]', None),
        ("insert", '["x", "11"]', {"b": 11, "a": "x", "v": 11}),
        ("update", '["y", "2"]', {"b": 2, "a": "y", "v": 21}),
        ("delete", '["y", "2"]', None),
    ]
    assert seen[2].before == {"b": 1, "a": "x", "v": UNAVAILABLE}
    assert seen[4].before == {"b": 2, "a": "y", "v": UNAVAILABLE}
    assert seen[4].changed == ("v",)
    assert seen[5].before == {"b": 2, "a": "y", "v": UNAVAILABLE}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "NOTHING", "USING INDEX t_email"])
async def test_replica_identities(database: str, connection: Connection, identity: str) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, email text NOT NULL, v int)")
    connection.execute("CREATE UNIQUE INDEX t_email ON t (email)")
    connection.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    if identity == "NOTHING":
        with pytest.raises(forge.ForgeError, match="replica identity") as error:
            await WalSource(database).now()
        assert "ALTER TABLE public.t REPLICA IDENTITY FULL" in error.value.fix
        source = WalSource(database, Filter(operations=(Op.TRUNCATE,)))
        await source.now()
        return
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1, 'a', 10)")
    connection.execute("UPDATE t SET v = 11")
    connection.execute("DELETE FROM t")
    mark(connection)
    insert, update, delete = changes(await to_end(source, cursor))
    key = {"email": "a"} if "INDEX" in identity else {"id": 1}
    assert insert.key == update.key == delete.key == key
    lost = UNAVAILABLE
    before = {
        "DEFAULT": {"id": 1, "email": lost, "v": lost},
        "FULL": {"id": 1, "email": "a", "v": 10},
        "USING INDEX t_email": {"id": lost, "email": "a", "v": lost},
    }[identity]
    assert update.before == before
    assert delete.before == ({**before, "v": 11} if identity == "FULL" else before)


@pytest.mark.every_version
async def test_unchanged_values_out_of_line(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE plain (id int PRIMARY KEY, big text, v int)")
    connection.execute("CREATE TABLE full_row (LIKE plain INCLUDING ALL)")
    connection.execute("CREATE TABLE also_logged (LIKE plain INCLUDING ALL)")
    for table in ("plain", "full_row", "also_logged"):
        connection.execute(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
    connection.execute("ALTER TABLE full_row REPLICA IDENTITY FULL")
    enable(connection, "also_logged")
    source = WalSource(database)
    cursor = await source.now()
    big = "x" * 20_000
    for table in ("plain", "full_row", "also_logged"):
        connection.execute(f"INSERT INTO {table} VALUES (1, %s, 1)", (big,))
        connection.execute(f"UPDATE {table} SET v = 2")
    mark(connection)
    seen = {change.table: change for change in changes(await to_end(source, cursor)) if change.op is Op.UPDATE}
    assert seen["plain"].after == {"id": 1, "big": UNAVAILABLE, "v": 2}
    assert seen["plain"].changed == ("v",)
    assert seen["full_row"].after == {"id": 1, "big": big, "v": 2}
    assert seen["also_logged"].after == {"id": 1, "big": big, "v": 2}
    assert seen["also_logged"].changed == ("v",)


@pytest.mark.every_version
async def test_truncate_names_each_table(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE b (id int PRIMARY KEY REFERENCES a)")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("TRUNCATE a CASCADE")
    mark(connection)
    seen = changes(await to_end(source, cursor))
    assert {(change.op, change.table, change.key) for change in seen} == {
        (Op.TRUNCATE, "a", None), (Op.TRUNCATE, "b", None),
    }  # fmt: skip
    assert len({change.id for change in seen}) == 2


@pytest.mark.every_version
async def test_a_changed_definition_is_said_before_the_rows_that_have_it(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.capture.wal.session.MOST", 1)
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1, 1)")
    connection.execute("ANALYZE t")
    connection.execute("INSERT INTO t VALUES (2, 2)")
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (3, 3)")
        connection.execute(
            "ALTER TABLE t ALTER v TYPE text USING 'v' || v, ADD w timestamptz DEFAULT '2026-01-31 12:00+00'"
        )
        connection.execute("INSERT INTO t VALUES (4, 'four')")
    connection.execute("ALTER TABLE t RENAME TO u")
    connection.execute("INSERT INTO u VALUES (5, 'five')")
    mark(connection)
    batches = await to_end(source, cursor)
    at = "2026-01-31T12:00:00+00:00"
    assert [(change.op.value, change.table, change.after) for change in changes(batches)] == [
        ("insert", "t", {"id": 1, "v": 1}),
        ("insert", "t", {"id": 2, "v": 2}),
        ("insert", "t", {"id": 3, "v": 3}),
        ("schema", "t", None),
        ("insert", "t", {"id": 4, "v": "four", "w": at}),
        ("schema", "u", None),
        ("insert", "u", {"id": 5, "v": "five", "w": at}),
    ]
    columns = [columns for batch in batches for columns in batch.columns]
    assert [column.type for column in columns[0]] == ["integer", "integer"]
    assert [column.type for column in columns[4]] == ["integer", "text", "timestamp with time zone"]
    ids = [change.id for change in changes(batches)]
    # who begins after the first rows knows what the table was like: it gets the same changes
    assert len(set(ids)) == len(ids)
    done = 0
    for batch in batches[:-1]:
        done += len(batch.changes)
        assert [change.id for change in changes(await to_end(WalSource(database), batch.cursor))] == ids[done:]


async def test_who_and_why_arrive_by_the_wal(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    enable(connection, "t")
    source = WalSource(database)
    cursor = await source.now()
    with forge.transaction(connection, user_id=7, function_name="orders.ship", order=118, note=None):
        connection.execute("INSERT INTO t VALUES (1)")
        with forge.transaction(connection, trace_id="abc", order=119):
            connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("INSERT INTO t VALUES (3)")
        with suppress(ZeroDivisionError), forge.transaction(connection, user_id="lost"):
            connection.execute("INSERT INTO t VALUES (99)")
            raise ZeroDivisionError
        connection.execute("INSERT INTO t VALUES (4)")
    connection.execute("INSERT INTO t VALUES (5)")
    connection.execute("SELECT pg_logical_emit_message(true, 'forge', 'no json')")
    mark(connection)
    seen = changes(await to_end(source, cursor))
    log = await logged(database)
    assert [change.row_id for change in seen] == ["1", "2", "3", "4", "5"]
    assert [change.context for change in seen[:4]] == [change.context for change in log[:4]]
    assert seen[1].context.more == {"order": 119, "note": None}
    assert (seen[4].context.user_id, seen[4].context.application_name) == (None, None)


async def test_context_costs_no_round_trip_more_and_nothing_in_a_read_only_transaction(
    database: str, connection: Connection
) -> None:
    connection.execute("SET default_transaction_read_only = on")
    with forge.transaction(connection, user_id=7):
        row = connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
    assert row == (None,)


@pytest.mark.every_version
@pytest.mark.parametrize("two_phase", [False, True])
async def test_prepared_transactions(database: str, connection: Connection, two_phase: bool) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database, two_phase=two_phase)
    cursor = await source.now()
    gid = database.rpartition("_")[2]
    for number, end in ((1, "commit"), (2, "rollback"), (3, "")):
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (%s)", (number,))
        connection.execute(f"PREPARE TRANSACTION '{gid}{number}'")
        if end:
            connection.execute("INSERT INTO t VALUES (%s)", (number * 10,))
            connection.execute(f"{end} PREPARED '{gid}{number}'")
    mark(connection)
    batches = await to_end(source, cursor)
    assert [change.row_id for change in changes(batches)] == ["10", "1", "20"]
    await source.ack(batches[-1].cursor)
    connection.execute(f"COMMIT PREPARED '{gid}3'")
    mark(connection)
    # the place behind the others still has the one that was open
    again = WalSource(database, two_phase=two_phase)
    assert [change.row_id for change in changes(await to_end(again, batches[-1].cursor))] == ["3"]


@pytest.mark.every_version
async def test_large_transactions_are_streamed_and_what_they_rolled_back_is_left_out(
    database: str, connection: Connection
) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    source = WalSource(database)
    cursor = await source.now()
    name = database.rpartition("/")[2]
    connection.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    with connect(database) as other, connection.transaction():
        for part in range(6):
            with suppress(ZeroDivisionError), connection.transaction():
                connection.execute(
                    "INSERT INTO t SELECT %s * 1000 + g, repeat('x', 100) FROM generate_series(1, 800) g", (part,)
                )
                if part == 3:
                    connection.execute("ALTER TABLE t ADD extra int")
                    connection.execute("INSERT INTO t VALUES (-1, 'never')")
                if part % 3 == 0:
                    raise ZeroDivisionError
            other.execute("CREATE TABLE IF NOT EXISTS s (id serial PRIMARY KEY)")
            other.execute("INSERT INTO s DEFAULT VALUES")
    with suppress(ZeroDivisionError), connection.transaction():
        connection.execute("INSERT INTO t SELECT 90000 + g, 'gone' FROM generate_series(1, 3000) g")
        raise ZeroDivisionError
    mark(connection)
    batches = await to_end(source, cursor)
    seen = changes(batches)
    kept = [part * 1000 + g for part in (1, 2, 4, 5) for g in range(1, 801)]
    assert [int(change.row_id) for change in seen if change.table == "t"] == kept
    assert sum(change.table == "s" for change in seen) == 6
    row = connection.execute("SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name LIKE %s", (f"%{name}",))
    assert (row.fetchone() or (0,))[0] > 0, "the server did not stream, so nothing was proven"
    whole = WalSource(database, streaming=False)
    assert [change.id for change in changes(await to_end(whole, cursor))] == [change.id for change in seen]
    # a cursor inside of it goes on there
    inside = next(batch.cursor for batch in batches if "." in batch.cursor.partition("_0/")[2])
    place = [change.id for batch in batches for change in batch.changes].index(
        next(batch for batch in batches if batch.cursor == inside).changes[-1].id
    )
    rest = changes(await to_end(WalSource(database), inside))
    assert [change.id for change in rest] == [change.id for change in seen][place + 1 :]


@pytest.mark.every_version
async def test_many_rows_of_one_record_have_ids_of_their_own(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database)
    cursor = await source.now()
    with connection.cursor().copy("COPY t FROM STDIN") as copy:
        for number in range(500):
            copy.write_row((number,))
    mark(connection)
    seen = changes(await to_end(source, cursor))
    assert [int(change.row_id) for change in seen] == list(range(500))
    assert len({change.id for change in seen}) == 500
    assert len({change.id.partition(".")[0] for change in seen}) < 500


async def test_generated_columns_are_unavailable_or_sent(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v int)")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t (id, v) VALUES (1, 5)")
    mark(connection)
    (seen,) = changes(await to_end(source, cursor))
    assert seen.after == {"id": 1, "twice": 2, "v": 5}


@pytest.mark.every_version
async def test_partitions_speak_for_their_table(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    connection.execute("CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    connection.execute("CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1, 1), (11, 2)")
    connection.execute("UPDATE t SET id = 12 WHERE id = 1")
    mark(connection)
    seen = changes(await to_end(source, cursor))
    assert [(change.op.value, change.table, change.row_id) for change in seen] == [
        ("insert", "t", "1"), ("insert", "t", "11"), ("delete", "t", "1"), ("insert", "t", "12"),
    ]  # fmt: skip


@pytest.mark.every_version
@pytest.mark.contract("W9")
async def test_filters_give_the_same_in_the_feed_and_in_forge(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (tenant int, id int, v int, w int, PRIMARY KEY (tenant, id))")
    connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    wanted = Filter(
        tables=("t",), operations=(Op.INSERT, Op.DELETE), columns=("v",), where="tenant = 1",
    )  # fmt: skip
    pushed = WalSource(database, wanted, slot=f"pushed_{database[-8:]}", push=("columns", "rows"))
    plain = WalSource(database, wanted, slot=f"plain_{database[-8:]}")
    everything = WalSource(database, wanted, slot=f"all_{database[-8:]}", publication="everything")
    connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    cursors = [await source.now() for source in (pushed, plain, everything)]
    connection.execute("INSERT INTO t VALUES (1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 1, 1)")
    connection.execute("INSERT INTO other VALUES (1)")
    connection.execute("UPDATE t SET v = 2 WHERE id = 1")
    connection.execute("UPDATE t SET tenant = 3 WHERE tenant = 1 AND id = 1")
    connection.execute("UPDATE t SET id = 7 WHERE tenant = 1")
    connection.execute("DELETE FROM t")
    connection.execute("INSERT INTO t VALUES (1, 99, 9, 9)")
    results = []
    for source, cursor in zip((pushed, plain, everything), cursors, strict=True):
        found: list[Change] = []
        async for batch in source.stream(cursor):
            found += batch.changes
            if found and found[-1].row_id == '["1", "99"]':
                break
        results.append([said(change) for change in found])
        status = await source.status()
        assert set(status.in_feed) | set(status.in_forge) == {"tables", "operations", "columns", "rows"}
    assert results[0] == results[1] == results[2]
    assert [(op, row) for op, row, _ in results[0]] == [
        ("insert", '["1", "1"]'), ("insert", '["1", "2"]'), ("delete", '["1", "1"]'), ("delete", '["1", "2"]'),
        ("insert", '["1", "7"]'), ("delete", '["1", "7"]'), ("insert", '["1", "99"]'),
    ]  # fmt: skip
    assert results[0][0][2] == {"tenant": 1, "id": 1, "v": 1}
    assert (await pushed.status()).in_feed == ("tables", "operations", "columns", "rows")
    assert (await plain.status()).in_feed == ("tables", "operations")
    assert (await everything.status()).in_feed == ()


async def test_a_slot_that_is_only_read_stays_where_it_is(database: str, connection: Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = WalSource(database)
    cursor = await source.now()
    connection.execute("INSERT INTO t VALUES (1)")
    mark(connection)
    first = await to_end(source, cursor)
    assert [c.id for c in changes(await to_end(WalSource(database), cursor))] == [c.id for c in changes(first)]
