"""What foreign keys do to other tables is not in the log: it is told as `invalidate`, and warned of."""

import pytest

from forge.capture import Filter
from forge.change import Change, Op
from forge.testing.mariadb import run
from tests.capture.mysql.reading import batches, changes, source

pytestmark = pytest.mark.contract("W5")


def family(url: str) -> None:
    """Grandparent, parent, children by both rules, a grandchild, and one that is never touched."""
    run(
        url,
        "CREATE TABLE p (id int PRIMARY KEY, code int UNIQUE, n int)",
        "CREATE TABLE gone (id int PRIMARY KEY, p int, CONSTRAINT gone_p FOREIGN KEY (p) REFERENCES p (id)"
        " ON DELETE CASCADE)",
        "CREATE TABLE grand (id int PRIMARY KEY, g int, CONSTRAINT grand_g FOREIGN KEY (g) REFERENCES gone (id)"
        " ON DELETE SET NULL)",
        "CREATE TABLE renamed (id int PRIMARY KEY, code int, CONSTRAINT renamed_code FOREIGN KEY (code)"
        " REFERENCES p (code) ON UPDATE CASCADE)",
        "CREATE TABLE strict (id int PRIMARY KEY, p int, CONSTRAINT strict_p FOREIGN KEY (p) REFERENCES p (id))",
        "INSERT INTO p VALUES (1, 10, 0), (2, 20, 0), (3, 30, 0)",
        "INSERT INTO gone VALUES (1, 1), (2, 1)",
        "INSERT INTO grand VALUES (1, 1)",
        "INSERT INTO renamed VALUES (1, 20)",
    )


def told(found: list[Change]) -> list[tuple[str, str]]:
    return [(change.op.value, change.table) for change in found]


async def test_children_are_invalidated(database: str) -> None:
    family(database)
    reader = source(database)
    start = await reader.now()
    run(
        database,
        "DELETE FROM p WHERE id = 1",
        "UPDATE p SET n = 1 WHERE id = 2",
        "UPDATE p SET code = 21 WHERE id = 2",
        "INSERT INTO p VALUES (4, 40, 0)",
    )
    assert run(database, "SELECT (SELECT count(*) FROM gone), (SELECT g FROM grand), (SELECT code FROM renamed)") == [
        (0, None, 21)
    ]
    found = await changes(reader, start, 7)
    assert told(found) == [
        ("delete", "p"),
        ("invalidate", "gone"),
        ("invalidate", "grand"),
        ("update", "p"),
        ("update", "p"),
        ("invalidate", "renamed"),
        ("insert", "p"),
    ]
    assert found[1].context.more["cascade"] == "gone_p"
    assert "ON DELETE CASCADE" in found[1].context.more["reason"]
    assert len({change.id for change in found}) == 7


async def test_once_in_a_transaction_and_again_from_any_cursor(database: str) -> None:
    family(database)
    reader = source(database, page=1)
    start = await reader.now()
    run(database, "BEGIN", "DELETE FROM p WHERE id = 1", "DELETE FROM p WHERE id = 3", "COMMIT", "DELETE FROM strict")
    run(database, "INSERT INTO strict VALUES (1, NULL)")
    whole = await batches(reader, start, lambda seen: len(seen) == 5)
    found = [change for batch in whole for change in batch.changes]
    assert told(found) == [
        ("delete", "p"),
        ("invalidate", "gone"),
        ("invalidate", "grand"),
        ("delete", "p"),
        ("insert", "strict"),
    ]
    done = 0
    for batch in whole[:-1]:
        done += len(batch.changes)
        rest = await changes(source(database), batch.cursor, len(found) - done)
        assert [change.id for change in rest] == [change.id for change in found[done:]]


async def test_a_child_is_told_of_though_its_parent_is_not_followed(database: str) -> None:
    family(database)
    reader = source(database, Filter(tables=("gone",)))
    start = await reader.now()
    run(database, "DELETE FROM p WHERE id = 1")
    (only,) = await changes(reader, start, 1)
    assert (only.op, only.table) == (Op.INVALIDATE, "gone")


async def test_no_cascade_without_checks(database: str) -> None:
    family(database)
    reader = source(database)
    start = await reader.now()
    run(database, "SET foreign_key_checks = 0", "DELETE FROM p WHERE id = 1", "SET foreign_key_checks = 1")
    run(database, "INSERT INTO strict VALUES (9, NULL)")
    assert told(await changes(reader, start, 2)) == [("delete", "p"), ("insert", "strict")]


async def test_a_foreign_key_that_comes_later(database: str) -> None:
    run(database, "CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY, p int)")
    run(database, "INSERT INTO p VALUES (1)", "INSERT INTO c VALUES (1, 1)")
    reader = source(database)
    start = await reader.now()
    run(database, "ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE", "DELETE FROM p")
    assert told(await changes(reader, start, 3)) == [("schema", "c"), ("delete", "p"), ("invalidate", "c")]


async def test_a_table_that_refers_to_itself(database: str) -> None:
    run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, up int, FOREIGN KEY (up) REFERENCES t (id) ON DELETE CASCADE)",
        "INSERT INTO t VALUES (1, NULL), (2, 1)",
    )
    reader = source(database)
    start = await reader.now()
    run(database, "DELETE FROM t WHERE id = 1")
    assert told(await changes(reader, start, 2)) == [("delete", "t"), ("invalidate", "t")]


async def test_status_names_the_constraints(database: str) -> None:
    family(database)
    status = await source(database).status()
    assert sorted(status.details["cascades"]) == ["gone_p", "grand_g", "renamed_code"]  # type: ignore[call-overload]
    warned = " ".join(status.warnings)
    assert "foreign key gone_p" in warned
    assert "strict_p" not in warned
