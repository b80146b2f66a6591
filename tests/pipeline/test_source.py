"""The data source: what a batch or a stream of the log gives, whatever happens meanwhile."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from forge.changelog import partitions
from forge.changelog.maintenance import Policy, run_once
from forge.errors import CursorExpired, TrackingError
from forge.pipeline.changes import CHANGES
from forge.pipeline.failures import translate
from forge.pipeline.source import register
from forge.pipeline.source.offset import LogPiece, Offset, TableShare
from forge.pipeline.source.options import StreamOptions
from forge.pipeline.source.planner import Planner
from forge.pipeline.source.reading import ARROW, StreamScope, read
from forge.postgres.connection import Connection, connect

SHOP = "create table orders (id bigint primary key, status text, total numeric(10, 2))"
TALLY = "create table tally (n int, what text)"


def track(connection: Connection, *tables: str) -> None:
    for table in tables:
        connection.execute("select forge_enable_reactivity(%s)", (table,))


@pytest.fixture
def shop(connection: Connection) -> Connection:
    """A table with a key and one without, both with rows from before they were tracked."""
    connection.execute("select forge.current_identity()")
    connection.execute(SHOP)
    connection.execute(TALLY)
    connection.execute("insert into orders select i, 'placed', i from generate_series(1, 20) i")
    connection.execute("insert into tally values (1, 'a'), (1, 'a'), (2, null)")
    track(connection, "orders", "tally")
    return connection


@contextmanager
def planner(url: str, **options: Any) -> Iterator[Planner]:
    planner = Planner(StreamOptions(url, **{"start": "history", **options}))
    try:
        yield planner
    finally:
        planner.close()


def drained(planner: Planner, offset: Offset | None = None, most: int | None = None) -> list[Offset]:
    """The offsets from here to where there is nothing more to read."""
    offsets = [offset or planner.initial()]
    while (following := planner.next(offsets[-1], most)) != offsets[-1]:
        offsets.append(Offset.load(following.dump()))
    return offsets


def rows(url: str, planner: Planner, *offsets: Offset) -> list[dict[str, Any]]:
    scope = StreamScope(url, planner.identity.uuid, planner.first_id, None)
    return [
        row
        for offset in offsets
        for piece in offset.pieces
        for batch in read(scope, piece)
        for row in batch.to_pylist()
    ]


def state(changes: list[dict[str, Any]], table: str) -> dict[str, str]:
    """The rows of a keyed table that the changes lead to, by seq alone."""
    now: dict[str, str] = {}
    for change in sorted(changes, key=lambda change: change["seq"]):
        if change["table"] != table:
            continue
        if change["op"] in ("truncate", "snapshot"):
            now.clear()
        elif change["op"] == "delete":
            now.pop(change["row_id"], None)
        elif change["row_id"] is not None:
            now[change["row_id"]] = json.loads(change["after"])
    return now


def stored(connection: Connection, table: str) -> dict[str, Any]:
    found = connection.execute(f"select id::text, row_to_json(t)::text from {table} t".encode()).fetchall()
    return {key: json.loads(row) for key, row in found}


def test_the_frame_is_one_for_spark_and_arrow() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    assert ARROW.equals(to_arrow_schema(CHANGES, timezone="UTC"))


class TestPlan:
    def test_rows_from_before_come_first_and_every_change_after_them(self, database: str, shop: Connection) -> None:
        shop.execute("update orders set status = 'paid' where id <= 5")
        shop.execute("delete from orders where id = 20")
        shop.execute("insert into orders values (21, 'new', 1)")
        with planner(database) as plan:
            found = rows(database, plan, *drained(plan))
        reads = {row["row_id"]: json.loads(row["after"]) for row in found if row["op"] == "read" and row["row_id"]}
        assert reads.keys() == {str(id) for id in range(1, 21)}
        assert {row["status"] for row in reads.values()} == {"placed"}
        assert state(found, "orders") == stored(shop, "orders")
        assert all(row["user_id"] is None and row["transaction"] is None for row in found if row["op"] == "read")

    def test_equal_rows_of_a_table_without_a_key_are_all_there(self, database: str, shop: Connection) -> None:
        shop.execute("insert into tally values (1, 'a')")
        shop.execute("delete from tally where n = 2")
        with planner(database) as plan:
            found = [row for row in rows(database, plan, *drained(plan)) if row["table"] == "tally"]
        reads = [row for row in found if row["op"] == "read"]
        assert sorted(row["after"] for row in reads) == [
            '{"n":1,"what":"a"}',
            '{"n":1,"what":"a"}',
            '{"n":2,"what":null}',
        ]
        assert len({row["seq"] for row in reads}) == 3

    def test_a_snapshot_is_the_same_while_rows_change(self, database: str, shop: Connection) -> None:
        with planner(database, start="snapshot", rows_per_share=7) as plan:
            shop.execute("analyze orders")
            first = plan.next(plan.initial(), None)
            before = rows(database, plan, first)
            shop.execute("update orders set id = id + 100, status = 'moved' where id % 2 = 0")
            shop.execute("delete from orders where id % 3 = 0")
            shop.execute("insert into orders values (7000, 'late', 0)")
            shop.execute("update tally set what = 'b'")
            shop.execute("delete from tally where n = 2")
            assert sorted(map(str, rows(database, plan, first))) == sorted(map(str, before))
            found = rows(database, plan, *drained(plan, first)) + before
        assert len([row for row in before if row["op"] == "read"]) == 23
        assert sum(isinstance(piece, TableShare) for piece in first.pieces) > 2
        assert state(found, "orders") == stored(shop, "orders")

    def test_a_batch_has_as_many_changes_as_it_may_and_is_read_the_same_again(
        self, database: str, shop: Connection
    ) -> None:
        with planner(database, start="now") as plan:
            begin = plan.initial()
            shop.execute("insert into orders select i, 'x', 0 from generate_series(100, 599) i")
            offsets = drained(plan, begin, most=120)
            sizes = [len(rows(database, plan, offset)) for offset in offsets[1:]]
            assert sizes == [120, 120, 120, 120, 20]
            assert all(len(offset.pieces) == 2 for offset in offsets[1:-1])
            again = [sorted(map(str, rows(database, plan, offset))) for offset in offsets[1:]]
            shop.execute("delete from orders")
            assert [sorted(map(str, rows(database, plan, offset))) for offset in offsets[1:]] == again
        with planner(database, start="now") as other:
            rest = drained(other, offsets[2], most=120)
            assert sum(len(rows(database, other, offset)) for offset in rest[1:]) == 260 + 599 - 79

    def test_a_late_commit_is_neither_lost_nor_doubled(self, database: str, shop: Connection) -> None:
        with connect(database) as other, planner(database, start="now") as plan:
            begin = plan.initial()
            other.execute("begin")
            other.execute("insert into orders values (1000, 'late', 0)")
            shop.execute("insert into orders values (1001, 'early', 0)")
            middle = drained(plan, begin)
            other.execute("commit")
            end = drained(plan, middle[-1])
            assert [row["row_id"] for row in rows(database, plan, *middle)] == ["1001"]
            assert [row["row_id"] for row in rows(database, plan, *end[1:])] == ["1000"]

    def test_a_new_definition_is_read_anew_after_what_came_before_it(self, database: str, shop: Connection) -> None:
        with planner(database) as plan:
            offsets = drained(plan)
            shop.execute("update orders set status = 'old' where id = 1")
            shop.execute("alter table orders add column note text default 'hi'")
            shop.execute("update orders set note = 'new' where id = 2")
            offsets += drained(plan, offsets[-1])[1:]
            found = rows(database, plan, *offsets)
        assert state(found, "orders") == stored(shop, "orders")
        assert {offset.generation for offset in offsets[1:]} == {1, 2}

    def test_two_definitions_in_a_row_do_not_stop_a_stream(self, database: str, shop: Connection) -> None:
        with planner(database) as plan:
            offsets = drained(plan)
            shop.execute("alter table orders add column a int default 1")
            first = plan.next(offsets[-1], None)
            waiting = plan.next(first, None)
            shop.execute("alter table orders add column b int default 2")
            offsets += [first, waiting, *drained(plan, waiting)[1:]]
            found = rows(database, plan, *offsets)
        assert state(found, "orders") == stored(shop, "orders")

    def test_a_table_that_is_tracked_later_comes_with_its_rows(self, database: str, shop: Connection) -> None:
        with planner(database) as plan:
            offsets = drained(plan)
            shop.execute("create table more (id int primary key, a text)")
            shop.execute("insert into more values (1, 'from before')")
            track(shop, "more")
            shop.execute("insert into more values (2, 'from after')")
            offsets += drained(plan, offsets[-1])[1:]
            found = rows(database, plan, *offsets)
        assert state(found, "more") == stored(shop, "more")
        assert sum(row["table"] == "more" and row["op"] == "snapshot" for row in found) == 1

    def test_a_truncated_table_is_empty(self, database: str, shop: Connection) -> None:
        with planner(database) as plan:
            begin = plan.initial()
            shop.execute("truncate orders")
            shop.execute("insert into orders values (5, 'after', 0)")
            found = rows(database, plan, *drained(plan, begin))
        assert state(found, "orders") == stored(shop, "orders") == {"5": {"id": 5, "status": "after", "total": 0.00}}

    def test_a_table_that_is_dropped_or_not_tracked_any_more_stops_no_other(
        self, database: str, shop: Connection
    ) -> None:
        with planner(database) as plan, planner(database, tables=("tally",)) as named:
            offsets, mine = drained(plan), drained(named)
            shop.execute("select forge_disable_reactivity('tally')")
            with pytest.raises(TrackingError, match="tally is not tracked") as missing:
                named.next(mine[-1], None)
            assert missing.value.fix == "forge enable tally"
            shop.execute("alter table orders add column note text")
            shop.execute("insert into tally values (9, 'unseen')")
            shop.execute("drop table tally")
            found = rows(database, plan, *offsets, *drained(plan, offsets[-1])[1:])
        assert state(found, "orders") == stored(shop, "orders")
        assert not [row for row in found if row["table"] == "tally" and '"n":9' in (row["after"] or "")]

    def test_rows_of_a_snapshot_have_the_time_of_the_database(
        self, database: str, shop: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Wrong(datetime):
            """A clock of the driver's that is years behind."""

            @classmethod
            def now(cls, tz: tzinfo | None = None) -> "Wrong":
                return cls(2001, 1, 1, tzinfo=tz)

        monkeypatch.setattr("forge.pipeline.source.planner.datetime", Wrong)
        clock = "select clock_timestamp()"
        before = shop.execute(clock).fetchone()
        with planner(database, start="snapshot") as plan:
            found = rows(database, plan, *drained(plan))
        after = shop.execute(clock).fetchone()
        assert before is not None
        assert after is not None
        assert all(before[0] < row["at"] < after[0] for row in found)

    def test_an_unchanged_log_plans_nothing_and_forgets_nothing(self, database: str, shop: Connection) -> None:
        with planner(database, start="now", tables=("orders",)) as plan:
            begin = plan.initial()
            shop.execute("insert into tally values (7, 'not asked for')")
            assert plan.next(begin, None) == begin
            shop.execute("insert into orders values (99, 'x', 0)")
            (piece,) = plan.next(begin, None).pieces
            assert isinstance(piece, LogPiece)
            assert piece.count == 1


