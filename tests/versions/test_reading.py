"""What is read of changes: each document once, at the version that is derived for it, in pages that lose nothing."""

import sys
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import psycopg
import pytest

from forge.errors import TokenInvalid, UnknownResource, VersionsMissing, WindowExpired, WindowInvalid
from forge.postgres.connection import Connection, connect
from forge.postgres.queries import queries
from forge.versions import reading
from forge.versions.available import Available, available
from forge.versions.nouns import Deletion, Event, KeyChange, Page, Resource, Upsert
from forge.versions.page_statements import statement_of
from forge.versions.reading import changes, deletes, key_changes, pages, representation, standing, stream
from forge.versions.resources import declare, resource_id
from forge.versions.retention import VersionPolicy, maintain
from forge.versions.stamps import newest
from tests.versions.world import STRATEGIES, World, derived, within


@pytest.fixture
def world(versions: Connection) -> World:
    return World(versions)


@pytest.fixture(params=STRATEGIES)
def strategic(request: pytest.FixtureRequest, world: World) -> World:
    """A world that is read by each strategy in turn."""
    world.use(request.param)
    return world


def told(page: Page[Any] | list[Any]) -> list[tuple[int, int]]:
    items: list[Event] = page if isinstance(page, list) else page.items
    return [(item.version, item.id) for item in items]


def every(world: World, resource: Resource, *window: int, limit: int = 2, **more: Any) -> list[Upsert]:
    """All items of a window, page by page."""
    ask = lambda after: changes(world.connection, resource, *window, after=after, limit=limit, **more)  # noqa: E731
    return [item for page in pages(ask) for item in page.items]


@pytest.mark.contract("V1")
@pytest.mark.contract("V4")
@pytest.mark.every_version
def test_the_worked_example(strategic: World) -> None:
    students, plans = strategic.resource("students"), strategic.resource("plans")
    student = strategic.put(students, "S")
    plan = strategic.put(plans, "G", {"student": student})
    while strategic.stamp() < 98:
        pass
    other = strategic.put(plans, "untouched")
    assert strategic.rekey({student: "S2"}) == 100
    found = changes(strategic.connection, plans, 99, 100).items
    assert told(found) == [(99, other), (100, plan)]
    assert representation(found[1].document)["references"] == {"student": {"key": "S2"}}
    assert told(changes(strategic.connection, plans, 100, 100)) == [(100, plan)]
    assert told(changes(strategic.connection, plans, 1, 98)) == []


def test_a_document_that_changed_often_is_told_once_at_its_last_version(strategic: World) -> None:
    plans = strategic.resource("plans")
    first, second = strategic.put(plans, 1), strategic.put(plans, 2)
    for _ in range(3):
        strategic.change(first)
    last = strategic.change(second)
    assert told(changes(strategic.connection, plans, 1)) == [(last - 1, first), (last, second)]
    assert told(changes(strategic.connection, plans, 1, last - 2)) == []


def test_what_one_stamp_changed_is_paged_by_document(strategic: World) -> None:
    students, plans = strategic.resource("students"), strategic.resource("plans")
    children = [strategic.put(students, key) for key in range(3)]
    parents = [strategic.put(plans, key, {"a": children[0], "b": children[key % 3]}) for key in range(9)]
    stamp = strategic.rekey({child: f"new {child}" for child in children})
    before = strategic.put(plans, "after")
    for limit in (1, 2, 4, 9, 100):
        assert told(every(strategic, plans, 1, limit=limit)) == [*((stamp, p) for p in parents), (stamp + 1, before)]
    assert told(every(strategic, students, 1, limit=1)) == [(stamp, child) for child in children]


@pytest.mark.contract("V4")
def test_paging_while_others_write_tells_what_stays_in_the_window_once(strategic: World) -> None:
    students, plans = strategic.resource("students"), strategic.resource("plans")
    children = [strategic.put(students, key) for key in range(3)]
    documents = [strategic.put(plans, key, {"s": children[key % 3]}) for key in range(30)]
    last = newest(strategic.connection)
    page = changes(strategic.connection, plans, 1, last, limit=5)
    seen = told(page)
    moved = {documents[0], documents[10], documents[20]}
    while page.next is not None:
        if len(seen) == 5:
            strategic.change(documents[0])
            strategic.refer(documents[10], {})
            strategic.delete(documents[20])
            strategic.put(plans, "new", {"s": children[0]})
        if len(seen) == 10:
            strategic.rekey({children[1]: "moves ten"})
        page = changes(strategic.connection, plans, after=page.next, limit=5)
        seen += told(page)
    moved |= {document for place, document in enumerate(documents) if place % 3 == 1}
    assert len(seen) == len(set(seen))
    assert [item for item in seen if item[1] not in moved] == [
        (document - documents[0] + 4, document) for document in documents if document not in moved
    ]
    following = told(every(strategic, plans, last + 1))
    assert {document for _, document in following} == (moved - {documents[20]}) | {documents[-1] + 1}


