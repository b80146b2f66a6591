"""As-of against a small database in plain Python: interleaved transactions, snapshots, truncates, tables read again."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable
from forge.pipeline import bronze, instants
from forge.pipeline.asof import alive, lake_as_of, row_as_of, table_as_of
from forge.pipeline.changes import seq, seq_of_read
from forge.pipeline.definitions import Definition
from forge.pipeline.instants import Instant
from forge.pipeline.lake import Lake
from forge.values import Column
from tests.pipeline.by_hand import append, change

HISTORY = StructType(
    [
        StructField("id", LongType()),
        StructField("v", LongType()),
        StructField("_seq", StringType()),
        StructField("_end_seq", StringType()),
        StructField("_op", StringType()),
        StructField("_valid_from", TimestampType()),
        StructField("_valid_to", TimestampType()),
        StructField("_is_current", BooleanType()),
        StructField("_transaction", LongType()),
        StructField("_end_transaction", LongType()),
    ]
)
START = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Event(NamedTuple):
    """A line of the log; `key` is None where the table as a whole is meant."""

    seq: str
    op: str
    at: datetime
    xid: int | None
    key: int | None = None
    value: int | None = None


class Recorded(NamedTuple):
    instant: Instant
    rows: dict[int, int]


class World:
    """A table with a key, written by transactions that run side by side and lock the rows that they change."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._clock = 0
        self._next_xid = random.choice([100, 2**33])
        self._next_id = 1
        self._running: dict[int, list[Event]] = {}
        self._locked: dict[int, int] = {}
        self._generation = 1
        self.rows = dict.fromkeys(range(3), 0)
        self._log = [Event(f"{1:04x}", "snapshot", self._now(), None)]
        self._log += [Event(seq_of_read(1), "read", self._log[0].at, None, key, 0) for key in self.rows]
        self.recorded: list[Recorded] = []

    def play(self, steps: int) -> "World":
        for step in range(steps):
            act = self._random.choices(
                [self._begin, self._write, self._end, self._truncate, self._record], [3, 8, 3, 1, 4]
            )
            act[0]()
            if step == steps // 2:
                self._read_anew()
        return self

    @property
    def log(self) -> list[Event]:
        return self._log

    def _now(self) -> datetime:
        self._clock += 1
        return START + timedelta(milliseconds=self._clock)

    def _begin(self) -> None:
        if len(self._running) < 4:
            self._running[self._next_xid] = []
            self._next_xid += 1

    def _view(self, xid: int) -> dict[int, int]:
        return apply(dict(self.rows), self._running[xid])

    def _write(self) -> None:
        free = [key for key in range(6) if key not in self._locked]
        if not self._running:
            return
        xid = self._random.choice(sorted(self._running))
        mine = free + [key for key, owner in self._locked.items() if owner == xid]
        if not mine or any(event.op == "truncate" for other in self._running.values() for event in other):
            return
        key = self._random.choice(mine)
        self._locked[key] = xid
        op = self._random.choice(["update", "delete"]) if key in self._view(xid) else "insert"
        value = None if op == "delete" else self._random.randrange(1000)
        self._running[xid].append(Event(self._place(), op, self._now(), xid, key, value))

    def _place(self) -> str:
        self._next_id += 1
        return f"{self._next_id:016x}"

    def _truncate(self) -> None:
        if len(self._running) == 1 and self._random.random() < 0.5:
            xid = next(iter(self._running))
            self._running[xid].append(Event(self._place(), "truncate", self._now(), xid))

    def _end(self) -> None:
        if self._running:
            self._finish(self._random.choice(sorted(self._running)), commit=self._random.random() < 0.8)

    def _finish(self, xid: int, commit: bool) -> None:
        events = self._running.pop(xid)
        self._locked = {key: owner for key, owner in self._locked.items() if owner != xid}
        if commit:
            apply(self.rows, events)
            self._log += [event._replace(seq=f"{self._generation:04x}{event.seq}") for event in events]

    def _record(self) -> None:
        xids = sorted(self._running)
        snapshot = Snapshot(xids[0] if xids else self._next_xid, self._next_xid, tuple(xids))
        self.recorded.append(Recorded(Instant(self._now(), snapshot), dict(self.rows)))

    def _read_anew(self) -> None:
        """As after an event that the log cannot say row by row: what S shows is of a new generation, the rest later."""
        self._begin()
        if any(event.op == "truncate" for other in self._running.values() for event in other):
            return
        xid = max(self._running)
        self._running[xid].append(Event(self._place(), "schema", self._now(), xid))
        self._finish(xid, commit=True)
        self._generation += 1
        at = self._now()
        self._log.append(Event(f"{self._generation:04x}", "snapshot", at, None))
        reads = [Event(seq_of_read(self._generation), "read", at, None, *row) for row in self.rows.items()]
        self._log += reads

    def history(self) -> Iterator[tuple[Any, ...]]:
        events = sorted(self._log, key=lambda event: (event.seq, event.key or 0))
        ends = [event for event in events if event.op in ("truncate", "snapshot")]
        for event in events:
            if event.key is None:
                continue
            following = [other for other in events if other.key == event.key and other.seq > event.seq]
            enders = following[:1] + [end for end in ends if end.seq > event.seq][:1]
            end = event if event.op == "delete" else min(enders, default=None, key=lambda other: other.seq)
            value = event.value
            ended = (None, None, None) if end is None else (end.seq, end.at, end.xid)
            yield (
                event.key,
                value,
                event.seq,
                ended[0],
                event.op,
                event.at,
                ended[1],
                end is None,
                event.xid,
                ended[2],
            )


