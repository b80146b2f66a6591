"""Debezium's envelope names the connector of the database that a change came from, and says what it would."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from forge import debezium
from forge.change import UNAVAILABLE, Change, ChangeSource, Op
from forge.values import Column

pytestmark = pytest.mark.contract("W15")


def change(kind: str, name: str, position: str, transaction: str | None, **more: Any) -> Change:
    row = {"id": 1, "note": "x"}
    return Change(
        id="one",
        op=more.pop("op", Op.INSERT),
        schema=more.pop("schema", "shop"),
        table="orders",
        source=ChangeSource(kind, name, position, transaction),
        at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        key={"id": 1},
        before=more.pop("before", None),
        after=more.pop("after", row),
        **more,
    )


def test_mariadb_has_its_place_in_the_binary_log() -> None:
    place = "mysql-bin.000001:000000001407.000001.000002"
    raw = debezium.encode(change("mysql", "db:3306/shop", place, "0-1-5"))
    assert raw is not None
    source = json.loads(raw)["source"]
    assert (source["connector"], source["db"], source["table"]) == ("mariadb", "shop", "orders")
    assert [source[name] for name in ("file", "pos", "row", "gtid", "server_id")] == [
        "mysql-bin.000001",
        1407,
        2,
        "0-1-5",
        1,
    ]
    assert "schema" not in source
    assert debezium.decode(raw).schema == "shop"


def test_mysql_has_its_gtid() -> None:
    gtid = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
    raw = debezium.encode(change("mysql", "db:3306/shop", "bin.7:4.1.0", gtid))
    assert raw is not None
    source = json.loads(raw)["source"]
    assert (source["connector"], source["gtid"], source["server_id"]) == ("mysql", gtid, 0)


def test_the_wal_has_its_lsn_and_database() -> None:
    place = "000000000202efe0.000000000202eef8"
    raw = debezium.encode(change("wal", "postgresql://postgres@db/shop", place, "770", schema="public"))
    assert raw is not None
    source = json.loads(raw)["source"]
    assert [source[name] for name in ("connector", "db", "lsn", "txId", "schema")] == [
        "postgresql", "shop", 0x202EEF8, 770, "public",
    ]  # fmt: skip


def test_mongodb_has_documents_as_text() -> None:
    before = {"_id": 1, "total": Decimal("1.50"), "gone": True}
    after = {"_id": 1, "total": Decimal("2.50"), "raw": b"\x00", "large": 2**40, "unsent": UNAVAILABLE}
    update = change("mongo", "db/shop", "82…", "t1", op=Op.UPDATE, before=before, after=after)
    raw = debezium.encode(update)
    assert raw is not None
    event = json.loads(raw)
    assert (event["source"]["connector"], event["source"]["collection"]) == ("mongodb", "orders")
    assert json.loads(event["after"])["total"] == {"$numberDecimal": "2.50"}
    assert event["updateDescription"]["removedFields"] == ["gone"]
    assert set(json.loads(event["updateDescription"]["updatedFields"])) == {"total", "raw", "large"}
    assert debezium.decode(raw) == update


@pytest.mark.parametrize("kind", ["sqlite", "hook"])
def test_sqlite_has_a_connector_of_its_own_name(kind: str) -> None:
    insert = change(kind, "shop.db", "7", None, schema="main", after={"id": 1, "raw": b"a"})
    columns = [Column("id", "INTEGER"), Column("raw", "BLOB", "bytea")]
    raw = debezium.encode(insert, columns=columns)
    assert raw is not None
    assert json.loads(raw)["source"]["connector"] == "sqlite"
    assert debezium.decode(raw, columns) == insert


def test_a_row_of_a_snapshot_says_so() -> None:
    raw = debezium.encode(change("mysql", "db", "bin.7:4.r", None, op=Op.READ))
    assert raw is not None
    event = json.loads(raw)
    assert (event["op"], event["source"]["snapshot"]) == ("r", "true")


def test_an_event_of_the_mysql_connector_is_read() -> None:
    event = {
        "before": None,
        "after": {"id": 1},
        "source": {
            "version": "3.0", "connector": "mysql", "name": "shop", "ts_ms": 1, "snapshot": "false", "db": "inventory",
            "sequence": None, "table": "orders", "server_id": 1, "gtid": None, "file": "bin.3", "pos": 154, "row": 2,
            "thread": 7, "query": None,
        },
        "op": "c",
    }  # fmt: skip
    found = debezium.decode(json.dumps(event))
    assert (found.schema, found.table, found.source.position) == ("inventory", "orders", "bin.3:154.2")