def test_an_offset_inside_the_history_expires_when_what_follows_it_is_trimmed(database: str, shop: Connection) -> None:
    shop.execute("insert into orders select i, 'x', 0 from generate_series(100, 999) i")
    with planner(database) as plan:
        offsets = drained(plan, most=120)
        inside = next(offset for offset in offsets if offset.cursor.last is not None)
    day = datetime.now(UTC).date() - timedelta(days=40)
    partitions.make(shop, day)
    shop.execute("update forge.forge_event_log set day = %s, at = at - interval '40 days'", (day,))
    assert run_once(database, Policy(retention_days=1, hold_days=0)).trimmed_rows
    with planner(database) as later, pytest.raises(CursorExpired):
        later.next(inside, 120)
    with planner(database) as afresh:  # what was gone before the beginning is not missed
        ops = [row["op"] for row in rows(database, afresh, *drained(afresh))]
        assert (ops.count("read"), set(ops)) == (923, {"read", "snapshot"})


class TestSpark:
    def test_a_batch_reads_the_log(self, spark: SparkSession, database: str, shop: Connection) -> None:
        shop.execute("insert into orders values (50, E'line\\nbreak \"q\", \\u00fc', 1.10)")
        frame = _read(spark, database)
        (row,) = frame.where("op = 'insert'").collect()
        assert json.loads(row["after"]) == {"id": 50, "status": 'line\nbreak "q", ü', "total": 1.10}
        assert '"total":1.10}' in row["after"]
        assert frame.schema == CHANGES

    def test_conditions_reach_the_database_and_change_no_answer(
        self, spark: SparkSession, database: str, shop: Connection
    ) -> None:
        shop.execute("insert into orders select i, 'x', 0 from generate_series(100, 199) i")
        shop.execute("delete from orders where id = 100")
        for condition in (
            "op = 'delete'",
            "op in ('delete', 'truncate') and table = 'orders'",
            "table = 'tally'",
            "row_id = '150'",
            "row_id > '150'",
            "at > current_timestamp() - interval 1 hour and user_id is null",
            "schema = 'public' and (op = 'insert' or row_id = '1')",
        ):
            pushed = _ids(_read(spark, database).where(condition))
            assert pushed == _ids(_read(spark, database).cache().where(condition)), condition
            assert pushed or condition.startswith("table = 'tally'")

    def test_a_stream_goes_on_where_it_stood(
        self, spark: SparkSession, database: str, shop: Connection, tmp_path: Path
    ) -> None:
        def take() -> list[Row]:
            taken: list[Row] = []
            stream = _stream(spark, database, maxEventsPerTrigger="40")
            writer = stream.writeStream.foreachBatch(lambda frame, _: taken.extend(frame.collect()))
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            assert query.awaitTermination(60)
            return taken

        first = take()
        shop.execute("insert into orders select i, 'x', 0 from generate_series(100, 199) i")
        second = take()
        shop.execute("delete from orders where id = 100")
        third = take()
        assert sum(row["op"] == "read" for row in first) == 23
        assert [len(second), len(third)] == [100, 1]
        assert take() == []

    def test_a_trimmed_offset_says_what_to_do(
        self, spark: SparkSession, database: str, shop: Connection, tmp_path: Path
    ) -> None:
        with planner(database, start="now") as plan:
            begin = plan.initial()
        shop.execute("insert into orders values (70, 'gone', 0)")
        shop.execute(
            "insert into forge.trimmed (partition, reason, rows, last_id, last_transaction)"
            " select 'x', 'test', 1, max(id), max(transaction_id::text::bigint)::text::xid8 from forge.forge_event_log"
        )
        stream = _stream(spark, database, start=str(begin.cursor))
        query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        with pytest.raises(StreamingQueryException) as failed:
            query.trigger(availableNow=True).start().awaitTermination(60)
        error = translate(failed.value)
        assert error is not None
        assert "trimmed" in str(error)
        assert "--resnapshot" in error.fix


def _read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("forge").option("url", url).options(**options).load()


def _stream(spark: SparkSession, url: str, **options: str) -> DataFrame:
    register(spark)
    return spark.readStream.format("forge").option("url", url).options(**options).load()


def _ids(frame: DataFrame) -> list[str]:
    return sorted(row["id"] for row in frame.collect())