def apply(rows: dict[int, int], events: list[Event]) -> dict[int, int]:
    for event in events:
        if event.op == "truncate":
            rows.clear()
        elif event.op == "delete":
            assert event.key is not None
            del rows[event.key]
        elif event.key is not None:
            assert event.value is not None
            rows[event.key] = event.value
    return rows


def test_a_version_is_alive_exactly_when_the_snapshot_shows_it(spark: SparkSession) -> None:
    checked = 0
    for seed in range(8):
        world = World(random.Random(seed)).play(120)
        history = spark.createDataFrame(list(world.history()), HISTORY)
        flags = [F.expr(alive(recorded.instant)) for recorded in world.recorded]
        versions = history.select("id", "v", F.array(*flags).alias("alive")).collect()
        for number, recorded in enumerate(world.recorded):
            found = sorted((row["id"], row["v"]) for row in versions if row["alive"][number])
            assert found == sorted(recorded.rows.items()), (seed, number)
            checked += 1
    assert checked > 100


def second(number: float) -> datetime:
    return START + timedelta(seconds=number)


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Orders are tracked at 1, changed until 3, defined again at 5 and read again at 7."""
    lake = Lake(str(tmp_path_factory.mktemp("shop")))
    columns = (Column("id", "bigint"), Column("v", "bigint"))
    events = [
        change("0001", "snapshot", second(0)),
        change(seq(1, 1), "schema", second(1), transaction=99),
        change(seq(1, 3), "schema", second(5), transaction=102, version=2),
        change("0002", "snapshot", second(7), version=2),
    ]
    history = [
        (1, 10, "0001!", seq(1, 2), "read", second(0), second(3), False, None, 100),
        (2, 20, "0001!", "0002", "read", second(0), second(7), False, None, None),
        (1, 11, seq(1, 2), "0002", "update", second(3), second(7), False, 100, None),
        (1, 11, "0002!", None, "read", second(7), None, True, None, None),
        (2, 20, "0002!", None, "read", second(7), None, True, None, None),
    ]
    append(spark, lake, events)
    spark.createDataFrame(history, HISTORY).coalesce(1).write.format("delta").save(lake.history("public.orders"))
    bronze.keep(spark, lake, [Definition(version, "public", "orders", columns, ("id",)) for version in (1, 2)])
    pairs = [(0.5, "99:99:"), (2, "100:101:100"), (4, "102:102:"), (6, "103:103:"), (8, "104:104:")]
    assert instants.copy(spark, lake, [(second(at), snapshot) for at, snapshot in pairs]) == 5
    return lake


@pytest.mark.contract("T9")
def test_tables_and_rows_as_they_were(spark: SparkSession, shop: Lake) -> None:
    rows = table_as_of(spark, shop, "orders", second(3.9))
    assert rows.columns == ["id", "v"]
    assert sorted(map(tuple, rows.collect())) == [(1, 10), (2, 20)], "the update was not committed at the instant at 2"
    assert row_as_of(spark, shop, "public.orders", 1, second(4)).collect() == [Row(id=1, v=11)]
    assert row_as_of(spark, shop, "orders", {"id": "3"}, second(4)).collect() == []
    whole = lake_as_of(spark, shop, second(8))
    assert {name: sorted(map(tuple, frame.collect())) for name, frame in whole.items()} == {
        "public.orders": [(1, 11), (2, 20)]
    }


def test_what_the_lake_cannot_tell_is_refused(spark: SparkSession, shop: Lake) -> None:
    for instant, why in {second(0.6): "did not know it yet", second(6): "was not read again yet"}.items():
        with pytest.raises(HistoryUnavailable, match=why) as refused:
            table_as_of(spark, shop, "orders", instant)
        assert "\n" not in str(refused.value)
    assert refused.value.fix == "ask for an instant from 2026-01-31T12:00:07+00:00 on"
    with pytest.raises(HistoryUnavailable, match="before the first instant"):
        table_as_of(spark, shop, "orders", second(-1))
    with pytest.raises(HistoryUnavailable, match="no time zone"):
        table_as_of(spark, shop, "orders", datetime(2026, 1, 31, 12))
    with pytest.raises(HistoryUnavailable, match="the lake has no such table"):
        table_as_of(spark, shop, "nowhere", second(4))
    with pytest.raises(HistoryUnavailable, match=r"the key of public\.orders is id"):
        row_as_of(spark, shop, "orders", {"name": 1}, second(4))
    with pytest.raises(HistoryUnavailable, match="cannot be 'seven'"):
        row_as_of(spark, shop, "orders", "seven", second(4))


def test_instants_are_kept_once(spark: SparkSession, shop: Lake) -> None:
    pairs = [(second(8), "104:104:"), (second(9), "105:105:"), (second(9), "105:105:")]
    assert [instants.copy(spark, shop, pairs) for _ in range(2)] == [1, 0]
    assert instants.copy(spark, shop, [(second(7.5), "103:103:")]) == 0, "never one before the newest"
    assert instants.newest(spark, shop) == second(9)
    assert instants.span(spark, shop) == (second(0.5), second(9))
    assert instants.at_or_before(spark, shop, second(60 * 60 * 24 * 40)) == Instant(second(9), Snapshot(105, 105))


def test_a_lake_without_instants_says_so(spark: SparkSession, lake: Lake) -> None:
    assert instants.newest(spark, lake) is None
    assert instants.copy(spark, lake, []) == 0
    with pytest.raises(HistoryUnavailable, match="no recorded instants"):
        table_as_of(spark, lake, "orders", second(0))