def test_a_whole_resource_is_read_by_document_up_to_an_end(strategic: World) -> None:
    students, plans = strategic.resource("students"), strategic.resource("plans")
    child = strategic.put(students, 0)
    documents = [strategic.put(plans, key, {"s": child} if key == 2 else {}) for key in range(5)]
    stamp = strategic.rekey({child: 1})
    strategic.connection.execute("UPDATE forge_versions.setting SET oldest = 5")
    found = every(strategic, plans)
    assert [item.id for item in found] == documents
    assert {item.id: item.version for item in found} == derived(strategic.connection, plans)
    ends = pages(lambda after: stream(strategic.connection, plans, after=after, max=stamp - 1, limit=1))
    assert [item.id for page in ends for item in page.items] == [d for d in documents if d != documents[2]]


@pytest.mark.contract("V6")
def test_deletes_and_key_changes_are_asked_for_by_themselves(world: World) -> None:
    plans, others = world.resource("plans"), world.resource("others")
    first, second, third = (world.put(plans, key) for key in "abc")
    world.rekey({world.put(others, "x"): "y"})
    renamed = world.rekey({first: "A"})
    again = world.rekey({first: "AA"})
    gone = world.delete(second)
    assert key_changes(world.connection, plans, 1).items == [
        KeyChange(renamed, first, plans, {"key": "a"}, {"key": "A"}),
        KeyChange(again, first, plans, {"key": "A"}, {"key": "AA"}),
    ]
    assert deletes(world.connection, plans).items == [Deletion(gone, second, plans, {"key": "b"})]
    assert deletes(world.connection, plans, 1, gone - 1).items == []
    assert told(changes(world.connection, plans, 1)) == [(3, third), (again, first)]


@pytest.mark.contract("V6")
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_the_stream_tells_all_in_the_order_of_versions(world: World, limit: int) -> None:
    plans = world.resource("plans")
    first, second, third = (world.put(plans, key) for key in "abc")
    renamed = world.rekey({first: "A", third: "C"})
    gone = world.delete(second)
    fourth = world.put(plans, "b")
    found = [
        item
        for page in pages(lambda after: stream(world.connection, plans, None if after else 1, after=after, limit=limit))
        for item in page.items
    ]
    assert [(type(item).__name__, item.version, item.id) for item in found] == [
        ("KeyChange", renamed, first),
        ("Upsert", renamed, first),
        ("KeyChange", renamed, third),
        ("Upsert", renamed, third),
        ("Deletion", gone, second),
        ("Upsert", gone + 1, fourth),
    ]


