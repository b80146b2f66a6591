"""The lake that the console tells of, read from logs as Delta writes them: commits, checkpoints, deleted rows."""

import json
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forge.app import Forge
from forge.changelog.reader import Reader
from forge.errors import LakeError
from forge.postgres.connection import Connection
from forge.serve.console.delta import DeltaTable
from forge.serve.console.lake import RUN
from forge.serve.node import Options
from tests.serve.serving import Served, serving

NOON = datetime(2026, 2, 10, 12)
"""As Spark writes it: in UTC, without saying so."""


class Written:
    """A Delta table, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = 0

    def commit(self, *actions: dict[str, Any]) -> None:
        lines = [{"commitInfo": {"operation": "WRITE"}}, *actions]
        (self.log / f"{self.version:020}.json").write_text("\n".join(map(json.dumps, lines)))
        (self.log / f"{self.version:020}.crc").write_text("{}")
        self.version += 1

    def append(self, *rows: dict[str, Any]) -> None:
        """Rows as one file of one commit."""
        path = f"part-{self.version:05}.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows)), self.folder / path, use_deprecated_int96_timestamps=True)
        self.commit(added(path, len(rows), most={"batch": max(row.get("batch", 0) for row in rows)}))


def added(
    path: str, rows: int, *, size: int = 100, most: dict[str, Any] | None = None, deleted: int = 0
) -> dict[str, Any]:
    file: dict[str, Any] = {"path": path, "size": size, "dataChange": True}
    file["stats"] = json.dumps({"numRecords": rows, "maxValues": most or {}})
    if deleted:
        file["deletionVector"] = {
            "storageType": "u",
            "pathOrInlineDv": f"v{deleted}",
            "offset": 1,
            "cardinality": deleted,
        }
    return {"add": file}


def removed(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}


def sizes(table: DeltaTable) -> list[tuple[str, int]]:
    return sorted((file.path.name, file.rows) for file in table.files())


def test_a_table_is_what_its_log_says(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    assert table.files() == []
    written = Written(tmp_path / "t")
    written.commit(added("a", 1000), added("dir%20x/b", 5))
    assert sizes(table) == [("a", 1000), ("b", 5)]
    # the same file with rows deleted is another one, and the old one goes, in whatever order that is written
    written.commit(added("a", 1000, deleted=9), removed("a"))
    written.commit(removed("dir%20x/b"))
    assert sizes(table) == [("a", 991)]
    assert sizes(DeltaTable(tmp_path / "t")) == [("a", 991)]


def test_a_log_whose_beginning_is_gone_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    written = Written(tmp_path / "t")
    for number in range(11):
        written.commit(added(f"f{number}", 1))
    known = DeltaTable(tmp_path / "t")
    assert len(known.files()) == 11
    rows = [{"add": added(f"f{number}", 1)["add"], "txn": None} for number in range(11)]
    pq.write_table(pa.Table.from_pylist([*rows, {"add": None, "txn": {"appId": "x"}}]), _checkpoint(written, 10))
    (written.log / "_last_checkpoint").write_text('{"version": 10, "size": 12}')
    written.commit(added("g", 3), removed("f0"))
    for number in range(10):
        (written.log / f"{number:020}.json").unlink()
    for table in (known, DeltaTable(tmp_path / "t")):
        assert (len(table.files()), dict(sizes(table))["g"]) == (11, 3)
    (written.log / "_last_checkpoint").unlink()
    with pytest.raises(LakeError, match="cannot be read"):
        DeltaTable(tmp_path / "t").files()


def _checkpoint(written: Written, version: int) -> Path:
    return written.log / f"{version:020}.checkpoint.parquet"


def a_lake(folder: Path, cursor: str, batches: Sequence[int], tables: str | None = "orders") -> None:
    ledger, about, checks = (Written(folder / name) for name in ("batches", "about", "checks"))
    about.append({"run": 1, "tables": tables})
    for number in batches:
        at = NOON + timedelta(minutes=number)
        newest = at - timedelta(seconds=1.5)
        row = {"batch": RUN + number, "run": 1, "cursor": cursor, "changes": 7, "quarantined": 0}
        ledger.append({**row, "tables": '{"public.orders": 7}', "newest": newest, "seconds": 1.25, "at": at})
    for number, equal in ((batches[-2], False), (batches[-1], True)):
        checks.append({"batch": RUN + number, "equal": equal, "at": NOON + timedelta(minutes=number)})
    Written(folder / "bronze/changes").commit(added("c", 7 * len(batches)))
    Written(folder / "silver/current/public.odd~20name").commit(added("x", 10, size=1000, deleted=2))
    Written(folder / "silver/history/public.odd~20name").commit(added("y", 20, size=500))
    Written(folder / "silver/quarantine").append({"schema": "public", "table": "odd name", "reason": "overflow: x"})


async def told(served: Served) -> Any:
    answer = await served.post("/forge/query/forge.pipeline", {})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


async def test_the_console_tells_of_the_lake_beside(database: str, connection: Connection, tmp_path: Path) -> None:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    connection.execute("SELECT forge_enable_reactivity('orders'), forge_enable_reactivity('other')")
    async with serving(Forge(database, options=Options(lake=str(tmp_path / "lake")))) as served:
        assert (await told(served))["state"] == "empty"
        async with Reader.open(database) as reader:
            cursor = str(await reader.now())
        began = time.monotonic()
        connection.execute("INSERT INTO orders VALUES (1), (2); INSERT INTO other VALUES (1)")
        a_lake(tmp_path / "lake", cursor, range(30))
        found = await told(served)
        ended = time.monotonic()
    assert (found["state"], found["batches"], found["changes"]) == ("ok", 30, 210)
    assert (found["last_batch"], found["last_at"]) == ("1.29", "2026-02-10T12:29:00Z")
    assert (found["equal"], found["compared_at"]) == (True, "2026-02-10T12:29:00Z")
    assert found["lag_events"] == 2  # of the tables that it mirrors
    assert 0 <= found["lag_seconds"] <= ended - began + 0.1  # it is rounded to tenths
    assert found["tables"] == [
        {
            "name": "public.odd name",
            "current_rows": 8,
            "history_rows": 20,
            "bytes": 1500,
            "files": 2,
            "quarantined": 1,
        }
    ]
    assert found["problems"] == ["1 row of public.odd name did not fit and is in quarantine"]
    assert [batch["batch"] for batch in found["recent"]] == [f"1.{number}" for number in range(29, 9, -1)]
    assert [batch["equal"] for batch in found["recent"]][:3] == [True, False, None]
    first = found["recent"][0]
    assert (first["changes"], first["tables"], first["seconds"], first["lag_seconds"]) == (7, 1, 1.25, 1.5)


async def test_a_lake_that_cannot_be_read_says_why(database: str, tmp_path: Path) -> None:
    (tmp_path / "batches/_delta_log").mkdir(parents=True)
    (tmp_path / "batches/_delta_log" / f"{0:020}.json").write_text("{broken")
    for lake, word in ((str(tmp_path), "malformed"), ("s3a://lake/shop", "forge pipeline status")):
        async with serving(Forge(database, options=Options(lake=lake))) as served:
            found = await told(served)
        assert (found["lake"], found["state"], found["recent"]) == (lake, "unreadable", [])
        assert word in found["problems"][0]


def test_the_number_of_a_run_is_the_pipelines() -> None:
    bronze = (Path(__file__).parents[3] / "src/forge/pipeline/bronze.py").read_text()
    assert f"RUN: Final = 10**{len(str(RUN)) - 1}" in bronze
