"""What applications write to SQL Server by SQL of their own is stamped and journaled, set by set, or refused whole.

Where `FORGE_TEST_SQLSERVER_URL` names a server (see tests/versions/mssql.py); what both databases do alike is tested by
tests/versions/test_stores.py.
"""

import importlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from forge.errors import WindowExpired
from tests.versions.mssql import UNSET, URL, SqlServerStore, sqlserver_store
from tests.versions.stores import derived, spelled, within

pytestmark = [pytest.mark.contract("V9"), pytest.mark.skipif(URL is None, reason=UNSET)]

JOURNALS = ("document_change", "identity_change", "key_change", "deletion")


@pytest.fixture
def store() -> Iterator[SqlServerStore]:
    with sqlserver_store() as made:
        for name in ("schools", "courses", "plans"):
            made.declare(name)
        yield made


def insert(store: SqlServerStore, resource: str, *identities: dict[str, Any]) -> list[int]:
    """Documents by one statement."""
    values = ", ".join(f"(N'{spelled(identity)}')" for identity in identities)
    before = set(store.rows().documents)
    store.run(
        "INSERT INTO forge_versions.document (resource, [identity], body) SELECT r.id, made.[identity], N'{}'"
        f" FROM forge_versions.resource AS r CROSS JOIN (VALUES {values}) AS made ([identity])"
        f" WHERE r.name = N'{resource}'"
    )
    return sorted(set(store.rows().documents) - before)


def refer(store: SqlServerStore, parent: int, name: str, child: int, *, in_identity: bool = False) -> None:
    store.run(
        "INSERT INTO forge_versions.reference (parent, name, child, in_identity)"
        f" VALUES ({parent}, N'{name}', {child}, {in_identity:d})"
    )


def tokens(store: SqlServerStore, *documents: int) -> list[tuple[int, int]]:
    found = store.rows().documents
    return [found[document][1:] for document in documents]


def journals(store: SqlServerStore) -> dict[str, list[tuple[int, int]]]:
    return {
        name: [
            (version, document)
            for version, document in store.run(
                f"SELECT version, document FROM forge_versions.{name} ORDER BY version, document"
            )
        ]
        for name in JOURNALS
    }


def everything(store: SqlServerStore) -> tuple[Any, ...]:
    identities = store.run("SELECT id, [identity] FROM forge_versions.document ORDER BY id")
    return store.rows(), journals(store), identities


@contextmanager
def refused(store: SqlServerStore, number: int | None = None) -> Iterator[None]:
    """With the error of that number; nothing of the statement stays."""
    before = everything(store)
    with pytest.raises(importlib.import_module("pymssql").Error) as error:
        yield
    if number is not None:
        assert error.value.args[0] == number
    assert everything(store) == before


def test_a_statement_that_inserts_many_takes_one_stamp(store: SqlServerStore) -> None:
    ids = insert(store, "schools", {"id": 1}, {"id": 2}, {"id": 3})
    assert tokens(store, *ids) == [(1, 1)] * 3
    assert journals(store) == {
        "document_change": [(1, id) for id in ids],
        "identity_change": [(1, id) for id in ids],
        "key_change": [],
        "deletion": [],
    }
    assert store.newest() == 1


def test_a_statement_stamps_what_it_changes_and_nothing_else(store: SqlServerStore) -> None:
    one, two, three = insert(store, "schools", {"id": 1}, {"id": 2}, {"id": 3})
    store.run(f"UPDATE forge_versions.document SET body = CASE WHEN id = {one} THEN body ELSE N'{{\"a\":1}}' END")
    assert tokens(store, one, two, three) == [(1, 1), (2, 1), (2, 1)]
    store.run("UPDATE forge_versions.document SET body = body, [identity] = [identity]")
    store.run("UPDATE forge_versions.document SET body = N'{}' WHERE id < 0")
    store.run("DELETE FROM forge_versions.document WHERE id < 0")
    assert store.newest() == 2
    store.run(f"UPDATE forge_versions.document SET body = N'{{\"a\":1.0}}' WHERE id = {two}")
    assert tokens(store, one, two, three) == [(1, 1), (3, 1), (2, 1)]
    store.run(f"UPDATE forge_versions.document SET [identity] = CONCAT(N'{{\"id\":', id + 10, N'}}') WHERE id <> {two}")
    assert tokens(store, one, two, three) == [(1, 4), (3, 1), (2, 4)]
    assert journals(store) == {
        "document_change": [(1, one), (1, two), (1, three), (2, two), (2, three), (3, two), (4, one), (4, three)],
        "identity_change": [(1, one), (1, two), (1, three), (4, one), (4, three)],
        "key_change": [(4, one), (4, three)],
        "deletion": [],
    }