class TestAccess:
    """A resource that is by access is for each subject what that one may see."""

    def test_a_grant_shows_an_old_document_as_changed_then(self, strategic: World) -> None:
        plans = strategic.resource("plans", by_access=True)
        old, other, third = (strategic.put(plans, key) for key in "abc")
        strategic.grant(other, "bob")
        granted = strategic.grant(old, "ada")
        assert told(every(strategic, plans, 1, subject="ada")) == [(granted, old)]
        assert told(every(strategic, plans, granted + 1, subject="ada")) == []
        changed = strategic.change(old)
        strategic.change(other)
        assert told(every(strategic, plans, 1, subject="ada")) == [(changed, old)]
        assert told(every(strategic, plans, subject="ada")) == [(changed, old)]
        assert told(every(strategic, plans, 1, subject="nobody")) == []
        assert [item.id for item in every(strategic, plans, 1)] == [third, old, other]

    def test_what_it_refers_to_changes_it_too(self, strategic: World) -> None:
        students, plans = strategic.resource("students"), strategic.resource("plans", by_access=True)
        child = strategic.put(students, "s")
        plan, hidden = strategic.put(plans, "a", {"s": child}), strategic.put(plans, "b", {"s": child})
        strategic.grant(plan, "ada")
        strategic.grant(hidden, "bob")
        stamp = strategic.rekey({child: "t"})
        assert told(every(strategic, plans, stamp, stamp, subject="ada")) == [(stamp, plan)]

    def test_a_lost_access_is_a_deletion_until_it_is_given_again(self, world: World) -> None:
        plans = world.resource("plans", by_access=True)
        plan, never = world.put(plans, "a"), world.put(plans, "b")
        world.grant(plan, "ada")
        lost = world.revoke(plan, "ada")
        assert deletes(world.connection, plans, 1, subject="ada").items == [
            Deletion(lost, plan, plans, {"key": "a"}, "ada")
        ]
        assert deletes(world.connection, plans, 1, subject="bob").items == []
        assert deletes(world.connection, plans, 1).items == []
        again = world.grant(plan, "ada")
        assert told(stream(world.connection, plans, 1, subject="ada")) == [(again, plan)]
        gone = world.delete(plan)
        world.delete(never)
        assert told(stream(world.connection, plans, 1, subject="ada")) == [(lost, plan), (gone, plan)]
        assert told(deletes(world.connection, plans, 1)) == [(gone, plan), (gone + 1, never)]

    def test_a_key_is_told_only_to_those_who_knew_the_old_one(self, world: World) -> None:
        plans = world.resource("plans", by_access=True)
        plan = world.put(plans, "secret")
        world.rekey({plan: "b"})
        world.grant(plan, "ada")
        known = world.rekey({plan: "c"})
        assert told(key_changes(world.connection, plans, 1, subject="ada")) == [(known, plan)]
        assert told(key_changes(world.connection, plans, 1, subject="bob")) == []
        assert len(key_changes(world.connection, plans, 1).items) == 2

    def test_an_open_resource_is_the_same_for_all(self, world: World) -> None:
        plans = world.resource("plans")
        plan = world.put(plans, "a")
        assert told(changes(world.connection, plans, 1, subject="ada")) == [(1, plan)]

    def test_a_token_is_for_its_subject_alone(self, world: World) -> None:
        plans = world.resource("plans", by_access=True)
        for key in "abc":
            world.grant(world.put(plans, key), "ada")
        token = changes(world.connection, plans, 1, limit=1, subject="ada").next
        for subject in ("bob", None):
            with pytest.raises(TokenInvalid):
                changes(world.connection, plans, after=token, subject=subject)


