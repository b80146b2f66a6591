"""Random writes by every way that SQLAlchemy has, some rolled back; then the log, replayed, is the table."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Session

import forge
from tests.tracking.sqlalchemy.harness import Harness, Order, orders, tags

Work = Callable[[Session, random.Random, Harness], None]


def _name(rng: random.Random) -> str:
    return f"{rng.randrange(10**9)}"


def orm_add(session: Session, rng: random.Random, db: Harness) -> None:
    session.add_all([Order(mail=_name(rng), amount=rng.randrange(9)) for _ in range(rng.randrange(1, 5))])
    session.flush()


def orm_change(session: Session, rng: random.Random, db: Harness) -> None:
    for order in session.scalars(select(Order).where(Order.amount == rng.randrange(9))):
        if rng.random() < 0.3:
            session.delete(order)
        else:
            order.status = rng.choice(["open", "paid", "done"])
            order.amount = rng.randrange(9)
    session.flush()


def core_insert(session: Session, rng: random.Random, db: Harness) -> None:
    rows = [{"mail": _name(rng), "amount": rng.randrange(9)} for _ in range(rng.randrange(1, 5))]
    how = rng.randrange(4)
    if how == 0:
        session.connection().execute(insert(orders), rows)
    elif how == 1:
        session.connection().execute(insert(orders).values(rows))
    elif how == 2:
        session.connection().execute(insert(orders).returning(orders.c.mail), rows).all()
    else:
        found = select(orders.c.mail + _name(rng)[:4], orders.c.amount).where(orders.c.amount < 2).limit(2)
        session.connection().execute(insert(orders).from_select(["mail", "amount"], found))


def core_update(session: Session, rng: random.Random, db: Harness) -> None:
    connection, limit = session.connection(), rng.randrange(9)
    how = rng.randrange(4)
    if how == 0:
        connection.execute(update(orders).where(orders.c.amount > limit).values(amount=orders.c.amount - 1))
    elif how == 1:
        named = update(orders).where(orders.c.id == bindparam("key")).values(status=bindparam("to"))
        ids = connection.execute(select(orders.c.id)).scalars().all()
        if ids:
            connection.execute(named, [{"key": rng.choice(ids), "to": rng.choice(["a", "b"])} for _ in range(3)])
    elif how == 2:
        connection.execute(update(orders).where(orders.c.status.in_(["a", "paid"])).values(status="open"))
    else:
        highest = connection.execute(select(orders.c.id).order_by(orders.c.id.desc()).limit(1)).scalar()
        if highest is not None:
            connection.execute(update(orders).where(orders.c.id == highest).values(id=orders.c.id + 100_000))


def core_delete(session: Session, rng: random.Random, db: Harness) -> None:
    if rng.random() < 0.5:
        session.connection().execute(delete(orders).where(orders.c.amount == rng.randrange(9)))
    else:
        session.execute(delete(Order).where(Order.mail.like(f"{rng.randrange(9)}%")))


def upsert(session: Session, rng: random.Random, db: Harness) -> None:
    rows = {name: rng.randrange(99) / 4 for name in rng.choices("abcdefgh", k=3)}
    values = [{"name": name, "size": size} for name, size in rows.items()]
    if db.kind == "mariadb":
        made: Any = mysql.insert(tags).values(values)
        made = made.on_duplicate_key_update(size=made.inserted.size)
    else:
        made = (sqlite if "sqlite" in db.kind else postgresql).insert(tags).values(values)
        made = made.on_conflict_do_update(index_elements=["name"], set_={"size": made.excluded.size})
    session.connection().execute(made)
    if rng.random() < 0.3:
        session.connection().execute(delete(tags).where(tags.c.name < "c"))


WORKS: list[Work] = [orm_add, orm_change, core_insert, core_update, core_delete, upsert]


class Undo(Exception):
    """Ends a transaction without a commit."""


def _transaction(session: Session, rng: random.Random, db: Harness) -> None:
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.3:
            with session.begin_nested() as inner:
                rng.choice(WORKS)(session, rng, db)
                if rng.random() < 0.5:
                    inner.rollback()
        else:
            rng.choice(WORKS)(session, rng, db)
    if rng.random() < 0.2:
        raise Undo


def replayed(changes: list[forge.Change]) -> dict[str, dict[str, dict[str, Any]]]:
    """The tables that the changes lead to, each change checked against what was before."""
    tables: dict[str, dict[str, dict[str, Any]]] = {"orders": {}, "tags": {}}
    for change in changes:
        rows = tables[change.table]
        assert change.op in (forge.Op.INSERT, forge.Op.UPDATE, forge.Op.DELETE), change
        assert rows.get(change.row_id) == change.before, change
        if change.after is None:
            del rows[change.row_id]
        else:
            rows[change.row_id] = dict(change.after)
    return tables


@pytest.mark.contract("M2", "M7", "M8")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_the_log_replayed_is_the_table(db: Harness, seed: int) -> None:
    if db.triggers or db.is_async:
        pytest.skip("the log of the triggers is replayed elsewhere; async writes the same")
    rng = random.Random(seed)
    events: list[Any] = db.listen(table=None)
    for _ in range(25):
        try:
            db.session(lambda session: _transaction(session, rng, db))
        except Undo:
            continue
    changes = [change for change in db.changes() if change.table in ("orders", "tags")]
    tables = replayed(changes)
    assert len(changes) > 40
    assert sorted(tables["orders"].values(), key=lambda row: row["id"]) == sorted(
        db.rows(orders), key=lambda row: row["id"]
    )
    assert {name: float(row["size"]) for name, row in tables["tags"].items()} == {
        row["name"]: row["size"] for row in db.rows(tags)
    }
    assert [(one.key, one.before, one.after) for one in events if one.key] == [
        (change.key, change.before, change.after) for change in changes
    ]
