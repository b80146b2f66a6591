"""A change's row becomes a value of the application's type: exactly what the database has, or an error."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from sqlalchemy import ARRAY, JSON, Enum, Integer, LargeBinary, String, TypeDecorator, create_engine, inspect, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

import forge
from forge.change import Change, ChangeSource, Op
from forge.errors import RowMismatch
from forge.postgres.connection import Connection

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Status(enum.Enum):
    PLACED = "placed"
    PAID = "paid"


class Shouted(TypeDecorator[str]):
    """Kept in small letters, seen in capitals."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return value.lower() if value is not None else None

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return value.upper() if value is not None else None


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[Decimal]
    ratio: Mapped[float]
    big: Mapped[int]
    at: Mapped[datetime]
    placed: Mapped[datetime]
    day: Mapped[date]
    hour: Mapped[time]
    took: Mapped[timedelta]
    ref: Mapped[UUID]
    photo: Mapped[bytes] = mapped_column(LargeBinary)
    status: Mapped[Status] = mapped_column(Enum(Status, native_enum=False))
    by_value: Mapped[Status] = mapped_column(
        Enum(Status, native_enum=False, values_callable=lambda e: [m.value for m in e])
    )
    tags: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    document: Mapped[dict[str, Any]] = mapped_column(JSONB)
    verbatim: Mapped[dict[str, Any]] = mapped_column(JSON)
    word: Mapped[str] = mapped_column(Shouted)
    renamed: Mapped[str | None] = mapped_column("other_name")
    done: Mapped[bool]


CREATE = """
CREATE TABLE orders (
    id int PRIMARY KEY, total numeric, ratio float8, big bigint, at timestamptz, placed timestamp, day date, hour time,
    took interval, ref uuid, photo bytea, status text, by_value text, tags int[], document jsonb, verbatim json,
    word text, other_name text, done boolean);
SELECT forge.current_identity();  -- the database is a copy of a template
SELECT forge_enable_reactivity('orders');
INSERT INTO orders VALUES (
    1, 12345678901234567890.123400, 0.30000000000000004, 9007199254740993, '2026-01-31 12:00:00.123456+02',
    '1999-12-31 23:59:59.999999', '2026-02-28', '13:14:15.000001', '3 days 04:05:06.000007',
    '12345678-1234-5678-1234-567812345678', '\\x00ff10', 'PAID', 'placed', '{1,NULL,3}', '{"a": [1, 2]}', '{"b": [3]}',
    'quiet', 'x', true);
UPDATE orders SET done = false;
DELETE FROM orders;
"""
EXACT: dict[str, Any] = {
    "total": Decimal("12345678901234567890.123400"),
    "ratio": 0.30000000000000004,
    "big": 9007199254740993,
    "at": datetime(2026, 1, 31, 10, 0, 0, 123456, UTC),
    "placed": datetime(1999, 12, 31, 23, 59, 59, 999999),
    "day": date(2026, 2, 28),
    "hour": time(13, 14, 15, 1),
    "took": timedelta(days=3, hours=4, minutes=5, seconds=6, microseconds=7),
    "ref": UUID("12345678-1234-5678-1234-567812345678"),
    "photo": b"\x00\xff\x10",
    "tags": [1, None, 3],
    "document": {"a": [1, 2]},
    "verbatim": {"b": [3]},
    "done": True,
}


class Plain(TypedDict):
    total: Decimal
    ratio: float
    big: int
    at: datetime
    placed: datetime
    day: date
    hour: time
    took: timedelta
    ref: UUID
    photo: bytes
    tags: list[int | None]
    document: dict[str, Any]
    verbatim: dict[str, Any]
    done: bool


Data: Any = dataclass(type("Data", (), {"__annotations__": Plain.__annotations__}))
Stored: Any = msgspec.defstruct("Stored", list(Plain.__annotations__.items()))
Model: Any = pydantic.create_model("Model", **{name: (kind, ...) for name, kind in Plain.__annotations__.items()})  # type: ignore[call-overload]


