"""Every promise about tracked writes, on every kind of database."""

import logging
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, delete, insert, select, text, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

import forge
from forge.tracking.events import listen
from forge.tracking.sqlalchemy import track
from tests.tracking.sqlalchemy.harness import Harness, Line, Order, keyless, lines, orders, sync, tags

ONE = {"id": 1, "mail": "ada@example.com", "amount": 1, "status": "open"}


def start(db: Harness, *given: dict[str, Any]) -> None:
    """Rows that are there before the test looks."""
    with db.plain.begin() as connection:
        for row in given or (ONE,):
            connection.execute(insert(orders), row)
    db.empty_log()


def said(db: Harness) -> list[tuple[str, str, str]]:
    return [(record.op, record.table, record.row_id) for record in db.log()]


@pytest.mark.contract("M1")
def test_what_is_tracked_is_not_tracked_again(db: Harness) -> None:
    engine = db.track()
    assert track(engine) is engine
    assert track(sync(engine).execution_options(a=1)) is not None
    maker = sessionmaker(sync(engine))
    assert track(maker) is maker
    db.run(lambda connection: connection.execute(insert(orders).values(ONE)))
    assert said(db) == [("insert", "orders", "1")]


@pytest.mark.contract("M2", "M3")
def test_orm_flushes(db: Harness) -> None:
    def work(session: Session) -> None:
        session.add_all([Order(mail=f"{n}@example.com", amount=n) for n in range(3)])
        session.flush()
        first, second, third = session.scalars(select(Order).order_by(Order.id)).all()
        first.status = "paid"
        second.amount, third.amount = 10, 20
        session.flush()
        session.delete(third)

    db.session(work)
    found = [one for one in db.log() if one.table == "orders"]
    assert [one.op for one in found] == ["insert"] * 3 + ["update"] * 3 + ["delete"]
    *_, paid, other, third, gone = found
    assert (paid.before["status"], paid.after["status"]) == ("open", "paid")  # type: ignore[index]
    assert {one.after["amount"] for one in (other, third)} == {10, 20}  # type: ignore[index]
    assert gone.before == third.after
    assert gone.after is None


@pytest.mark.contract("M2", "M3")
@pytest.mark.parametrize("how", ["one", "many", "values", "returning", "many returning", "from select", "without key"])
def test_core_inserts(db: Harness, how: str) -> None:
    start(db)
    two = [{"mail": "a@example.com", "amount": 2}, {"mail": "b@example.com", "amount": 3}]

    def work(connection: Connection) -> None:
        if how == "one":
            result = connection.execute(insert(orders).values(two[0]))
            assert result.inserted_primary_key is not None
            assert result.inserted_primary_key[0] > 1
        elif how == "many":
            connection.execute(insert(orders), [{"id": 10, **two[0]}, {"id": 11, **two[1]}])
        elif how == "without key":
            connection.execute(insert(orders), two)
        elif how == "values":
            assert not connection.execute(insert(orders).values(two)).returns_rows
        elif how == "returning":
            assert connection.execute(insert(orders).values(two[0]).returning(orders.c.mail)).all() == [
                ("a@example.com",)
            ]
        elif how == "many returning":
            rows = connection.execute(insert(orders).returning(orders.c.mail, orders.c.status), two).all()
            assert sorted(rows) == [("a@example.com", "open"), ("b@example.com", "open")]
        else:
            found = select(orders.c.mail + "x", orders.c.amount)
            assert not connection.execute(insert(orders).from_select(["mail", "amount"], found)).returns_rows

    db.run(work)
    made = [row for row in db.rows(orders) if row["id"] != 1]
    assert made
    assert sorted((one.op, one.row_id) for one in db.log()) == sorted(("insert", str(row["id"])) for row in made)
    assert [one.after for one in sorted(db.log(), key=lambda one: int(one.row_id))] == made
    assert all(one.before is None for one in db.log())


