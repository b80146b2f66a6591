"""A lake that is kept: from the first row to kill -9, it is the database, and bronze is the log."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from delta.exceptions import ConcurrentDeleteReadException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import VariantType

from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.embedded import PostgresServer
from forge.errors import CursorError, CursorExpired, HistoryUnavailable, LakeError, TrackingError
from forge.history.asof import table_as_of as rewound
from forge.pipeline import ledger
from forge.pipeline.asof import lake_as_of, table_as_of
from forge.pipeline.compare import compare
from forge.pipeline.gold.audit import audit
from forge.pipeline.lake import Lake
from forge.pipeline.ledger import LedgerEntry
from forge.pipeline.run import LakeSettings, PipelineRun, pipeline
from forge.pipeline.silver import merge
from forge.pipeline.silver.replay import replay
from forge.pipeline.tables import exists, load
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from tests.checkers.lake import Plan, run
from tests.checkers.lake.keeper import STEPS

ORDERS = (
    "create table orders (id bigint primary key, customer text not null, total numeric(12, 2), status text,"
    " placed timestamptz not null default now(), tags text[], doc jsonb)"
)
EVENTS = "create table event (what text, n int)"


class Kept:
    """A lake beside a database, and what its batches said."""

    def __init__(self, spark: SparkSession, url: str, lake: Lake, connection: Connection) -> None:
        self.spark = spark
        self.url = url
        self.lake = lake
        self.connection = connection
        self.entries: list[LedgerEntry] = []
        self.after_batch: Callable[[], None] = lambda: None

    @contextmanager
    def running(self, settings: LakeSettings | None = None, **more: Any) -> Iterator[PipelineRun]:
        def told(entry: LedgerEntry) -> None:
            self.entries.append(entry)
            self.after_batch()

        with pipeline(self.spark, self.url, self.lake, settings, on_batch=told, **more) as running:
            yield running

    def once(self, settings: LakeSettings | None = None, **more: Any) -> None:
        with self.running(settings, **more) as running:
            running.once()

    def current(self, table: str = "orders") -> list[dict[str, Any]]:
        rows = load(self.spark, self.lake.current(f"public.{table}")).collect()
        return [row.asDict(recursive=True) for row in rows]

    def equal(self) -> bool:
        return compare(self.spark, self.lake, self.url).equal


@pytest.fixture
def kept(spark: SparkSession, database: str, lake: Lake, connection: Connection) -> Kept:
    connection.execute("select forge.current_identity()")
    connection.execute(ORDERS)
    connection.execute(EVENTS)
    connection.execute(
        "insert into orders (id, customer, total) select i, 'from before', i from generate_series(1, 9) i"
    )
    connection.execute("insert into event values ('old', 1), ('old', 1)")
    for table in ("orders", "event"):
        connection.execute("select forge_enable_reactivity(%s)", (table,))
    return Kept(spark, database, lake, connection)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.contract("T9", "T11")
def test_the_lake_is_the_database_through_everything_that_happens_to_a_table(kept: Kept) -> None:
    write = kept.connection.execute
    write("select forge_context('ada', 'checkout', 'trace-1')")
    with kept.connection.transaction():
        write("select forge_context('ada', 'checkout', 'trace-1')")
        write("update orders set status = 'paid', tags = '{a,null}' where id <= 3")
        write("delete from orders where id = 9")
    write("update event set n = 2 where ctid = (select min(ctid) from event)")
    kept.once()
    assert kept.equal()
    run_once(kept.url, Policy())
    noted = {table: rewound(kept.connection, table, datetime.now(UTC)) for table in ("orders", "event")}
    history = load(kept.spark, kept.lake.history("public.orders"))
    paid = history.where("id = 1").orderBy("_seq").collect()
    assert [(row["_op"], row["status"], row["_is_current"], row["_user_id"]) for row in paid] == [
        ("read", None, False, None),
        ("update", "paid", True, "ada"),
    ]
    assert paid[0]["_valid_to"] == paid[1]["_valid_from"]
    (gone,) = history.where("_op = 'delete'").collect()
    assert (gone["id"], gone["_user_id"], gone["_is_current"]) == (9, "ada", False)

    write("update orders set id = 100 where id = 1")
    write("alter table orders add column note text default 'hi'")
    write("alter table orders alter column total type numeric(14, 3)")
    write("insert into orders (id, customer, total, note) values (200, 'new', 1.125, null)")
    write("delete from event where n = 1")
    kept.once()
    assert kept.equal()
    assert {row["note"] for row in kept.current()} == {"hi", None}
    assert {row["total"] for row in kept.current() if row["id"] == 200} == {Decimal("1.125")}

    write("truncate event")
    write("alter table orders drop column note")
    write("insert into event values ('new', 7)")
    kept.once()
    assert kept.equal()
    assert [(row["what"], row["n"]) for row in kept.current("event")] == [("new", 7)]
    assert "note" not in kept.current()[0]

    found = lake_as_of(kept.spark, kept.lake, noted["orders"].at)
    for table, then in noted.items():
        rows = found[f"public.{table}"].collect()
        assert len(rows) == len(then.rows)
        if table == "orders":
            assert {row["id"]: row["status"] for row in rows} == {row["id"]: row["status"] for row in then.rows}
    who = audit(kept.spark, kept.lake, user="ada").collect()
    assert {(row["row_id"], row["op"]) for row in who} == {
        ("1", "update"),
        ("2", "update"),
        ("3", "update"),
        ("9", "delete"),
    }

    before = sorted(map(str, load(kept.spark, kept.lake.history("public.orders")).collect()))
    current = sorted(map(str, kept.current()))
    replay(kept.spark, kept.lake, "public.orders")
    assert sorted(
        map(str, load(kept.spark, kept.lake.history("public.orders")).select(*history_columns(kept)).collect())
    ) == sorted(map(str, before))
    assert sorted(map(str, kept.current())) == current
    assert kept.equal()
    assert all(entry.whole for entry in kept.entries[-1:])


def history_columns(kept: Kept) -> list[str]:
    return load(kept.spark, kept.lake.history("public.orders")).columns


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_table_without_a_key_that_is_only_appended_to(kept: Kept, server: PostgresServer) -> None:
    """pgbench's tables, tracked while it runs; its history table has no key."""
    subprocess.run([server.bin / "pgbench", "-i", "-q", kept.url], check=True, capture_output=True)
    for table in ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history"):
        kept.connection.execute("select forge_enable_reactivity(%s)", (table,))
    load_ = subprocess.Popen(
        [server.bin / "pgbench", "-n", "-c", "4", "-t", "150", kept.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    tables = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
    kept.once(LakeSettings(tables=tables, most=30_000))
    said, _ = load_.communicate(timeout=120)
    assert load_.returncode == 0, said
    kept.once()
    report = compare(kept.spark, kept.lake, kept.url)
    assert report.equal, report
    assert load(kept.spark, kept.lake.current("public.pgbench_history")).count() == 600


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.contract("X10")
def test_a_batch_is_done_again_when_what_it_stood_on_is_gone(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An executor that took with it what it had computed, then somebody else who wrote to the same table. Keys are
    among the conditions by which stored rows are found, whatever they are."""
    write = kept.connection.execute
    write("create table word (w text primary key, n int)")
    write("insert into word values ('${spark.app.name}', 1), ('${x}', 1), (E'it''s \\ \n\"', 1), ('', 1)")
    write("select forge_enable_reactivity('word')")
    into_history = merge._Merge._into_history
    troubles: SimpleQueue[Callable[[DataFrame], None]] = SimpleQueue()

    def troubled(self: Any, made: DataFrame, *more: Any) -> None:
        with suppress(Empty):
            troubles.get_nowait()(made)
        into_history(self, made, *more)

    def conflict(made: DataFrame) -> None:
        raise ConcurrentDeleteReadException("[DELTA_CONCURRENT_DELETE_READ] somebody deleted what was read")

    monkeypatch.setattr(merge._Merge, "_into_history", troubled)
    troubles.put(merge._free)
    kept.once()
    assert "an executor was lost, the batch 0 is done again" in caplog.text
    write("update word set n = 2")
    write("delete from word where w = '${x}'")
    troubles.put(conflict)
    kept.once()
    assert "somebody else wrote to the lake, the batch" in caplog.text
    assert kept.equal()
    logged = kept.connection.execute("select count(*) from forge.forge_event_log").fetchone()
    assert logged == (load(kept.spark, kept.lake.changes).where("transaction is not null").count(),)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_run_ends_after_its_batch_however_much_there_is_to_do(kept: Kept) -> None:
    kept.connection.execute("insert into orders (id, customer) select i, 'many' from generate_series(100, 399) i")
    with kept.running(LakeSettings(most=100)) as running:
        kept.after_batch = running.stop
        running.once()
    assert len(kept.entries) == 1
    kept.after_batch = lambda: None
    kept.once()
    assert kept.equal()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_json_is_kept_as_the_lake_began_with_it(kept: Kept) -> None:
    kept.connection.execute("""update orders set doc = '{"a": 1}'""")
    kept.once(LakeSettings(tables=("orders",), json="variant"))
    kept.connection.execute("insert into orders (id, customer, doc) values (50, 'new', '[2]')")
    kept.once()
    orders = load(kept.spark, kept.lake.current("public.orders"))
    assert orders.schema["doc"].dataType == VariantType()
    assert {row[0] for row in orders.selectExpr("to_json(doc)").collect()} == {'{"a":1}', "[2]"}
    with pytest.raises(LakeError, match="keeps json as variant"):
        kept.once(LakeSettings(json="string"))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.contract("T9")
def test_tables_read_anew_after_the_log_was_trimmed(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def note() -> tuple[datetime, set[tuple[int, str]]]:
        """Have an instant recorded, and remember what there is then."""
        run_once(kept.url, Policy())
        row = kept.connection.execute("select max(at) from forge.instant").fetchone()
        assert row is not None
        return row[0], set(kept.connection.execute("select id, customer from orders").fetchall())

    def past(at: datetime) -> set[tuple[int, str]]:
        rows = table_as_of(kept.spark, kept.lake, "orders", at).select("id", "customer").collect()
        return {(row[0], row[1]) for row in rows}

    write = kept.connection.execute
    kept.once()
    before = note()
    write("update orders set customer = 'seen'")
    kept.once()
    write("update orders set customer = 'lost' where id < 5")
    write(
        "insert into forge.trimmed (partition, reason, rows, last_id, last_transaction)"
        " select 'x', 'test', 1, max(id), max(transaction_id::text::bigint)::text::xid8 from forge.forge_event_log"
    )
    with pytest.raises(CursorExpired) as expired:
        kept.once()
    assert "--resnapshot" in expired.value.fix
    gap, _ = note()

    def killed(*_: Any) -> None:
        raise RuntimeError("before the batch was noted")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "record", killed)
        with pytest.raises(RuntimeError):
            kept.once(resnapshot=True)
    write("update orders set customer = 'read' where id = 1")
    write("delete from orders where id = 2")
    kept.once(resnapshot=True)
    assert kept.equal()
    after = note()
    write("insert into orders (id, customer) values (77, 'new')")
    kept.once()
    assert kept.equal()
    assert past(before[0]) == before[1]
    assert past(after[0]) == after[1]
    with pytest.raises(HistoryUnavailable, match="did not follow the log then"):
        past(gap)


def test_every_step_of_the_checker_is_there() -> None:
    assert all(callable(getattr(place, name, None)) for place, name, _ in STEPS.values())


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.contract("X10")
@pytest.mark.parametrize("seed", [15, 3])
def test_the_pipeline_survives_being_killed_anywhere(
    spark: SparkSession, server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    """At the first history that it writes, and at the third."""
    report = run(Plan.generate(seed, kills=1, transactions=10), server, spark, tmp_path)
    assert report.discrepancies == ()
    assert report.killed


def test_what_stands_in_the_way_is_said_before_anything_is_written(
    kept: Kept, spark: SparkSession, tmp_path: Path, server: PostgresServer
) -> None:
    with pytest.raises(TrackingError, match="nowhere"):
        kept.once(LakeSettings(tables=("nowhere",)))
    with pytest.raises(CursorError):
        kept.once(LakeSettings(start="yesterday"))
    assert not exists(spark, kept.lake.about), "the lake would begin with that for good"
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(LakeError, match="cannot be written"), pipeline(spark, kept.url, Lake(str(file / "lake"))):
        pass
    with kept.running() as running:
        assert running.about.run == 1
        with pytest.raises(LakeError, match="another run"), kept.running():
            pass
    with fresh_database(server) as other:
        with connect(other) as connection:
            install(connection)
        with pytest.raises(LakeError, match="another database"), pipeline(spark, other, kept.lake):
            pass
        with pytest.raises(LakeError, match="another database"):
            compare(spark, kept.lake, other)
    assert not exists(spark, kept.lake.changes)