@pytest.mark.parametrize("listed", [True, False])
def test_a_resource_that_is_closed_while_it_is_read_shows_nothing_more(
    world: World, versions_url: str, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    plans = world.resource("plans")
    mine, secret = world.put(plans, "mine"), world.put(plans, "secret")
    world.grant(mine, "ada")
    read = reading.standing

    def switched(connection: Connection, resource: Resource) -> Any:
        found = read(connection, resource)
        if not found.by_access:
            with connect(versions_url) as other:
                declare(other, plans, by_access=True)
        return found

    monkeypatch.setattr(reading, "standing", switched)
    asked: list[bool] = []

    def who(by_access: bool) -> str:
        asked.append(by_access)
        return "ada"

    page = changes(world.connection, plans, None if listed else 1, subject=who)
    assert [item.id for item in page.items] == [mine] != [mine, secret]
    assert (asked, page.epoch) == ([False, True], 1)


class TestWindows:
    """What cannot be asked is refused by name."""

    @pytest.mark.parametrize("ask", [changes, deletes, key_changes, stream])
    def test_what_is_no_version_no_size_and_no_token(self, world: World, ask: Any) -> None:
        plans = world.resource("plans", by_access=True)
        world.put(plans, "a")
        wrong: Any
        for wrong in (True, False, 1.0, 0.5, float("nan"), float("inf"), "1", b"1", Decimal(1), [], 2**70, -(2**70)):
            sizes = ({"limit": wrong}, {"max_bytes": wrong}, {"max_bytes": -1}, {"max_bytes": 0})
            for given in ({"min": wrong}, {"max": wrong}, {"min": 1, "max": wrong}, *sizes):
                with pytest.raises(WindowInvalid) as raised:
                    ask(world.connection, plans, **given)
                assert raised.value.fix
        for wrong in ("\0", "a\0b", "\ud800", "é", "", b"abc", 1, True, 1.5, ["a"]):
            with pytest.raises(TokenInvalid):
                ask(world.connection, plans, after=wrong)
        for wrong in ("a\0b", "\ud800", b"ada", 1, True):
            with pytest.raises(WindowInvalid, match="nobody can be named"):
                ask(world.connection, plans, 1, subject=wrong)
        for name in ("a\0b", "\ud800"):
            for resource in (Resource(name, "a"), Resource("a", name), Resource("a", "b", name)):
                with pytest.raises(UnknownResource):
                    ask(world.connection, resource)
                with pytest.raises(UnknownResource):
                    declare(world.connection, resource)
                with pytest.raises(UnknownResource):
                    resource_id(world.connection, resource)
        assert told(ask(world.connection, plans, 1)) == ([(1, 1)] if ask in (changes, stream) else [])

    @pytest.mark.parametrize("ask", [changes, deletes, key_changes, stream])
    def test_nonsense(self, world: World, ask: Any) -> None:
        plans = world.resource("plans")
        for key in range(4):
            world.put(plans, key)
        for window in ((3, 2), (-1, 2), (0, -1), (1, 99), (99, None), (99, 100), (6, None), (2**70, None)):
            with pytest.raises(WindowInvalid) as raised:
                ask(world.connection, plans, *window)
            assert raised.value.fix
        for limit in (0, -1, 10_001):
            with pytest.raises(WindowInvalid):
                ask(world.connection, plans, 1, limit=limit)

    def test_nothing_new_is_an_empty_page(self, world: World) -> None:
        plans = world.resource("plans")
        assert stream(world.connection, plans, 0) == Page([])
        world.put(plans, 1)
        assert stream(world.connection, plans, 2) == Page([])
        assert told(stream(world.connection, plans, 0)) == [(1, 1)]

    def test_a_resource_that_is_not_there(self, world: World) -> None:
        with pytest.raises(UnknownResource):
            changes(world.connection, Resource("test", "none"))

    def test_a_database_without_change_versions(self, empty_database: str) -> None:
        with connect(empty_database) as connection:
            for ask in (lambda: changes(connection, Resource("a", "b")), lambda: available(connection)):
                with pytest.raises(VersionsMissing):
                    ask()

    @pytest.mark.contract("V7")
    def test_below_the_oldest_is_expired_also_in_the_middle(self, world: World) -> None:
        plans = world.resource("plans")
        for key in range(5):
            world.put(plans, key)
        page = changes(world.connection, plans, 2, limit=2)
        world.connection.execute("UPDATE forge_versions.setting SET oldest = 2")
        page = changes(world.connection, plans, after=page.next, limit=1)
        assert told(page) == [(4, 4)]
        world.connection.execute("UPDATE forge_versions.setting SET oldest = 3")
        for ask in (
            lambda: changes(world.connection, plans, after=page.next),
            lambda: stream(world.connection, plans, 0),
        ):
            with pytest.raises(WindowExpired) as raised:
                ask()
            assert raised.value.oldest == 3
        assert told(changes(world.connection, plans, 3, limit=1)) == [(3, 3)]

    def test_a_token_with_another_window_is_refused(self, world: World) -> None:
        plans = world.resource("plans")
        for key in range(5):
            world.put(plans, key)
        token = changes(world.connection, plans, 2, 5, limit=1).next
        assert told(changes(world.connection, plans, 2, 5, after=token, limit=1)) == [(3, 3)]
        with pytest.raises(WindowInvalid):
            changes(world.connection, plans, 1, 5, after=token)
        with pytest.raises(TokenInvalid):
            deletes(world.connection, plans, after=token)


def test_nothing_uncommitted_is_passed_over(world: World, versions_url: str) -> None:
    """What is stamped and not committed holds the newest back, so a window never gains anything later."""
    plans = world.resource("plans")
    world.put(plans, "a")
    assert available(world.connection).newest == 1
    with connect(versions_url) as other:
        slow = World(other)
        with other.transaction():
            slow.put(plans, "slow")
            quick = world.put(plans, "quick")
            assert told(changes(world.connection, plans, 1)) == [(1, 1)]
            assert available(world.connection).newest == 1
    assert told(changes(world.connection, plans, 2)) == [(2, quick - 1), (3, quick)]


def test_the_oldest_is_never_beyond_what_follows_the_newest(
    world: World, versions_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others write and trim between the two that are told: what is told can be asked for."""
    plans = world.resource("plans")
    world.put(plans, 0)
    found = newest
    turns = iter(range(1, 10))

    def overtaken(connection: Connection) -> int:
        last = found(connection)
        if next(turns) == 1:
            with connect(versions_url) as other:
                for key in range(1, 6):
                    World(other).put(plans, key)
                assert maintain(other, VersionPolicy(versions=1)).oldest == 6
        return last

    monkeypatch.setattr(sys.modules[available.__module__], "newest", overtaken)
    told = available(world.connection)
    assert told == Available(6, 6)
    assert len(changes(world.connection, plans, told.oldest, told.newest).items) == 1


def test_numbers_and_texts_come_as_they_were_written(world: World) -> None:
    plans = world.resource("plans")
    body = {"sum": Decimal("12345678901234567890.1230"), "big": 2**70, "text": "ä'\\{}%", "none": None, "list": [1, {}]}
    child = world.put(plans, Decimal("1.50"))
    world.put(plans, "k", {"{}%s": child}, body)
    document = changes(world.connection, plans, 2).items[0].document
    assert document.body == body
    assert str(document.body["sum"]) == "12345678901234567890.1230"
    assert document.references["{}%s"].identity == {"key": Decimal("1.50")}
    assert (document.references["{}%s"].document, document.references["{}%s"].resource) == (child, plans)
    assert (document.content_version, document.identity_version) == (2, 2)


def test_a_callers_transaction_stays_as_it_was(world: World) -> None:
    plans = world.resource("plans")
    world.put(plans, "a")
    available(world.connection)
    with world.connection.transaction():
        assert told(changes(world.connection, plans, 1, 1)) == [(1, 1)]
        with pytest.raises(UnknownResource):
            changes(world.connection, Resource("no", "such"))
        assert told(stream(world.connection, plans, 1, 1)) == [(1, 1)]
        settings = world.connection.execute("SELECT current_setting('enable_sort'), current_setting('plan_cache_mode')")
        assert settings.fetchone() == ("on", "auto")
        world.put(plans, "b")
    assert told(changes(world.connection, plans, 2)) == [(2, 2)]


def test_pages_of_one_connection_are_planned_once(world: World) -> None:
    plans = world.resource("plans")
    world.put(plans, "a")
    for _ in range(12):
        assert told(changes(world.connection, plans, 1)) == [(1, 1)]
    row = world.connection.execute(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%document_change%'"
    ).fetchone()
    assert row is not None
    assert row[0] >= 6
    assert row[1] == 0


def test_a_page_that_the_server_cancels_leaves_the_connection_as_it_was(world: World, versions_url: str) -> None:
    plans = world.resource("plans")
    world.put(plans, "a")
    available(world.connection)
    with connect(versions_url) as other, other.transaction():
        other.execute("LOCK TABLE forge_versions.document_change IN ACCESS EXCLUSIVE MODE")
        world.connection.execute("SET statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            changes(world.connection, plans, 1, 1)
        with world.connection.transaction():
            with pytest.raises(psycopg.errors.QueryCanceled):
                changes(world.connection, plans, 1, 1)
            world.connection.execute("SET LOCAL statement_timeout = 0")
            assert world.connection.execute("SHOW enable_sort").fetchone() == ("on",)
    world.connection.execute("RESET statement_timeout")
    assert told(changes(world.connection, plans, 1)) == [(1, 1)]


@pytest.mark.contract("V8")
def test_another_strategy_between_two_pages_changes_nothing(world: World) -> None:
    students, plans = world.resource("students"), world.resource("plans")
    child = world.put(students, 0)
    for key in range(9):
        world.put(plans, key, {"s": child} if key % 2 else {})
    world.rekey({child: 1})
    found, token = [], None
    for strategy in (*STRATEGIES, *STRATEGIES, *STRATEGIES):
        world.use(strategy)
        page = changes(world.connection, plans, None if token else 1, after=token, limit=1)
        found += told(page)
        token = page.next
    assert token is None
    assert found == within(derived(world.connection, plans), 1, 99)


@pytest.mark.parametrize("patience", [0, 60])
def test_a_window_in_which_nearly_all_has_changed_since_is_told_in_spans(
    world: World, monkeypatch: pytest.MonkeyPatch, patience: int
) -> None:
    """Nobody waits for the next item however far it is: a page may be short, or empty, and says where to go on."""
    monkeypatch.setattr(reading, "CANDIDATES", 10)
    monkeypatch.setattr(reading, "PATIENCE", patience)
    plans = world.resource("plans")
    first, often = world.put(plans, "first"), world.put(plans, "often")
    for _ in range(50):
        world.change(often)
    found = list(pages(lambda after: stream(world.connection, plans, None if after else 1, after=after)))
    assert [len(page.items) for page in found] == ([1, 0, 0, 0, 0, 1] if patience == 0 else [2])
    assert told([item for page in found for item in page.items]) == [(1, first), (52, often)]


DOCUMENTS, CHANGED = 20_000, 100_000


@pytest.mark.contract("V4")
@pytest.mark.every_version
def test_a_page_reads_no_more_of_the_journals_than_it_shows(world: World) -> None:
    """Whatever the planner knows of the tables: they are merged, and read until the page is full."""
    plans = _large(world)
    for known in (False, True):
        if known:
            world.connection.execute("VACUUM ANALYZE")
        for strategy, kinds, by_access in product(STRATEGIES, (None, (2,), (0, 1, 2)), (False, True)):
            world.use(strategy)
            plan = _plan(world.connection, statement_of(strategy, kinds, by_access), strategy, plans)
            scans = [node for node in _nodes(plan) if "Relation Name" in node]
            read = [(node["Actual Rows"] * node["Actual Loops"], node["Relation Name"]) for node in scans]
            assert max(read)[0] < 2_000, (known, strategy, kinds, by_access, read)
            used = {node["Node Type"] for node in _nodes(plan)}
            assert used.isdisjoint({"Hash Join", "Hash", "Bitmap Heap Scan"})
            if kinds is not None and (strategy != "monotonic" or by_access):
                assert "Merge Append" in used
    assert len(changes(world.connection, plans, CHANGED - DOCUMENTS, limit=100).items) == 100


def _large(world: World) -> Resource:
    """Every document changes, the later the higher; every tenth has its identity changed; all refer to two others."""
    plans = world.resource("plans")
    number = standing(world.connection, plans).resource
    identity = f"CASE WHEN g % 10 = 0 THEN {CHANGED - DOCUMENTS} + g ELSE g END"
    for statement in (
        "INSERT INTO forge_versions.document"
        " (resource, identity, body, content_hash, content_version, identity_version, max_dependency)"
        f" SELECT {number}, jsonb_build_object('key', g), '{{}}', '', {CHANGED - DOCUMENTS} + g, {identity}, {identity}"
        f" FROM generate_series(1, {DOCUMENTS}) g",
        "INSERT INTO forge_versions.reference (parent, name, child, parent_resource)"
        f" SELECT g, n::text, greatest(1, g - n * 7), {number}"
        f" FROM generate_series(1, {DOCUMENTS}) g, generate_series(1, 2) n",
        "INSERT INTO forge_versions.document_change (version, document, resource)"
        f" SELECT g, 1 + (g - 1) % {DOCUMENTS}, {number} FROM generate_series(1, {CHANGED}) g",
        "INSERT INTO forge_versions.identity_change (version, document)"
        f" SELECT g, 1 + (g - 1) % {DOCUMENTS} FROM generate_series(1, {CHANGED}) g"
        f" WHERE g <= {DOCUMENTS} OR g % 10 = 0",
        "INSERT INTO forge_versions.access (subject, document, resource, version)"
        " SELECT 'ada', id, resource, 1 FROM forge_versions.document",
        f"SELECT setval('forge_versions.change_version', {CHANGED})",
    ):
        world.connection.execute(statement.encode())
    return plans


def _plan(connection: Connection, statement: str, strategy: str, resource: Resource) -> dict[str, Any]:
    """How the statement of a page ran, prepared and with the settings of a page, as it is the sixth time."""
    begin = CHANGED - DOCUMENTS + 1_000
    values: dict[str, tuple[str, str]] = {
        "strategy": ("text", f"'{strategy}'"),
        "resource": ("integer", str(standing(connection, resource).resource)),
        "epoch": ("integer", "0"),
        "subject": ("text", "'ada'"),
        **dict.fromkeys(("first", "from"), ("bigint", str(begin))),
        **dict.fromkeys(("after", "after_key", "after_deletion", "after_upsert"), ("bigint", "0")),
        "max": ("bigint", str(CHANGED)),
        "limit": ("bigint", "101"),
        "candidates": ("bigint", "10000"),
        "bytes": ("bigint", str(reading.BYTES)),
    }
    for place, name in enumerate(values, 1):
        statement = statement.replace(f"%({name})s", f"${place}")
    with connection.transaction(force_rollback=True):
        connection.execute(queries("forge.versions", "queries.sql")["settings"])
        connection.execute(f"PREPARE page ({', '.join(kind for kind, _ in values.values())}) AS {statement}".encode())
        row = connection.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE page ({', '.join(value for _, value in values.values())})".encode()
        ).fetchone()
        connection.execute("DEALLOCATE page")
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)