def change(row: dict[str, Any] | None, op: Op = Op.INSERT, before: dict[str, Any] | None = None) -> Change:
    return Change(
        id="1",
        op=op,
        schema="public",
        table="orders",
        source=ChangeSource("log", "x", "1"),
        at=AT,
        before=before,
        after=row,
    )


async def read(url: str) -> list[Change]:
    found: list[Change] = []
    async with forge.Reader.open(url) as reader:
        async for batch in reader.read(reader.start()):
            found += batch.changes
    return [change for change in found if change.op in (Op.INSERT, Op.UPDATE, Op.DELETE)]


async def test_every_kind_of_type_gets_what_the_database_has(connection: Connection, database: str) -> None:
    setup, rest = CREATE.split("UPDATE orders", 1)
    connection.execute(setup)
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        loaded = session.scalars(select(Order)).one()
        session.expunge_all()
    engine.dispose()
    connection.execute("UPDATE orders" + rest)
    inserted, updated, deleted = await read(database)

    order = inserted.into(Order, unknown="error")
    assert inspect(order).transient
    assert not inspect(order).modified
    names = [attribute.key for attribute in inspect(Order).column_attrs]
    assert {name: getattr(order, name) for name in names} == {name: getattr(loaded, name) for name in names}
    assert str(order.total) == str(loaded.total)
    assert (order.status, order.by_value, order.word, order.renamed) == (Status.PAID, Status.PLACED, "QUIET", "x")

    for kind in (Data, Stored, Model):
        value = inserted.into(kind)
        assert type(value) is kind
        assert {name: getattr(value, name) for name in EXACT} == EXACT
        assert str(value.total) == "12345678901234567890.123400"
    assert inserted.into(Plain) == EXACT
    assert updated.into(Plain) == {**EXACT, "done": False}
    assert updated.into(Plain, image="before") == EXACT
    assert deleted.into(Plain) == {**EXACT, "done": False}
    assert inserted.into(dict)["at"] == "2026-01-31T10:00:00.123456+00:00"


def test_an_image_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RowMismatch, match="an insert of orders has no row before it") as error:
        change({"id": 1}).into(dict, image="before")
    assert error.value.fix == "take the other image"
    with pytest.raises(RowMismatch, match="a truncate of orders has no row"):
        change(None, Op.TRUNCATE).into(dict)
    with pytest.raises(RowMismatch, match="image is 'now'"):
        change({"id": 1}).into(dict, image="now")  # type: ignore[arg-type]


@dataclass
class Secretive:
    id: int
    secret: str = "unknown"
    computed: int = field(default=7, init=False)


class SecretiveStruct(msgspec.Struct):
    id: int
    secret: str = "unknown"


class SecretiveModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: int
    secret: str = "unknown"


class SecretiveOrm(Base):
    __tablename__ = "secretive"
    id: Mapped[int] = mapped_column(primary_key=True)
    secret: Mapped[str] = mapped_column(default="unknown")


class SecretiveDict(TypedDict):
    id: int
    secret: NotRequired[str]


@pytest.mark.parametrize("kind", [Secretive, SecretiveStruct, SecretiveModel, SecretiveOrm])
@pytest.mark.parametrize("row", [{"id": 1, "secret": forge.UNAVAILABLE}, {"id": 1}, {"id": 1, "more": 2}], ids=str)
def test_what_was_not_sent_takes_the_fields_default(kind: type[Any], row: dict[str, Any]) -> None:
    value = change(row).into(kind)
    assert (value.id, value.secret) == (1, "unknown")


def test_a_dict_leaves_out_what_was_not_sent() -> None:
    row = change({"id": 1, "secret": forge.UNAVAILABLE})
    assert row.into(dict) == {"id": 1}
    assert row.into(SecretiveDict) == {"id": 1}