def test_references_are_content_of_their_parent(store: SqlServerStore) -> None:
    (school,) = insert(store, "schools", {"id": 1})
    one, two = insert(store, "courses", {"code": "a"}, {"code": "b"})
    store.run(
        "INSERT INTO forge_versions.reference (parent, name, child)"
        f" VALUES ({one}, N'home', {school}), ({one}, N'guest', {school}), ({two}, N'home', {school})"
    )
    assert tokens(store, school, one, two) == [(1, 1), (3, 2), (3, 2)]
    store.run(f"DELETE FROM forge_versions.reference WHERE parent = {one} AND name = N'guest'")
    assert tokens(store, one, two) == [(4, 2), (3, 2)]
    store.run("UPDATE forge_versions.reference SET child = child")
    assert store.newest() == 4
    store.run("UPDATE forge_versions.reference SET name = N'place'")
    assert tokens(store, school, one, two) == [(1, 1), (5, 2), (5, 2)]
    assert journals(store)["document_change"][3:] == [(3, one), (3, two), (4, one), (5, one), (5, two)]
    assert store.run("SELECT DISTINCT parent_resource FROM forge_versions.reference") == store.run(
        "SELECT id FROM forge_versions.resource WHERE name = N'courses'"
    )


def test_a_chain_of_identities_follows_to_its_end(store: SqlServerStore) -> None:
    """Longer than triggers may be nested."""
    last = store.put("schools", {"n": 0})
    chain = [last]
    for n in range(1, 41):
        last = store.put("schools", {"n": n}, {"next": last}, ["next"])
        chain.append(last)
    before = store.newest()
    store.rename(chain[0], {"n": "changed"})
    assert store.newest() == before + 1
    assert [identity for _, identity in tokens(store, *chain)] == [before + 1] * 41
    found = store.identity(last)
    for n in range(40, 0, -1):
        assert found["n"] == n
        found = found["next"]
    assert found == {"n": "changed"}
    assert journals(store)["key_change"] == [(before + 1, document) for document in chain]


def test_names_of_references_are_no_paths(store: SqlServerStore) -> None:
    name = "a/b.c [0]"
    school = store.put("schools", {"id": 1})
    course = store.put("courses", {"code": "a"}, {name: school}, [name])
    store.rename(school, {"id": 2})
    assert store.identity(course) == {"code": "a", name: {"id": 2}}


def test_an_identity_contains_those_that_it_is_said_to(store: SqlServerStore) -> None:
    (school,) = insert(store, "schools", {"id": 1})
    without, other = insert(store, "courses", {"code": "a"}, {"code": "b", "school": {"id": 2}})
    for course in (without, other, school):
        with refused(store, 51002):
            refer(store, course, "school", school, in_identity=True)
    refer(store, without, "school", school)
    with refused(store, 51002):
        store.run("UPDATE forge_versions.reference SET in_identity = 1")


def test_a_ring_of_identities_is_noticed(store: SqlServerStore) -> None:
    """Made where the triggers do not look."""
    one = store.put("schools", {"id": 1})
    two = store.put("schools", {"id": 2}, {"next": one}, ["next"])
    store.run("DISABLE TRIGGER forge_versions.reference_written ON forge_versions.reference")
    refer(store, one, "next", two, in_identity=True)
    store.run("ENABLE TRIGGER forge_versions.reference_written ON forge_versions.reference")
    with refused(store, 51001):
        store.rename(one, {"id": 3})


def test_a_taken_identity_is_refused_wherever_it_comes_up(store: SqlServerStore) -> None:
    one, two = insert(store, "schools", {"id": 1}, {"id": 2})
    store.put("courses", {"code": "a"}, {"school": one}, ["school"])
    insert(store, "courses", {"code": "a", "school": {"id": 3}})
    insert(store, "plans", {"id": 1})
    with refused(store):
        insert(store, "plans", {"id": 2}, {"id": 1})
    with refused(store):
        store.rename(two, {"id": 1})
    with refused(store):
        store.rename(one, {"id": 3})


