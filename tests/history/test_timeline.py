"""Every change of a row, newest first: key changes followed, in pages, nothing shown that is hidden."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from forge.change import UNAVAILABLE, Op
from forge.errors import CursorInvalid, HistoryUnavailable, TrackingError
from forge.history.timeline import Timeline, timeline
from forge.postgres.connection import Connection

pytestmark = pytest.mark.contract("T9")
UNSET = msgspec.UNSET


def told(page: Timeline) -> list[tuple[Any, ...]]:
    """Each entry as what happened, the key, and the columns before and after."""
    return [
        (
            entry.op,
            None if entry.change.key is None else tuple(entry.change.key.values()),
            {one.column: (one.before, one.after) for one in entry.diff if not one.hidden},
        )
        for entry in page.entries
        if entry.change.op is not Op.SCHEMA
    ]


def write(connection: Connection, user: str, statement: str) -> None:
    with connection.transaction():
        connection.execute("SELECT forge_context(user_id => %s, function_name => 'edit')", (user,))
        connection.execute(statement.encode())


def test_the_whole_life_of_a_row(connection: Connection) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric, secret text)")
    connection.execute("SELECT forge_enable_reactivity('item', exclude => '{secret}')")
    write(connection, "ada", "INSERT INTO item VALUES (1, 'a', 1.10, 's'), (2, 'b', 2, 's')")
    write(connection, "bob", "UPDATE item SET name = 'aa', secret = 't' WHERE id = 1")
    write(connection, "cid", "DELETE FROM item WHERE id = 1")
    write(connection, "dan", "INSERT INTO item VALUES (1, 'again', 3)")
    write(connection, "eve", "TRUNCATE item")
    write(connection, "fay", "ALTER TABLE item ADD COLUMN more int DEFAULT 4")
    page = timeline(connection, "item", 1)
    assert (page.table, page.key, page.next) == ("public.item", {"id": 1}, None)
    assert [(entry.op, entry.change.context.user_id) for entry in page.entries] == [
        ("SCHEMA", "fay"),
        ("TRUNCATE", "eve"),
        ("INSERT", "dan"),
        ("DELETE", "cid"),
        ("UPDATE", "bob"),
        ("INSERT", "ada"),
        ("SCHEMA", None),
    ]
    assert page.entries[0].redefined == ("column more integer is new",)
    update = page.entries[4]
    assert [(one.column, one.before, one.hidden) for one in update.diff] == [
        ("name", "a", False),
        ("secret", update.diff[1].before, True),
    ]
    assert update.wire()["diff"] == [
        {"column": "name", "before": "a", "after": "aa"},
        {"column": "secret", "hidden": True},
    ]
    assert page.entries[5].wire()["diff"][2] == {"column": "price", "after": {"$numeric": "1.10"}}


@pytest.mark.every_version
@pytest.mark.parametrize("trigger", [False, True], ids=["plain", "with a trigger"])
def test_a_changed_key_is_followed(connection: Connection, trigger: bool) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY DEFERRABLE, name text)")
    if trigger:  # the order of its changes is then kept by rank
        connection.execute(
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER t AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION nothing()"
        )
    connection.execute("SELECT forge_enable_reactivity('item')")
    connection.execute("INSERT INTO item VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    connection.execute("UPDATE item SET id = id + 1")
    connection.execute("UPDATE item SET id = 40, name = 'moved' WHERE id = 4")
    with connection.transaction():  # no change of a key
        connection.execute("DELETE FROM item WHERE id = 2")
        connection.execute("INSERT INTO item VALUES (5, 'new')")
    assert told(timeline(connection, "item", 40)) == [
        ("KEY", (40,), {"id": (4, 40), "name": ("c", "moved")}),
        ("KEY", (4,), {"id": (3, 4)}),
        ("INSERT", (3,), {"id": (UNSET, 3), "name": (UNSET, "c")}),
    ]
    assert [(op, key) for op, key, _ in told(timeline(connection, "item", 3))] == [
        ("KEY", (3,)),
        ("INSERT", (2,)),
    ]
    gone = timeline(connection, "item", 1)
    assert [(entry.op, entry.became) for entry in gone.entries if entry.change.op is not Op.SCHEMA] == [
        ("KEY", {"id": 2}),
        ("INSERT", None),
    ]
    assert [op for op, _, _ in told(timeline(connection, "item", 5))] == ["INSERT"]
    alone = timeline(connection, "item", 3, follow=False)
    assert [(op, key) for op, key, _ in told(alone)] == [("INSERT", (3,)), ("DELETE", (3,)), ("INSERT", (3,))]


def test_pages_are_the_whole_and_nothing_twice(connection: Connection) -> None:
    connection.execute("CREATE TABLE item (region text, number int, n int, PRIMARY KEY (region, number))")
    connection.execute("SELECT forge_enable_reactivity('item')")
    connection.execute("INSERT INTO item VALUES ('eu', 1, 0)")
    for step in range(20):
        connection.execute("UPDATE item SET n = n + 1")
        if step % 7 == 0:
            connection.execute("UPDATE item SET number = number + 1")
    whole = told(timeline(connection, "item", {"region": "eu", "number": 4}, limit=1000))
    assert len(whole) == 24
    for limit in (1, 3, 24):
        seen: list[Any] = []
        place: str | None = None
        while True:
            page = timeline(connection, "item", {"number": 4, "region": "eu"}, limit=limit, before=place)
            assert len(page.entries) <= limit
            seen += told(page)
            place = page.next
            if place is None:
                break
        assert seen == whole


def test_what_is_excluded_now_is_not_shown(connection: Connection) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, card text, note text)")
    connection.execute("SELECT forge_enable_reactivity('item')")
    connection.execute("INSERT INTO item VALUES (1, '4111', 'x')")
    connection.execute("SELECT forge_enable_reactivity('item', exclude => '{card}', mask => '{note}')")
    entry = timeline(connection, "item", 1).entries[1]
    assert entry.change.after == {"id": 1, "card": UNAVAILABLE, "note": UNAVAILABLE}
    assert "4111" not in str(entry.wire())


def test_a_table_that_was_dropped_has_a_history(connection: Connection) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY, price numeric)")
    connection.execute("SELECT forge_enable_reactivity('item')")
    connection.execute("INSERT INTO item VALUES (1, 5)")
    connection.execute("DROP TABLE item")
    page = timeline(connection, "item", 1)
    assert page.entries[0].redefined == ("dropped",)
    assert told(page) == [("INSERT", (1,), {"id": (UNSET, 1), "price": (UNSET, Decimal(5))})]


def test_bad_questions_are_refused(connection: Connection) -> None:
    connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
    connection.execute("CREATE TABLE note (body text)")
    with pytest.raises(HistoryUnavailable, match="not tracked"):
        timeline(connection, "item", 1)
    connection.execute("SELECT forge_enable_reactivity('item'), forge_enable_reactivity('note')")
    with pytest.raises(TrackingError, match="no table"):
        timeline(connection, "nothing", 1)
    for key, why in (({"no": 1}, "key of item is id"), ("x", "cannot be that"), (None, "cannot be null")):
        with pytest.raises(HistoryUnavailable, match=why):
            timeline(connection, "item", key)
    with pytest.raises(HistoryUnavailable, match="no primary key"):
        timeline(connection, "note", 1)
    with pytest.raises(HistoryUnavailable, match="0 entries"):
        timeline(connection, "item", 1, limit=0)
    for token in ("?", "OC45", "x" * 100):
        with pytest.raises(CursorInvalid):
            timeline(connection, "item", 1, before=token)
    assert timeline(connection, "item", 7).entries[0].change.op is Op.SCHEMA