@pytest.mark.contract("M2", "M3")
@pytest.mark.parametrize("how", ["where", "many by key", "many by column", "in", "orm bulk", "orm by key", "returning"])
def test_updates(db: Harness, how: str) -> None:
    start(db, *({"id": n, "mail": f"{n}@example.com", "amount": n, "status": "open"} for n in (1, 2, 3)))
    before = {row["id"]: row for row in db.rows(orders)}
    if how == "returning" and not db.returns:
        pytest.skip("MariaDB's UPDATE returns nothing")

    def work(session: Session) -> None:
        connection = session.connection()
        if how == "where":
            connection.execute(update(orders).where(orders.c.amount < 3).values(amount=orders.c.amount + 10))
        elif how == "many by key":
            named = update(orders).where(orders.c.id == bindparam("key")).values(status=bindparam("to"))
            connection.execute(named, [{"key": 1, "to": "paid"}, {"key": 2, "to": "done"}])
        elif how == "many by column":
            named = update(orders).where(orders.c.mail == bindparam("who")).values(status=bindparam("to"))
            connection.execute(named, [{"who": f"{n}@example.com", "to": "paid"} for n in (1, 2)])
        elif how == "in":
            for ids in ([1], [2]):  # the same compiled statement twice, with other parameters
                connection.execute(update(orders).where(orders.c.id.in_(ids)).values(status="paid"))
        elif how == "orm bulk":
            session.execute(update(Order).where(Order.amount < 3).values(status="paid"))
        elif how == "orm by key":
            session.execute(update(Order), [{"id": 1, "status": "paid"}, {"id": 2, "status": "done"}])
        else:
            changed = update(orders).where(orders.c.amount < 3).values(status="paid").returning(orders.c.mail)
            assert sorted(connection.execute(changed).all()) == [("1@example.com",), ("2@example.com",)]

    db.session(work)
    after = {row["id"]: row for row in db.rows(orders)}
    found = sorted(db.log(), key=lambda one: int(one.row_id))
    assert [(one.op, one.row_id, one.before, one.after) for one in found] == [
        ("update", str(n), before[n], after[n]) for n in (1, 2)
    ]


@pytest.mark.contract("M2")
@pytest.mark.parametrize("how", ["where", "many", "orm bulk", "returning"])
def test_deletes(db: Harness, how: str) -> None:
    start(db, *({"id": n, "mail": f"{n}@example.com", "amount": n, "status": "open"} for n in (1, 2, 3)))
    before = {row["id"]: row for row in db.rows(orders)}

    def work(session: Session) -> None:
        connection = session.connection()
        if how == "where":
            assert connection.execute(delete(orders).where(orders.c.amount < 3)).rowcount == 2
        elif how == "many":
            connection.execute(delete(orders).where(orders.c.id == bindparam("key")), [{"key": 1}, {"key": 2}])
        elif how == "orm bulk":
            session.execute(delete(Order).where(Order.amount < 3))
        else:
            gone = delete(orders).where(orders.c.amount < 3).returning(orders.c.id)
            assert sorted(connection.execute(gone).all()) == [(1,), (2,)]

    db.session(work)
    found = sorted((one for one in db.log() if one.table == "orders"), key=lambda one: int(one.row_id))
    assert [(one.op, one.row_id, one.before, one.after) for one in found] == [
        ("delete", str(n), before[n], None) for n in (1, 2)
    ]


@pytest.mark.contract("M2")
def test_keys_of_several_columns_and_of_text(db: Harness) -> None:
    start(db)

    def work(session: Session) -> None:
        session.add_all([Line(order_id=1, place=n, what="ink") for n in (1, 2)])
        session.flush()
        session.execute(update(Line).where(Line.place == 2).values(what="pen"))
        session.connection().execute(insert(tags).values(name="süß", size=1.5))
        session.connection().execute(update(tags).values(size=2.5))

    db.session(work)
    assert [(one.op, one.row_id) for one in db.log()] == [
        ("insert", '["1", "1"]'),
        ("insert", '["1", "2"]'),
        ("update", '["1", "2"]'),
        ("insert", "süß"),
        ("update", "süß"),
    ]