def test_deletions_leave_tombstones_for_all_and_for_each_who_had_access(store: SqlServerStore) -> None:
    (school,) = insert(store, "schools", {"id": 1})
    one, two = insert(store, "plans", {"id": 7}, {"id": 8})
    refer(store, one, "school", school)
    refer(store, one, "other", two)
    for subject in ("ada", "bob"):
        store.grant(one, subject)
    with refused(store):
        store.delete(school)
    before = store.newest()
    store.run(f"DELETE FROM forge_versions.document WHERE id IN ({one}, {two})")
    assert store.newest() == before + 1
    found = store.run("SELECT version, document, subject FROM forge_versions.deletion ORDER BY document, subject")
    assert found == [(before + 1, *rest) for rest in ((one, None), (one, "ada"), (one, "bob"), (two, None))]
    assert store.rows().edges == []
    assert store.rows().access == {}


def test_granting_twice_and_revoking_twice_say_it_once(store: SqlServerStore) -> None:
    (plan,) = insert(store, "plans", {"id": 7})
    for _ in range(2):
        store.grant(plan, "ada")
    assert store.rows().access == {("ada", plan): 2}
    for _ in range(2):
        store.revoke(plan, "ada")
    store.revoke(plan, "eve")
    assert store.newest() == 3
    assert store.run("SELECT version, document, subject FROM forge_versions.deletion") == [(3, plan, "ada")]


def test_a_document_stays_in_its_resource(store: SqlServerStore) -> None:
    """No journal would tell of it."""
    insert(store, "schools", {"id": 1})
    with refused(store, 51003):
        store.run("UPDATE forge_versions.document SET resource = resource + 1")


@pytest.mark.parametrize("text", ["[]", '[{"a":1}]', " \n[1]", "\t\r[{}]", "{", "3", "null", ""])
def test_what_is_no_object_is_refused(store: SqlServerStore, text: str) -> None:
    insert(store, "schools", {"id": 1})
    for column in ("body", "[identity]"):
        with refused(store):
            store.run(f"UPDATE forge_versions.document SET {column} = N'{text}'")
    store.run("UPDATE forge_versions.document SET body = N' \t\r\n{\"a\":[1]}'")


def test_a_strategy_stands_on_what_is_kept(store: SqlServerStore) -> None:
    """Nobody else says so, and nobody in a transaction, whose end would tell others too early or not at all."""
    for statement in (
        "UPDATE forge_versions.setting SET strategy = N'monotonic'",
        "EXEC forge_versions.use_strategy N'guess'",
        "EXEC forge_versions.use_strategy NULL",
        "EXEC forge_versions.use_strategy N'monotonic', 0",
    ):
        with refused(store):
            store.run(statement)
    for statement in ("EXEC forge_versions.use_strategy N'monotonic'", "EXEC forge_versions.retain 20000000"):
        with refused(store, 51004), store.transaction():
            store.run(statement)
    assert store.run("SELECT strategy, oldest, keeps_dependency FROM forge_versions.setting") == [("journal", 1, False)]


def test_one_session_at_a_time_changes_the_strategy(store: SqlServerStore) -> None:
    named = "@Resource = N'forge_versions.use_strategy', @LockOwner = N'Session'"
    with store.another() as other:
        assert isinstance(other, SqlServerStore)
        other.run(f"EXEC sp_getapplock @LockMode = N'Exclusive', {named}")
        with refused(store, 51006):
            store.use_strategy("monotonic", 1)
        other.run(f"EXEC sp_releaseapplock {named}")
        store.use_strategy("monotonic", 1)
        other.use_strategy("journal", 1)


def test_what_is_filled_is_no_change(store: SqlServerStore) -> None:
    """Also where an identity has not followed, and where references came without the triggers."""
    school = store.put("schools", {"id": 1})
    course = store.put("courses", {"code": "a"}, {"school": school}, ["school"])
    store.rename(course, {"code": "b"})
    store.run("DISABLE TRIGGER forge_versions.reference_written ON forge_versions.reference")
    store.run("UPDATE forge_versions.reference SET parent_resource = NULL")
    store.run("ENABLE TRIGGER forge_versions.reference_written ON forge_versions.reference")
    before = everything(store)
    for strategy in ("denormalized", "monotonic"):
        store.use_strategy(strategy, 1)
    assert everything(store) == before
    assert store.run("SELECT parent_resource FROM forge_versions.reference") == store.run(
        "SELECT id FROM forge_versions.resource WHERE name = N'courses'"
    )
    assert store.run("SELECT switches FROM forge_versions.setting") == [(2,)]


