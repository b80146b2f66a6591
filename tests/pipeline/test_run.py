"""A lake that is kept: from the first row to kill -9, it is the database, and bronze is the log."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.changelog.connection import Connection, connect
from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.errors import LakeError, TrackingError
from forge.history.asof import table_as_of as rewound
from forge.pipeline.asof import lake_as_of
from forge.pipeline.compare import compare
from forge.pipeline.gold.audit import audit
from forge.pipeline.lake import Lake
from forge.pipeline.ledger import Entry
from forge.pipeline.run import Pipeline, Settings, pipeline
from forge.pipeline.silver.replay import replay
from forge.pipeline.tables import exists, load
from forge.postgres import PostgresServer
from forge.testing import fresh_database
from forge.testing.lake import Plan, run

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
        self.entries: list[Entry] = []

    @contextmanager
    def running(self, settings: Settings | None = None, **more: Any) -> Iterator[Pipeline]:
        with pipeline(self.spark, self.url, self.lake, settings, on_batch=self.entries.append, **more) as running:
            yield running

    def once(self, settings: Settings | None = None, **more: Any) -> None:
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
    kept.once(Settings(tables=tables, most=30_000))
    said, _ = load_.communicate(timeout=120)
    assert load_.returncode == 0, said
    kept.once()
    report = compare(kept.spark, kept.lake, kept.url)
    assert report.equal, report
    assert load(kept.spark, kept.lake.current("public.pgbench_history")).count() == 600


@pytest.mark.timeout(1200)
@pytest.mark.contract("X10")
def test_the_pipeline_survives_being_killed_anywhere(
    spark: SparkSession, server: PostgresServer, tmp_path: Path
) -> None:
    report = run(Plan.generate(3, kills=1, transactions=25), server, spark, tmp_path)
    assert report.discrepancies == ()
    assert report.killed


def test_what_stands_in_the_way_is_said_before_anything_is_written(
    kept: Kept, spark: SparkSession, tmp_path: Path, server: PostgresServer
) -> None:
    with pytest.raises(TrackingError, match="nowhere"):
        kept.once(Settings(tables=("nowhere",)))
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
    assert not exists(spark, kept.lake.changes)