@pytest.mark.contract("M2")
@pytest.mark.parametrize("how", ["orm", "parameters", "computed"])
def test_a_changed_key_is_a_delete_and_an_insert(db: Harness, how: str) -> None:
    start(db)

    def work(session: Session) -> None:
        if how == "orm":
            session.get_one(Order, 1).id = 7
        elif how == "parameters":
            session.connection().execute(update(orders).where(orders.c.mail == ONE["mail"]).values(id=7))
        else:
            session.connection().execute(update(orders).where(orders.c.id == 1).values(id=orders.c.id + 6))

    db.session(work)
    gone, made = db.log()
    assert (gone.op, gone.row_id, gone.before) == ("delete", "1", ONE)
    assert (made.op, made.row_id, made.after) == ("insert", "7", {**ONE, "id": 7})


@pytest.mark.contract("M4")
def test_previous_rows_only_when_asked(db: Harness) -> None:
    start(db)
    db.track(previous=False)
    db.run(lambda connection: connection.execute(update(orders).values(status="paid")))
    db.run(lambda connection: connection.execute(delete(orders)))
    if db.triggers:
        assert [one.before and one.before["status"] for one in db.log()] == ["open", "paid"]  # the triggers always do
        return
    changed, gone = (one for one in db.log() if one.table == "orders")
    assert changed.before is None
    assert changed.after == {**ONE, "status": "paid"}
    assert (gone.op, gone.row_id, gone.after) == ("delete", "1", None)
    assert gone.before is not None
    assert gone.before["status"] == {"$unavailable": True}