def test_who_writes_while_a_strategy_is_filled_keeps_it(store: SqlServerStore) -> None:
    """The fill waits for a document that somebody holds; meanwhile an identity changes that it has gone past."""
    one, two = insert(store, "schools", {"id": 1}, {"id": 2})
    past, held = insert(store, "courses", {"code": "a"}, {"code": "b"})
    refer(store, past, "school", one)
    refer(store, held, "school", two)
    store.rename(two, {"id": 22})
    with store.another() as holder, store.another() as filler, store.another() as writer:
        fill = Thread(target=filler.use_strategy, args=("monotonic", 1))
        write = Thread(target=writer.rename, args=(one, {"id": 11}))
        with holder.transaction():
            holder.change(held, {"a": 1})
            fill.start()
            deadline = time.monotonic() + 30
            while store.run("SELECT keeps_dependency FROM forge_versions.setting") != [(True,)]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            write.start()
            write.join(2)  # where it waits for what the fill has locked, it ends after it
        for thread in (fill, write):
            thread.join(30)
    newest = store.newest()
    assert store.strategy() == "monotonic"
    (found,) = store.pages("changes", "courses", (1, newest), 10, strategy="monotonic")
    assert found == within(derived(store.rows(), "courses"), (1, newest))


def test_what_goes_while_a_page_is_read_is_noticed(store: SqlServerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what was asked before the page and the page the journals are emptied, which nobody could tell from it."""
    insert(store, "schools", {"id": 1})
    store.next_stamp(25_000_000)
    insert(store, "schools", {"id": 2})
    newest, run = store.newest(), store.run

    def emptied(statement: str, given: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        if "TOP (@limit)" in statement:
            run("EXEC forge_versions.retain 20000000")
        return run(statement, given)

    monkeypatch.setattr(store, "run", emptied)
    with pytest.raises(WindowExpired):
        list(store.pages("changes", "schools", (1, newest), 10))


def bounds(store: SqlServerStore) -> list[int]:
    """Where the partitions of the journals begin, but for the first."""
    found = store.run(
        "SELECT CAST(v.value AS bigint) FROM sys.partition_range_values AS v"
        " JOIN sys.partition_functions AS f ON f.function_id = v.function_id"
        " WHERE f.name = N'forge_versions_by_version'"
    )
    return sorted(bound for (bound,) in found)


def test_journals_are_cut_ahead_and_emptied_behind(store: SqlServerStore) -> None:
    million = 1_000_000
    ids = []
    for version in (5, 15, 25):
        store.next_stamp(version * million)
        ids += insert(store, "schools", {"id": version})
    store.rename(ids[0], {"id": 6})
    store.delete(ids[2])
    last = 25 * million + 2
    store.run("EXEC forge_versions.extend")
    assert bounds(store) == [n * 10 * million for n in range(1, 6)]
    store.run("EXEC forge_versions.extend")
    store.run(f"EXEC forge_versions.retain {20 * million}")
    assert bounds(store) == [n * 10 * million for n in range(3, 6)]
    assert journals(store) == {
        "document_change": [(25 * million, ids[2]), (last - 1, ids[0])],
        "identity_change": [(25 * million, ids[2]), (last - 1, ids[0])],
        "key_change": [(last - 1, ids[0])],
        "deletion": [(last, ids[2])],
    }
    store.run("EXEC forge_versions.retain 1")
    assert store.run("SELECT oldest FROM forge_versions.setting") == [(20 * million,)]
    assert store.run("SELECT * FROM forge_versions.stamping") == []
    assert store.newest() == last


def test_journals_without_a_cut_are_cut_again(store: SqlServerStore) -> None:
    """What was kept was less than what was made ahead."""
    store.next_stamp(35_000_000)
    insert(store, "schools", {"id": 1})
    store.run("EXEC forge_versions.retain 35000000")
    assert bounds(store) == []
    store.run("EXEC forge_versions.extend")
    assert bounds(store) == [40_000_000, 50_000_000, 60_000_000]
    assert journals(store)["document_change"] == [(35_000_000, *store.rows().documents)]
