"""What a statement returns is what it returns untracked, whatever tracking asked the database for beside it."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    CursorResult,
    Insert,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from tests.tracking.sqlalchemy.harness import Harness, Order, orders, tags

TWO: list[dict[str, Any]] = [{"mail": "a", "amount": 1}, {"mail": "b", "amount": 2}]
KEYED = [{"id": 10, **TWO[0]}, {"id": 11, **TWO[1]}]
MAILS = [{"which": "q"}, {"which": "r"}]
WHICH = orders.c.mail == bindparam("which")
RAW = "INSERT INTO orders (id, mail, amount) VALUES (:id, :mail, :amount)"
CASES: dict[str, tuple[Any, Any]] = {
    "one": (insert(orders).values(TWO[0]), None),
    "one by parameters": (insert(orders), TWO[0]),
    "a list of one": (insert(orders), TWO[:1]),
    "many": (insert(orders), TWO),
    "many with keys": (insert(orders), KEYED),
    "many whose key is text": (insert(tags), [{"name": "a"}, {"name": "b"}]),
    "values": (insert(orders).values(TWO), None),
    "values with keys": (insert(orders).values(KEYED), None),
    "values whose key is text": (insert(tags).values([{"name": "a"}, {"name": "b"}]), None),
    "from select": (insert(orders).from_select(["mail", "amount"], select(literal("z"), literal(1))), None),
    "from select with keys": (
        insert(orders).from_select(["id", "mail", "amount"], select(literal(9), literal("z"), literal(1))),
        None,
    ),
    "inline": (insert(orders).inline().values(TWO[0]), None),
    "defaults": (insert(orders).values(TWO[0]).return_defaults(), None),
    "many with defaults": (insert(orders).return_defaults(orders.c.status), TWO),
    "returning": (insert(orders).values(TWO[0]).returning(orders.c.mail), None),
    "many returning": (insert(orders).returning(orders.c.mail), TWO),
    "many returning all": (insert(orders).returning(orders), TWO),
    "many returning in order": (insert(orders).returning(orders.c.amount, sort_by_parameter_order=True), TWO),
    "update": (update(orders).where(orders.c.mail == "q").values(amount=5), None),
    "update many": (update(orders).where(WHICH).values(amount=5), MAILS),
    "update returning": (update(orders).values(amount=5).returning(orders.c.mail), None),
    "delete": (delete(orders).where(orders.c.mail == "q"), None),
    "delete many": (delete(orders).where(WHICH), MAILS),
    "text": (text(RAW), KEYED[0]),
    "text many": (text(RAW), KEYED),
}
COUNTED_LATE = {"returning", "many returning", "many returning all", "many returning in order"}
"""Of which sqlite3 does not know the count before their rows are read, nor after, as SQLAlchemy reads them."""


def attempt(ask: Callable[[], Any]) -> str:
    try:
        return repr(ask())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def facts(result: CursorResult[Any], names: list[str]) -> dict[str, str]:
    found = {name: attempt(lambda name=name: getattr(result, name)) for name in names}  # type: ignore[misc]
    for name in ("last_inserted_params", "last_updated_params", "lastrow_has_defaults", "prefetch_cols"):
        found[name] = attempt(getattr(result, name))
    found["keys"] = attempt(lambda: list(result.keys()))
    found["first"] = attempt(result.fetchone)
    found["rest"] = attempt(lambda: sorted(result.all()))
    return found


def each(connection: Connection, cases: dict[str, tuple[Any, Any]], names: list[str]) -> dict[str, dict[str, str]]:
    """What every statement says, each on the same two rows."""
    found = {}
    postgres = connection.dialect.name == "postgresql"
    for case, (statement, parameters) in cases.items():
        spared = [name for name in names if not (name == "rowcount" and case in COUNTED_LATE)]
        if not isinstance(statement, Insert) and "lastrowid" in names:
            spared.remove("lastrowid")  # that of whatever was inserted before
        for table in (orders, tags):
            connection.exec_driver_sql(f"DELETE FROM {table.name}")
        if postgres:
            connection.exec_driver_sql("SELECT setval('orders_id_seq', 100)")
        elif connection.dialect.name != "sqlite":
            connection.exec_driver_sql("ALTER TABLE orders AUTO_INCREMENT = 100")
        raw = "INSERT INTO orders (id, mail, amount) VALUES (5, 'q', 1), (6, 'r', 1)"
        connection.exec_driver_sql(raw)
        found[case] = facts(connection.execute(statement, parameters), spared)
    return found


@pytest.mark.contract("M2", "M3")
def test_results_are_those_of_an_untracked_engine(db: Harness) -> None:
    names = ["returns_rows", "rowcount", "is_insert", "inserted_primary_key", "inserted_primary_key_rows"]
    names += ["returned_defaults", "returned_defaults_rows", "closed"]
    if db.plain.dialect.name != "postgresql":
        names.append("lastrowid")  # which psycopg does not have
    cases = {case: given for case, given in CASES.items() if db.returns or case != "update returning"}
    untracked = db.run(lambda connection: each(connection, cases, names), db.engine())
    events = db.listen(table=None)
    tracked = db.run(lambda connection: each(connection, cases, names))
    different = {
        (case, name): (value, tracked[case][name])
        for case, found in untracked.items()
        for name, value in found.items()
        if tracked[case][name] != value
    }
    assert different == {}
    assert {"added", "changed", "removed", "invalidate"} == {one.kind for one in events}


@pytest.mark.contract("M2")
def test_orm_bulk_inserts_return_what_they_do_untracked(db: Harness) -> None:
    def work(session: Session) -> list[Any]:
        plain = session.execute(insert(Order), [{"id": 20, **TWO[0]}, {"id": 21, **TWO[1]}])
        told = session.scalars(insert(Order).returning(Order.mail), [{"mail": "c"}, {"mail": "d"}]).all()
        session.bulk_insert_mappings(Order.__mapper__, [{"mail": "e"}])
        objects = [Order(mail="f"), Order(mail="g")]
        session.bulk_save_objects(objects, return_defaults=True)
        return [attempt(plain.all), sorted(told), all(one.id for one in objects)]

    untracked = db.session(work, db.engine())
    db.empty()
    assert db.session(work, db.ensure()) == untracked
    assert untracked[1:] == [["c", "d"], True]
    assert len([one for one in db.log() if one.table == "orders"]) == 7


def test_a_table_that_makes_its_keys_in_python(db: Harness) -> None:
    """Its keys are known without asking, and the result says so as ever."""
    made = iter("abcdef")
    words = Table("words", MetaData(), Column("word", String(10), primary_key=True, default=lambda: next(made)))
    words.create(db.plain)
    try:
        said = [
            db.run(lambda connection: attempt(lambda: connection.execute(insert(words), [{}, {}]).returns_rows), engine)
            for engine in (db.engine(), db.ensure())
        ]
    finally:
        words.drop(db.plain)
    assert said == ["False", "False"]
    assert [one.row_id for one in db.log() if one.table == "words"] == ([] if db.triggers else ["c", "d"])