@pytest.mark.contract("M4")
def test_a_write_goes_on_when_the_rows_before_it_cannot_be_read(
    db: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start(db)
    if db.triggers:
        pytest.skip("the triggers read nothing")
    from forge.tracking.sqlalchemy.images import TableImages

    db.track()
    monkeypatch.setattr(TableImages, "by_columns", lambda *given, **options: text("SELECT nothing FROM nowhere"))
    with caplog.at_level(logging.WARNING, "forge.tracking"):
        db.run(lambda connection: connection.execute(update(orders).where(orders.c.id == 1).values(status="paid")))
    assert "were not read" in caplog.text
    monkeypatch.undo()
    assert db.rows(orders)[0]["status"] == "paid"
    (one,) = db.log()
    assert (one.op, one.row_id, one.before) == ("update", "1", None)


@pytest.mark.contract("M5")
@pytest.mark.parametrize(
    ("sql", "ops"),
    [
        ("INSERT INTO orders (id, mail, amount) VALUES (5, 'x', 1)", {"insert"}),
        ("UPDATE orders SET amount = 9", {"update"}),
        ("DELETE FROM orders WHERE id = 1", {"delete"}),
    ],
)
@pytest.mark.parametrize("driver", [False, True])
def test_raw_sql(db: Harness, sql: str, ops: set[str], driver: bool) -> None:
    start(db)
    events = db.listen()
    db.run(lambda connection: connection.exec_driver_sql(sql) if driver else connection.execute(text(sql)))
    if db.triggers:
        assert {one.op for one in db.log() if one.table == "orders"} == ops  # row by row
    else:
        assert said(db) == [("invalidate", "orders", "*")]
    assert [(one.kind, one.table, one.key) for one in events] == [("invalidate", "orders", None)]


@pytest.mark.contract("M5")
def test_raw_sql_with_a_write_inside_a_cte(db: Harness) -> None:
    start(db)
    if "sqlite" in db.kind or db.kind == "mariadb":
        pytest.skip("PostgreSQL only")
    events = db.listen(table=None)
    raw = "WITH gone AS (DELETE FROM orders RETURNING mail) INSERT INTO tags (name) SELECT mail FROM gone"
    db.run(lambda connection: connection.execute(text(raw)))
    assert {one.table for one in events if one.kind == "invalidate"} == {"orders", "tags"}
    inner = delete(orders).returning(orders.c.mail).cte()
    start(db)
    events.clear()
    db.run(lambda connection: connection.execute(select(inner)).all())
    assert [(one.kind, one.table) for one in events] == [("invalidate", "orders")]


@pytest.mark.contract("M5")
def test_what_cannot_be_parsed_runs_and_invalidates_everything(db: Harness) -> None:
    start(db)
    events = db.listen()
    heard: list[Any] = []
    stop = listen(lambda engine, found: heard.append((engine, found)))
    strange = {
        "postgresql": "DO $$ BEGIN UPDATE orders SET status = 'odd'; END $$",
        "mysql": "BEGIN NOT ATOMIC UPDATE orders SET status = 'odd'; END",
        "sqlite": "UPDATE orders SET status = 'odd' WHERE mail LIKE '%' ESCAPE '!' COLLATE NOCASE",
    }["mysql" if db.kind == "mariadb" else db.plain.dialect.name]
    db.run(lambda connection: connection.exec_driver_sql(strange))
    stop()
    assert db.rows(orders)[0]["status"] == "odd"
    assert [(one.kind, one.table) for one in events] == [("invalidate", None)]
    assert [(engine, [one.table for one in found]) for engine, found in heard] == [(sync(db.target), [None])]


@pytest.mark.contract("M6")
@pytest.mark.parametrize("filter", ["condition", "mapping", "function", None])
def test_events_follow_a_row_into_and_out_of_a_filter(db: Harness, filter: str | None) -> None:
    where = {
        "condition": Order.status == "open",
        "mapping": {"status": "open"},
        "function": lambda row: row["status"] == "open",
        None: None,
    }[filter]
    db.track(names={"orders": "Order"})
    events = db.listen(where=where)
    db.run(
        lambda connection: connection.execute(insert(orders), [ONE, {**ONE, "id": 2, "mail": "b", "status": "done"}])
    )
    for changes in ({"amount": 5}, {"status": "paid"}, {"amount": 6}, {"status": "open"}):
        changed = update(orders).where(orders.c.id == 1).values(changes)
        db.run(lambda connection, changed=changed: connection.execute(changed))  # type: ignore[misc]
    db.run(lambda connection: connection.execute(delete(orders)))
    told = [(one.kind, one.name, one.key) for one in events if one.key]
    every = {"id": 1}
    if filter is None:
        assert [kind for kind, *_ in told] == ["added", "added", *["changed"] * 4, "removed", "removed"]
    else:
        assert told == [(kind, "Order", every) for kind in ("added", "changed", "removed", "added", "removed")]
    first = next(one for one in events if one.kind == "changed")
    assert first.before is not None
    assert first.after is not None
    assert (first.before["amount"], first.after["amount"]) == (1, 5)


@pytest.mark.contract("M7")
def test_a_rollback_leaves_nothing(db: Harness) -> None:
    start(db)
    events = db.listen(table=None)

    def fail(session: Session) -> None:
        session.add(Order(mail="b"))
        session.execute(update(Order).values(status="paid"))
        session.execute(text("DELETE FROM tags"))
        session.flush()
        raise LookupError

    with pytest.raises(LookupError):
        db.session(fail)
    assert db.log() == []
    assert events == []
    assert db.rows(orders) == [ONE]


@pytest.mark.contract("M7")
def test_savepoints(db: Harness) -> None:
    start(db)
    events = db.listen()

    def work(session: Session) -> None:
        session.execute(update(Order).values(amount=2))
        outer = session.begin_nested()
        session.execute(update(Order).values(amount=3))
        with session.begin_nested():
            session.execute(update(Order).values(amount=4))
        outer.rollback()
        with session.begin_nested():
            session.execute(update(Order).values(amount=5))

    db.session(work)
    assert [one.after["amount"] for one in db.log() if one.after] == [2, 5]
    assert [one.after["amount"] for one in events if one.after] == [2, 5]


@pytest.mark.contract("M8")
def test_the_record_commits_with_the_data_or_not_at_all(db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    start(db)
    events = db.listen()
    if db.triggers:
        pytest.skip("that the triggers' log is atomic is tested elsewhere")
    from forge.tracking import record

    db.run(lambda connection: connection.execute(update(orders).values(amount=2)))

    def broken(*given: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(record, "write", broken)
    with pytest.raises(OSError, match="no space"):
        db.run(lambda connection: connection.execute(update(orders).values(amount=3)))
    assert db.rows(orders)[0]["amount"] == 2
    assert [one.after["amount"] for one in db.log() if one.after] == [2]
    assert len(events) == 1

    seen: list[int] = []

    def look(connection: Connection) -> None:
        connection.execute(update(orders).values(amount=4))
        if "sqlite" not in db.kind:
            seen.append(len(db.log()))  # another connection sees neither

    monkeypatch.undo()
    db.run(look)
    assert seen in ([1], [])
    assert len(db.log()) == 2


@pytest.mark.contract("M9")
def test_a_failed_write_records_nothing(db: Harness) -> None:
    start(db)
    events = db.listen()

    def work(connection: Connection) -> None:
        with pytest.raises(IntegrityError), connection.begin_nested():
            connection.execute(insert(orders).values({**ONE, "id": 2}))
        connection.execute(insert(orders).values({**ONE, "id": 3, "mail": "c"}))

    db.run(work)
    assert said(db) == [("insert", "orders", "3")]
    assert [one.key for one in events] == [{"id": 3}]


@pytest.mark.contract("M9")
def test_writes_that_do_nothing_record_nothing(db: Harness) -> None:
    start(db)
    events = db.listen()

    def work(session: Session) -> None:
        session.execute(update(Order).where(Order.id == 99).values(status="paid"))
        session.execute(update(Order).where(Order.amount > 99).values(status="paid"))
        if not db.triggers:  # they do record an update of a row to itself
            session.execute(update(Order).values(amount=Order.amount))
        session.execute(delete(Order).where(Order.id == 99))
        session.execute(text("UPDATE orders SET amount = 9 WHERE id = 99"))
        session.connection().execute(_upsert(db, {**ONE, "id": 5}, nothing=True))

    db.session(work)
    assert db.log() == []
    assert events == []


@pytest.mark.contract("M9")
def test_upserts_are_told_apart(db: Harness) -> None:
    start(db)

    def work(connection: Connection) -> None:
        connection.execute(_upsert(db, {"mail": ONE["mail"], "amount": 7}, nothing=False))
        connection.execute(_upsert(db, {"id": 20, "mail": "new", "amount": 8}, nothing=False))
        connection.execute(_upsert(db, [{"mail": "new", "amount": 9}, {"mail": "newer", "amount": 9}], nothing=False))

    db.run(work)
    found = [(one.op, one.after["mail"], one.after["amount"]) for one in db.log() if one.after]
    assert found[:2] == [("update", ONE["mail"], 7), ("insert", "new", 8)]
    assert sorted(found[2:]) == [("insert", "newer", 9), ("update", "new", 9)]


def _upsert(db: Harness, values: Any, *, nothing: bool) -> Any:
    if db.kind == "mariadb":
        made = mysql.insert(orders).values(values)
        return made.prefix_with("IGNORE") if nothing else made.on_duplicate_key_update(amount=made.inserted.amount)
    module: Any = sqlite if "sqlite" in db.kind else postgresql
    made = module.insert(orders).values(values)
    if nothing:
        return made.on_conflict_do_nothing()
    return made.on_conflict_do_update(index_elements=["mail"], set_={"amount": made.excluded.amount})


@pytest.mark.contract("M10")
def test_without_tracking(db: Harness) -> None:
    start(db)
    events = db.listen()
    with forge.without_tracking():
        db.run(lambda connection: connection.execute(update(orders).values(amount=2)))
        db.run(lambda connection: connection.execute(insert(orders).from_select(["mail"], select(orders.c.status))))
        db.run(lambda connection: connection.execute(text("DELETE FROM orders WHERE id > 1")))
    assert events == []
    assert db.changes() == []
    db.run(lambda connection: connection.execute(update(orders).where(orders.c.id == 1).values(amount=3)))
    assert len(events) == 1
    assert len(db.log()) == (4 if db.triggers else 1)


@pytest.mark.contract("M10")
def test_skipped_tables(db: Harness) -> None:
    db.track(skip_tables=["tags", Line])
    events = db.listen(table=None)
    db.run(lambda connection: connection.execute(insert(tags).values(name="a")))
    db.run(lambda connection: connection.execute(text("DELETE FROM tags")))
    assert events == []
    assert db.changes() == []
    db.run(lambda connection: connection.execute(insert(orders).values(ONE)))
    assert [one.table for one in events] == ["orders"]


@pytest.mark.contract("M13")
@pytest.mark.parametrize("tables", [[Order], ["orders"], [orders]], ids=["class", "name", "table"])
def test_only_registered_tables(db: Harness, tables: list[Any]) -> None:
    db.track(tables=tables)
    events = db.listen(table=None)
    db.run(lambda connection: connection.execute(insert(tags).values(name="a")))
    db.run(lambda connection: connection.execute(text("UPDATE tags SET size = 1")))
    db.run(lambda connection: connection.execute(insert(orders).values(ONE)))
    assert [one.table for one in events] == ["orders"]
    if not db.triggers:
        assert said(db) == [("insert", "orders", "1")]


def test_a_table_without_a_key_is_recorded_as_a_whole(db: Harness) -> None:
    events = db.listen(table="keyless")
    db.run(lambda connection: connection.execute(insert(keyless), [{"word": "a"}, {"word": "b"}]))
    db.run(lambda connection: connection.execute(update(keyless).where(keyless.c.word == "z").values(times=1)))
    assert [(one.op, one.row_id) for one in db.changes()] == [("invalidate", "*")]
    assert [one.kind for one in events] == ["invalidate"]


def test_rows_that_the_database_deletes_by_itself(db: Harness) -> None:
    start(db)
    db.run(lambda connection: connection.execute(insert(lines).values(order_id=1, place=1, what="ink")))
    events = db.listen(table="lines")
    db.run(lambda connection: connection.execute(delete(orders)))
    assert [(one.kind, one.table) for one in events] == [("invalidate", "lines")]


def test_who_and_why(db: Harness) -> None:
    start(db)
    with forge.context(user_id="ada", function_name="pay", basket=7):
        db.run(lambda connection: connection.execute(update(orders).values(amount=2)))
    db.run(lambda connection: connection.execute(update(orders).values(amount=3)))
    assert [one.user_id for one in db.log()] == ["ada", None]

    def two(connection: Connection) -> None:
        with forge.context(user_id="bob"), connection.begin_nested() as inner:
            connection.execute(update(orders).values(amount=4))
            inner.rollback()
        with forge.context(user_id="eve"):
            connection.execute(update(orders).values(amount=5))
        connection.execute(update(orders).values(amount=6))

    db.run(two)
    assert [one.user_id for one in db.log()] == ["ada", None, "eve", None]


def test_two_engines_do_not_mix(db: Harness) -> None:
    start(db)
    first, second = db.track(), track(db.engine())
    mine: list[Any] = []
    other: list[Any] = []
    stop = forge.on_change(first, "orders", mine.append)
    forge.on_change(second, "orders", other.append)

    db.run(lambda connection: connection.execute(update(orders).values(amount=2)), first)
    db.run(lambda connection: connection.execute(update(orders).values(amount=3)), second)
    stop()
    db.run(lambda connection: connection.execute(update(orders).values(amount=4)), first)
    assert [one.after["amount"] for one in mine] == [2]
    assert [one.after["amount"] for one in other] == [3]
    assert len(db.log()) == 3


def test_a_failing_subscriber_harms_nobody(db: Harness, caplog: pytest.LogCaptureFixture) -> None:
    start(db)
    db.track()

    def fail(event: Any) -> None:
        raise LookupError("mine")

    forge.on_change(db.target, "orders", fail)
    events = db.listen()
    with caplog.at_level(logging.ERROR, "forge.tracking"):
        db.run(lambda connection: connection.execute(update(orders).values(amount=2)))
    assert "a subscriber of changes failed" in caplog.text
    assert len(events) == 1
    assert db.rows(orders)[0]["amount"] == 2