@pytest.mark.parametrize("kind", [Secretive, SecretiveStruct, SecretiveModel, SecretiveOrm, SecretiveDict])
@pytest.mark.parametrize(
    ("row", "problem", "fix"),
    [
        (
            {"id": forge.UNAVAILABLE, "secret": "x"},
            r"orders\.id is not in the change",
            "a default, or track the column",
        ),
        ({"secret": "x"}, "orders has no column id", "or its column's name"),
    ],
    ids=["unavailable", "missing"],
)
def test_what_has_no_default_is_an_error_with_the_fix(
    kind: type[Any], row: dict[str, Any], problem: str, fix: str
) -> None:
    with pytest.raises(RowMismatch, match=problem) as error:
        change(row).into(kind)
    assert fix in error.value.fix


@pytest.mark.parametrize("kind", [Secretive, SecretiveStruct, SecretiveModel, SecretiveOrm, SecretiveDict])
def test_unknown_columns_are_an_error_where_one_asks_for_it(kind: type[Any]) -> None:
    row = change({"id": 1, "secret": "x", "more": 1, "yet": 2})
    row.into(kind)
    with pytest.raises(RowMismatch, match=f"{kind.__name__} has no field for more, yet of orders"):
        row.into(kind, unknown="error")
    with pytest.raises(RowMismatch, match="unknown is"):
        row.into(kind, unknown="what")  # type: ignore[arg-type]


@dataclass
class Timed:
    at: datetime


class TimedModel(pydantic.BaseModel):
    at: datetime


class TimedOrm(Base):
    __tablename__ = "timed"
    id: Mapped[int] = mapped_column(primary_key=True, default=0)
    at: Mapped[datetime]


@pytest.mark.parametrize("kind", [Timed, TimedModel, TimedOrm])
@pytest.mark.parametrize("at", ["infinity", "10000-01-01T00:00:00", "***"])
def test_what_a_type_cannot_hold_is_an_error(kind: type[Any], at: str) -> None:
    with pytest.raises(RowMismatch, match=f"a row of orders is no {kind.__name__}: .*at"):
        change({"at": at}).into(kind)


def test_a_json_null_is_none() -> None:
    assert change({"document": forge.JSON_NULL}).into(dict) == {"document": None}


def test_names_that_a_type_gives_to_columns() -> None:
    class Renamed(msgspec.Struct, rename="camel"):
        order_id: int

    class Aliased(pydantic.BaseModel):
        order_id: int = pydantic.Field(alias="orderId")

    assert change({"orderId": 5}).into(Renamed).order_id == 5
    assert change({"orderId": 5}).into(Aliased).order_id == 5
    assert change({"order_id": 5}).into(Aliased).order_id == 5


def test_models_that_are_dataclasses_and_need_arguments() -> None:
    class Strict(MappedAsDataclass, Base):
        __tablename__ = "strict"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    @pydantic.dataclasses.dataclass
    class Checked:
        id: int
        name: str

    for kind in (Strict, Checked):
        value: Any = change({"id": 1, "name": "x"}).into(kind)
        assert (value.id, value.name) == (1, "x")


def test_a_model_can_be_merged_into_a_session() -> None:
    engine = create_engine("sqlite://")
    Base.metadata.tables["secretive"].create(engine)
    with Session(engine) as session:
        session.add(change({"id": 1, "secret": "a"}).into(SecretiveOrm))
        session.commit()
        session.merge(change({"id": 1, "secret": "b"}).into(SecretiveOrm))
        session.commit()
        assert session.scalars(select(SecretiveOrm.secret)).all() == ["b"]
    engine.dispose()


@pytest.mark.parametrize("kind", [int, str, object, list])
def test_other_types_are_refused(kind: Callable[..., Any]) -> None:
    with pytest.raises(RowMismatch, match="cannot become"):
        change({"id": 1}).into(kind)  # type: ignore[arg-type]
