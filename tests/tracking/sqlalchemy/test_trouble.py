"""What goes wrong beside a tracked write, and must go wrong, or well, as it would untracked."""

from collections.abc import Callable, Iterator
from threading import Barrier, Thread
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    Column,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    Text,
    create_engine,
    func,
    select,
    text,
    true,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import OperationalError, ProgrammingError

import forge
from forge.testing.mariadb import MariadbServer, fresh_mariadb

KINDS = ["postgres", "mariadb", "sqlite"]
UPSERT: dict[str, Any] = {"postgres": postgresql.insert, "mariadb": mysql.insert, "sqlite": sqlite.insert}

metadata = MetaData()
parents = Table("parents", metadata, Column("id", Integer, primary_key=True, autoincrement=False), Column("n", Integer))
children = Table(
    "children",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("parent", ForeignKey("parents.id")),
)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(kind: str, request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Engine]:
    """A tracked engine with the tables above."""
    with _url(kind, request, tmp_path) as url:
        engine = create_engine(url)
        metadata.create_all(engine)
        try:
            yield forge.track(engine)
        finally:
            engine.dispose()


def _url(kind: str, request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def found() -> Iterator[str]:
        if kind == "mariadb":
            server: MariadbServer = request.getfixturevalue("tracked_maria")
            with fresh_mariadb(server) as url:
                yield url.replace("mysql://", "mariadb+pymysql://")
        elif kind == "sqlite":
            yield f"sqlite:///{tmp_path / 'app.db'}"
        else:
            yield request.getfixturevalue("empty_database").replace("postgresql://", "postgresql+psycopg://")

    return found()


def _logged(engine: Engine) -> list[tuple[str, Any]]:
    return [(change.op.name, change.key and change.key["id"]) for change in forge.tracking.recorded(engine)]


def _at_once(*parts: Callable[[], None]) -> list[Exception]:
    failures: list[Exception] = []

    def run(part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            failures.append(error)

    threads = [Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize("kind", ["postgres", "mariadb"], indirect=True)
def test_two_who_add_a_child_and_then_update_its_parent(engine: Engine, kind: str) -> None:
    """Untracked, PostgreSQL lets both through, and MariaDB gives one of them up: whole, and with an error."""
    with engine.begin() as connection:
        connection.execute(parents.insert(), {"id": 1, "n": 0})
    both = Barrier(2, timeout=20)

    def add(id: int) -> None:
        with engine.begin() as connection:
            connection.execute(children.insert(), {"id": id, "parent": 1})
            both.wait()
            connection.execute(parents.update().where(parents.c.id == 1).values(n=parents.c.n + 1))

    failures = _at_once(lambda: add(1), lambda: add(2))
    with engine.connect() as connection:
        n = connection.scalar(select(parents.c.n))
        assert connection.scalar(select(func.count()).select_from(children)) == n == 2 - len(failures)
    ops = [op for op, _ in _logged(engine)]
    assert ops == ["INSERT", *sorted(["INSERT", "UPDATE"] * (2 - len(failures)))]
    if kind == "postgres":
        assert failures == []
    else:
        assert all(isinstance(error, OperationalError) for error in failures)


@pytest.mark.parametrize("kind", ["mariadb"], indirect=True)
def test_a_deadlock_of_a_read_is_the_writers(engine: Engine, kind: str) -> None:
    """MariaDB rolls the whole transaction back: to go on would commit its second half alone."""
    with engine.begin() as connection:
        connection.execute(parents.insert(), [{"id": 1, "n": 0}, {"id": 2, "n": 0}])
    both = Barrier(2, timeout=20)

    def write(first: int, second: int) -> None:
        with engine.begin() as connection:
            connection.execute(parents.update().where(parents.c.id == first).values(n=parents.c.n + 1))
            both.wait()
            connection.execute(parents.update().where(parents.c.id == second).values(n=parents.c.n + 1))

    failures = _at_once(lambda: write(1, 2), lambda: write(2, 1))
    assert [type(error) for error in failures] == [OperationalError]
    with engine.connect() as connection:
        assert connection.scalars(select(parents.c.n)).all() == [1, 1]


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_autocommit_knows_rows(engine: Engine, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        connection.execute(parents.update().where(parents.c.n == 0).values(n=1))
        connection.execute(parents.delete())
    assert _logged(engine) == [("INSERT", 1), ("UPDATE", 1), ("DELETE", 1)]
    assert not caplog.records


@pytest.mark.parametrize("kind", ["postgres", "sqlite"], indirect=True)
@pytest.mark.parametrize("id", [5, None])
def test_an_upsert_by_an_index_that_the_table_does_not_say(engine: Engine, kind: str, id: int | None) -> None:
    with engine.begin() as connection, forge.without_tracking():
        key = "integer" if kind == "sqlite" else "serial"
        connection.exec_driver_sql(f"CREATE TABLE people (id {key} PRIMARY KEY, email text, n int)")
        connection.exec_driver_sql("CREATE UNIQUE INDEX ON people (lower(email))".replace("ON", "people_email ON"))
        connection.exec_driver_sql("INSERT INTO people VALUES (1, 'A@x', 0)")
    people = Table(
        "people", MetaData(), Column("id", Integer, primary_key=True), Column("email", Text), Column("n", Integer)
    )
    values = {"email": "a@X", "n": 9} | ({} if id is None else {"id": id})
    with engine.begin() as connection:
        statement = UPSERT[kind](people).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=[text("lower(email)")], set_={"n": 9}))
    assert [op for op, _ in _logged(engine)] == ["INVALIDATE"]


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_an_upsert_of_selected_rows_does_not_call_old_rows_new(engine: Engine, kind: str) -> None:
    with engine.begin() as connection, forge.without_tracking():
        connection.execute(parents.insert(), [{"id": 1, "n": 0}, {"id": 2, "n": 0}])
    source = select(parents.c.id, parents.c.n + 1).where(true())
    statement = UPSERT[kind](parents).from_select(["id", "n"], source)
    if kind == "mariadb":
        statement = statement.on_duplicate_key_update(n=7)
    else:
        statement = statement.on_conflict_do_update(index_elements=["id"], set_={"n": 7})
    with engine.begin() as connection:
        connection.execute(statement)
    assert [op for op, _ in _logged(engine)] == ["INVALIDATE"]


@pytest.mark.parametrize("kind", ["mariadb", "postgres"], indirect=True)
def test_two_phases(engine: Engine, kind: str) -> None:
    heard: list[Any] = []
    forge.on_change(engine, parents, lambda event: heard.append((event.kind, event.key)))
    with engine.connect() as connection:
        prepared = connection.begin_twophase()
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        prepared.prepare()
        assert heard == []
        prepared.commit()
    with engine.connect() as connection:
        given_up = connection.begin_twophase()
        connection.execute(parents.insert(), {"id": 2, "n": 0})
        given_up.prepare()
        given_up.rollback()
    assert heard == [("added", {"id": 1})]
    assert _logged(engine) == [("INSERT", 1)]


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_key_that_is_a_list(engine: Engine, kind: str) -> None:
    paths = Table("paths", MetaData(), Column("id", ARRAY(Integer), primary_key=True), Column("n", Integer))
    with forge.without_tracking():
        paths.create(engine)
    with engine.begin() as connection:
        connection.execute(paths.insert(), {"id": [1, 2], "n": 0})
        connection.execute(paths.update().where(paths.c.id == [1, 2]).values(n=1))
        upsert = postgresql.insert(paths).values(id=[1, 2], n=2)
        connection.execute(upsert.on_conflict_do_update(index_elements=["id"], set_={"n": 2}))
        connection.execute(paths.delete().where(paths.c.id == [1, 2]))
    assert [op for op, _ in _logged(engine)] == ["INVALIDATE"] * 4


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_foreign_key_to_a_table_that_nobody_declared(engine: Engine, kind: str) -> None:
    some = MetaData()
    parent = Table("parents", some, Column("id", Integer, primary_key=True))
    Table("others", some, Column("id", Integer, ForeignKey("elsewhere.id", ondelete="CASCADE"), primary_key=True))
    with engine.begin() as connection:
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        connection.execute(parent.delete().where(parent.c.id == 1))
    assert _logged(engine) == [("INSERT", 1), ("DELETE", 1)]


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("where", ["engine", "statement"])
def test_tables_that_are_in_another_schema_for_each_tenant(engine: Engine, kind: str, where: str) -> None:
    with engine.begin() as connection, forge.without_tracking():
        connection.exec_driver_sql("CREATE SCHEMA ada CREATE TABLE parents (id int PRIMARY KEY, n int)")
        connection.execute(parents.insert(), {"id": 1, "n": 7})
    options: Any = {"schema_translate_map": {None: "ada"}}
    tenant = engine.execution_options(**options) if where == "engine" else engine
    with tenant.begin() as connection:
        connection.execute(parents.insert(), [{"id": 1, "n": 0}, {"id": 2, "n": 0}], execution_options=options)
        connection.execute(parents.update().where(parents.c.id == 1).values(n=1), execution_options=options)
        connection.execute(parents.delete().where(parents.c.n == 0), execution_options=options)
    found = [
        (change.schema, change.op.name, change.before and change.before["n"], change.after and change.after["n"])
        for change in forge.tracking.recorded(engine)
    ]
    assert found == [
        ("ada", "INSERT", None, 0),
        ("ada", "INSERT", None, 0),
        ("ada", "UPDATE", 0, 1),
        ("ada", "DELETE", 0, None),
    ]


@pytest.mark.parametrize("kind", ["postgres", "sqlite"], indirect=True)
@pytest.mark.parametrize("conflict", [True, False])
def test_what_an_insert_returns_is_the_callers(engine: Engine, kind: str, conflict: bool) -> None:
    with engine.begin() as connection:
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        statement = UPSERT[kind](parents).values([{"id": 1 if conflict else 3, "n": 7}, {"id": 2, "n": 8}])
        if conflict:
            statement = statement.on_conflict_do_update(index_elements=["id"], set_={"n": 9})
        result = connection.execute(statement.returning(parents.c.n))
        assert result.rowcount == 2
        assert result.keys() == ["n"]
        assert [tuple(row) for row in result] == [(9 if conflict else 7,), (8,)]
    assert _logged(engine)[1:] == ([("UPDATE", 1), ("INSERT", 2)] if conflict else [("INSERT", 3), ("INSERT", 2)])


DDL = {
    "create": ("CREATE TABLE more (id int)", None),
    "alter": ("ALTER TABLE children ADD COLUMN note int", None),
    "truncate": ("TRUNCATE children", None),
    "one that fails": ("CREATE TABLE parents (id int)", "already exists"),
    "commit": ("COMMIT", None),
}


@pytest.mark.contract("M7")
@pytest.mark.parametrize("kind", ["mariadb"], indirect=True)
@pytest.mark.parametrize("how", DDL)
def test_ddl_that_commits_by_itself_takes_events_and_records_along(engine: Engine, kind: str, how: str) -> None:
    """What comes after it is another transaction, and is forgotten when that is rolled back."""
    sql, problem = DDL[how]
    heard: list[Any] = []
    forge.on_change(engine, None, lambda event: heard.append((event.kind, event.table, event.transaction)))
    with engine.connect() as connection:
        begun = connection.begin()
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        assert heard == []
        if problem is None:
            connection.exec_driver_sql(sql)
        else:
            with pytest.raises(OperationalError, match=problem):
                connection.exec_driver_sql(sql)
        assert heard[0][:2] == ("added", "parents")
        connection.execute(parents.insert(), {"id": 2, "n": 0})
        begun.rollback()
        assert connection.scalars(select(parents.c.id)).all() == [1]
    expected = [] if how in ("commit", "one that fails") else ["more" if how == "create" else "children"]
    assert [(kind, table) for kind, table, _ in heard[1:]] == [("invalidate", table) for table in expected]
    assert len({transaction for *_, transaction in heard}) == len(heard)
    found = [change.table for change in forge.tracking.recorded(engine)]
    assert found == ["parents", *expected]


@pytest.mark.contract("M7")
@pytest.mark.parametrize("kind", ["mariadb"], indirect=True)
@pytest.mark.parametrize("sql", ["CREATE NONSENSE", "ROLLBACK", "SELECT 1", "SET @a = 1", "DO 1"])
def test_what_does_not_commit_tells_nothing(engine: Engine, kind: str, sql: str) -> None:
    heard: list[Any] = []
    forge.on_change(engine, parents, heard.append)
    with engine.connect() as connection:
        begun = connection.begin()
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        try:
            connection.exec_driver_sql(sql)
        except ProgrammingError:
            assert sql == "CREATE NONSENSE"
        assert heard == []
        begun.rollback()
    assert (heard, _logged(engine)) == ([], [])


@pytest.mark.parametrize("kind", ["postgres", "sqlite"], indirect=True)
def test_ddl_of_a_transaction_is_undone_with_it(engine: Engine, kind: str) -> None:
    heard: list[Any] = []
    forge.on_change(engine, None, heard.append)
    with engine.connect() as connection:
        begun = connection.begin()
        connection.execute(parents.insert(), {"id": 1, "n": 0})
        connection.exec_driver_sql("CREATE TABLE more (id int)")
        begun.rollback()
    assert (heard, _logged(engine)) == ([], [])
