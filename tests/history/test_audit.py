"""Who changed what, listed in pages and counted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forge.change import Op
from forge.changelog.tenancy import Tenant
from forge.errors import CursorInvalid, HistoryUnavailable
from forge.history.audit import AuditFilter, audit, counts
from forge.postgres.connection import Connection

pytestmark = pytest.mark.contract("T8")


@pytest.fixture
def shop(connection: Connection) -> Connection:
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, tenant text)")
    connection.execute("CREATE TABLE note (body text)")
    connection.execute("SELECT forge_enable_reactivity('orders'), forge_enable_reactivity('note')")
    for user, trace, statement in (
        ("ada", "t1", "INSERT INTO orders VALUES (1, 'placed', 'acme'), (2, 'placed', 'acme'), (3, 'placed', 'zeta')"),
        ("bob", "t2", "UPDATE orders SET status = 'paid' WHERE id < 3"),
        ("ada", "t3", "DELETE FROM orders WHERE id = 2"),
        ("bob", "t4", "INSERT INTO note VALUES ('x')"),
        ("bob", "t5", "UPDATE orders SET tenant = 'acme' WHERE id = 3"),
    ):
        with connection.transaction():
            connection.execute("SELECT forge_context(user_id => %s, trace_id => %s)", (user, trace))
            connection.execute(statement.encode())
    return connection


def listed(connection: Connection, **choice: Any) -> list[tuple[Any, ...]]:
    found = audit(connection, AuditFilter(**choice)).entries
    return [(entry.who, entry.table, entry.op.name, entry.key) for entry in found if entry.op is not Op.SCHEMA]


def test_changes_are_listed_newest_first(shop: Connection) -> None:
    assert listed(shop) == [
        ("bob", "public.orders", "UPDATE", "3"),
        ("bob", "public.note", "INSERT", None),
        ("ada", "public.orders", "DELETE", "2"),
        ("bob", "public.orders", "UPDATE", "2"),
        ("bob", "public.orders", "UPDATE", "1"),
        ("ada", "public.orders", "INSERT", "3"),
        ("ada", "public.orders", "INSERT", "2"),
        ("ada", "public.orders", "INSERT", "1"),
    ]
    assert audit(shop).entries[0].changed_columns == ("tenant",)


def test_by_user_table_operation_request_and_time(shop: Connection) -> None:
    assert {row[0] for row in listed(shop, user="ada")} == {"ada"}
    assert [row[2] for row in listed(shop, table="note")] == ["INSERT"]
    assert [row[3] for row in listed(shop, ops=(Op.DELETE,), table="public.orders")] == ["2"]
    assert len(listed(shop, trace="t2")) == 2
    now = datetime.now(UTC)
    assert len(listed(shop, since=now - timedelta(hours=1))) == 8
    assert listed(shop, until=now - timedelta(hours=1)) == []
    assert listed(shop, since=now + timedelta(hours=1)) == []
    third = audit(shop, AuditFilter(trace="t3")).entries[0].at
    assert [row[2] for row in listed(shop, since=third, until=third + timedelta(microseconds=1))] == ["DELETE"]


def test_a_tenant_sees_what_was_and_stayed_its_own(shop: Connection) -> None:
    assert listed(shop, tenant=Tenant("tenant", "zeta")) == [("", "public.orders", "INSERT", "3")]
    assert listed(shop, tenant=Tenant("tenant", "acme")) == [
        ("ada", "public.orders", "DELETE", "2"),
        ("bob", "public.orders", "UPDATE", "2"),
        ("bob", "public.orders", "UPDATE", "1"),
        ("", "public.orders", "INSERT", "2"),  # whose transaction wrote a row of zeta, too
        ("", "public.orders", "INSERT", "1"),
    ]
    assert listed(shop, user="ada", tenant=Tenant("tenant", "zeta")) == []


def test_pages_are_the_whole(shop: Connection) -> None:
    whole = audit(shop).entries
    for limit in (1, 3):
        seen: list[Any] = []
        place: str | None = None
        while True:
            page = audit(shop, limit=limit, before=place)
            seen += page.entries
            place = page.next
            if place is None:
                break
        assert tuple(seen) == whole


def test_changes_are_counted(shop: Connection) -> None:
    found = counts(shop, AuditFilter(ops=(Op.INSERT, Op.UPDATE, Op.DELETE)), by=["user", "op"])
    assert [(*count.by.values(), count.changes) for count in found] == [
        ("ada", "INSERT", 3),
        ("bob", "UPDATE", 3),
        ("ada", "DELETE", 1),
        ("bob", "INSERT", 1),
    ]
    hours = counts(shop, by=["hour", "table"])
    assert sum(count.changes for count in hours) == 10
    assert all(isinstance(count.by["hour"], datetime) for count in hours)
    assert [count.by for count in counts(shop, AuditFilter(user="ada"), by=["table"])] == [{"table": "public.orders"}]


def test_bad_questions_are_refused(shop: Connection) -> None:
    with pytest.raises(HistoryUnavailable, match="counted by 'colour'"):
        counts(shop, by=["user", "colour"])
    with pytest.raises(HistoryUnavailable, match="once"):
        counts(shop, by=[])
    with pytest.raises(HistoryUnavailable, match="time zone"):
        audit(shop, AuditFilter(since=datetime(2026, 1, 1)))
    with pytest.raises(CursorInvalid):
        audit(shop, before="1.2")
    with pytest.raises(HistoryUnavailable, match="lines"):
        audit(shop, limit=0)
