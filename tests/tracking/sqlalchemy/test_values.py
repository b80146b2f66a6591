"""What was written is what the log tells, to the last digit, whatever the column's type."""

import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Time,
    TypeDecorator,
    Uuid,
    insert,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import INT4RANGE, JSONB, TIMESTAMP

import forge
from tests.tracking.sqlalchemy.harness import Harness


class Colour(enum.Enum):
    RED = "r"


class Money(TypeDecorator[Decimal]):
    """Euros in the application, cents in the database."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else int(value * 100)

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else Decimal(value) / 100


metadata = MetaData()
things = Table(
    "things",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("big", BigInteger),
    Column("yes", Boolean),
    Column("ratio", Float(53)),
    Column("raw", LargeBinary),
    Column("day", Date),
    Column("moment", DateTime),
    Column("clock", Time),
    Column("doc", JSON),
    Column("colour", Enum(Colour)),
    Column("price", Money),
    Column("Odd name", String(60)),
)
KEY = uuid.UUID(int=7)
GIVEN: dict[str, Any] = {
    "id": KEY,
    "big": 2**63 - 1,
    "yes": True,
    "ratio": 0.1 + 0.2,
    "raw": b"\x00\xff",
    "day": dt.date(2026, 1, 31),
    "moment": dt.datetime(2026, 1, 31, 12, 30),
    "clock": dt.time(23, 59, 1),
    "doc": {"a": [1, None, "ü"], "$b": 2},
    "colour": Colour.RED,
    "price": Decimal("12.30"),
    "Odd name": 'it\'s "quoted" \\ and ünïcode \U0001f600',
}
EXPECTED: dict[str, Any] = {
    **GIVEN,
    "id": str(KEY),
    "day": "2026-01-31",
    "moment": "2026-01-31T12:30:00",
    "clock": "23:59:01",
    "colour": "RED",
    "price": 1230,
}


@pytest.fixture
def changes(db: Harness) -> Any:
    if db.triggers:
        pytest.skip("the triggers' values are tested elsewhere")
    metadata.drop_all(db.plain)
    metadata.create_all(db.plain)

    def work(connection: Connection) -> None:
        connection.execute(insert(things).values(GIVEN))
        connection.execute(insert(things), [{"id": uuid.UUID(int=1)}, {"id": uuid.UUID(int=2)}])
        connection.execute(update(things).where(things.c.id == KEY).values(price=Decimal("0.01")))

    db.run(work)
    return [change for change in db.changes() if change.table == "things"]


def test_values_are_those_of_the_database(db: Harness, changes: list[forge.Change]) -> None:
    made, first, second, changed = changes
    expected = dict(EXPECTED)
    if db.plain.dialect.name == "postgresql":
        expected["doc"] = '{"a": [1, null, "\\u00fc"], "$b": 2}'  # json keeps its text; jsonb is decoded
    assert made.after == expected
    assert made.key == {"id": str(KEY)}
    assert [one.key for one in (first, second)] == [{"id": str(uuid.UUID(int=n))} for n in (1, 2)]
    assert first.after is not None
    assert first.after["price"] is None
    assert changed.changed == ("price",)
    assert changed.before == expected


def test_what_only_postgresql_stores(db: Harness) -> None:
    if db.kind != "postgres":
        pytest.skip("PostgreSQL only")
    rare = Table(
        "rare",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("exact", Numeric),
        Column("tree", JSONB),
        Column("at", TIMESTAMP(timezone=True)),
        Column("many", ARRAY(Integer)),
        Column("span", INT4RANGE),
        Column("odd", Float(53)),
    )
    rare.create(db.plain)
    raw = (
        "INSERT INTO rare VALUES (1, 1234567890123456789.10, '[12.30, null]', 'infinity', '{1,NULL}', '[1,5)', 'NaN'),"
        " (2, 'NaN', 'null', '2026-01-31 12:00:00.5+02', '{}', 'empty', '-0')"
    )
    with db.plain.begin() as connection:
        connection.execute(text(raw))
    db.run(lambda connection: connection.execute(update(rare).values(id=rare.c.id + 10)))
    first, second = (change.after for change in db.changes() if change.after)
    assert first is not None
    assert second is not None
    odd = first.pop("odd")  # type: ignore[attr-defined]
    assert odd != odd
    assert first == {
        "id": 11,
        "exact": Decimal("1234567890123456789.10"),
        "tree": [Decimal("12.30"), None],
        "at": "infinity",
        "many": [1, None],
        "span": "[1,5)",
    }
    assert str(second["exact"]) == "NaN"
    assert second["tree"] is forge.JSON_NULL
    assert second["at"] == "2026-01-31T10:00:00.5+00:00"
    assert str(second["odd"]) == "-0.0"
