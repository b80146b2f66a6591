"""The commands of `forge pipeline` on a lake that is there: what they print, and what they refuse in one line."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from forge.changelog.install import install
from forge.changelog.maintenance import Policy, run_once
from forge.cli import main
from forge.embedded import PostgresServer
from forge.pipeline.lake import Lake
from forge.pipeline.lease import lease
from forge.pipeline.tables import load
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database

pytestmark = [pytest.mark.command, pytest.mark.long, pytest.mark.timeout(900)]

TOTALS = (
    "-- key: status\n-- keys: SELECT status FROM orders_changed\nSELECT status, count(*) AS n FROM orders GROUP BY 1"
)


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Forge = Callable[..., Result]


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that is not in UTC, and where an hour of the first of November comes twice."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def forge(
    spark: SparkSession,
    lake: Lake,
    database: str,
    new_york: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Forge:
    """The command in this process, on the Spark that all tests use."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)

    def run(*words: str, url: str = database) -> Result:
        where = ["--lake", lake.path] if words[0] == "pipeline" else []
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words, *where, "--database-url", url])
        code = ended.value.code
        assert isinstance(code, int)
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("select forge.current_identity()")
    connection.execute("create table orders (id bigint primary key, status text, at timestamptz, seen timestamptz[])")
    connection.execute("select forge_enable_reactivity('orders')")
    connection.execute(
        "insert into orders values (1, 'new', '2026-11-01 05:30+00', '{2026-11-01 06:30+00}'),"
        " (2, 'new', '2026-11-01 06:30+00', null)"
    )
    connection.execute("update orders set status = 'paid' where id = 1")
    return connection


def test_without_a_lake_every_command_says_so(forge: Forge) -> None:
    for words in (
        ("status",),
        ("verify",),
        ("as-of", "--at", "2026-01-01", "--table", "orders"),
        ("audit",),
        ("replay",),
        ("import", __file__),
        ("maintain",),
    ):
        said = forge("pipeline", *words)
        assert said.code == 1, words
        assert said.err.startswith("error: there is no lake at "), words
        assert said.err.splitlines()[1:] == ["fix: forge pipeline run --once"], words


def test_a_lake_from_its_first_batch_to_an_import(
    forge: Forge,
    shop: Connection,
    database: str,
    lake: Lake,
    spark: SparkSession,
    server: PostgresServer,
    tmp_path: Path,
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "totals.sql").write_text(TOTALS)
    once = ("pipeline", "run", "--once", "--models", str(models))
    for wrong in ("--tables", "nowhere"), ("--start", "then"):
        said = forge(*once, *wrong)
        assert said.code == 1
        assert len(said.err.splitlines()) == 2, said.err
    assert not Path(lake.path).exists(), "a lake that cannot begin is not begun"

    said = forge(*once, "--json")
    assert (said.code, said.err) == (0, "")
    assert sum(line["changes"] for line in said.lines) == 3
    assert said.lines[-1]["lag_changes"] == 0
    run_once(database, Policy())
    shop.execute("delete from orders where id = 2")
    assert forge(*once).code == 0

    (row,) = forge("pipeline", "as-of", "--at", "2100-01-01", "--table", "orders", "--key", "1", "--json").lines
    assert row == {"id": 1, "status": "paid", "at": "2026-11-01T05:30:00+00:00", "seen": ["2026-11-01T06:30:00+00:00"]}
    shown = forge("pipeline", "as-of", "--at", "2100-01-01", "--table", "orders", "--where", "id = 2").out
    assert "as committed at " in shown
    assert "2026-11-01 06:30:00.000+00:00" in shown, "not the other half past one of that day in New York"
    said = forge("pipeline", "as-of", "--at", "2100-01-01", "--table", "orders", "--where", "nonsense(")
    assert (said.code, len(said.err.splitlines())) == (1, 2), said.err

    ops = [line["op"] for line in forge("pipeline", "audit", "--table", "orders", "--json").lines]
    assert ops == ["delete", "update", "insert", "insert", "schema"], "the newest first"
    (only,) = forge(
        "pipeline", "audit", "--key", '{"id": 2}', "--since", "1d", "--json", "--until", "2100-01-01"
    ).lines[:1]
    assert (only["op"], only["at"].endswith("+00:00")) == ("delete", True)

    assert forge("pipeline", "verify").out.splitlines()[-1].startswith("✓ lake = database   1 table")
    with lease(database, lake.path):
        said = forge("pipeline", "verify")
        assert said.code == 1
        assert "--verify 10m" in said.err
    (status,) = forge("pipeline", "status", "--json").lines
    assert (status["lag"]["changes"], status["tables"][0]["current_rows"]) == (0, 1)

    with fresh_database(server) as other:
        with connect(other) as connection:
            install(connection)
        for command in (("verify",), ("status",), ("replay",), ("import", __file__)):
            said = forge("pipeline", *command, url=other)
            assert (said.code, "that of another database" in said.err) == (1, True), command

    # What the stream has not brought yet it will bring; what the lake has is not taken again; the rest is new.
    shop.execute("insert into orders values (3, 'late')")
    tail = forge("tail", "--from", "start", "--once", "--format", "json").out
    event = {
        "before": None,
        "after": {"n": 7, "what": "a"},
        "source": {
            "connector": "postgresql",
            "name": "old",
            "schema": "public",
            "table": "lines",
            "lsn": 5,
            "ts_ms": 1,
        },
        "op": "c",
    }
    more = event | {"op": "u", "after": {"n": 7, "what": "b"}, "source": event["source"] | {"lsn": 6}}  # type: ignore[operator]
    (tmp_path / "old.jsonl").write_text(tail + json.dumps(event) + "\n" + json.dumps(more) + "\n")
    said = forge("pipeline", "import", str(tmp_path / "old.jsonl"), "--key", "lines=n", "--json")
    assert said.code == 0, said.err
    assert (said.lines[0]["tables"], said.lines[0]["refused"]) == ({"public.lines": 2}, 0)
    assert [tuple(row) for row in load(spark, lake.current("public.lines")).select("n", "what").collect()] == [(7, "b")]

    spark.sql(f"UPDATE delta.`{lake.current('public.orders')}` SET status = 'broken'")
    said = forge("pipeline", "replay", "orders")
    assert (said.code, said.out) == (0, "✓ public.orders   1 row   4 versions\n")
    assert forge(*once).code == 0
    assert load(spark, lake.changes).where("table = 'orders' AND row_id = '3'").count() == 1
    totals = {row["status"]: row["n"] for row in load(spark, lake.gold("totals")).collect()}
    assert totals == {"paid": 1, "late": 1}, "models are built again after an import and a replay"
    assert forge("pipeline", "verify").code == 0
    assert forge("pipeline", "maintain", "--json").lines[0]["what"] == "optimized"
    assert forge("pipeline", "verify").code == 0
