"""However much lies between two items, a statement looks at some candidates at the most, and nothing is lost."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from forge.postgres.connection import Connection
from forge.postgres.queries import queries
from forge.versions import reading
from forge.versions.nouns import Page, Resource
from forge.versions.page_statements import statement_of
from forge.versions.reading import changes, deletes, key_changes, pages, standing, stream
from tests.versions.world import STRATEGIES, World, derived, within

DOCUMENTS, CANDIDATES = 1_000, 100
BOUND = CANDIDATES * 5
"""Rows of one table that a statement may read: candidates, and the few that each refers to."""
OLD, BULK, LATE = 10, 20, 30
"""Stamps: of the first content, of what is looked at, and of the last."""


Query = Callable[..., Page[Any]]


class Read(NamedTuple):
    """What one statement read: rows of the table that it read most of."""

    rows: int
    table: str


class Reads(list[Read]):
    """What each statement of some pages read, prepared and planned as it is the sixth time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run = reading._planned
        monkeypatch.setattr(reading, "_planned", self._planned)

    def _planned(self, connection: Connection, statement: str, values: dict[str, Any]) -> Any:
        self.append(_read(_explained(connection, statement, values)))
        return self._run(connection, statement, values)


@pytest.fixture
def world(versions: Connection, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(reading, "CANDIDATES", CANDIDATES)
    monkeypatch.setattr(reading, "PATIENCE", 60)
    return World(versions)


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture(params=STRATEGIES)
def strategic(request: pytest.FixtureRequest, world: World) -> World:
    world.use(request.param)
    return world


def bulk(world: World, *, content: str = str(OLD), identity: str = str(OLD), by_access: bool = False) -> Resource:
    """Documents 1 to DOCUMENTS, each with the stamps that the expressions give for its number g, and their journals."""
    plans = world.resource("plans", by_access=by_access)
    number = standing(world.connection, plans).resource
    for statement in (
        "INSERT INTO forge_versions.document"
        " (id, resource, identity, body, content_hash, content_version, identity_version) OVERRIDING SYSTEM VALUE"
        f" SELECT g, {number}, jsonb_build_object('key', g), '{{}}', '', {content}, {identity}"
        f" FROM generate_series(1, {DOCUMENTS}) g",
        "INSERT INTO forge_versions.document_change (version, document, resource)"
        f" SELECT {OLD}, g, {number} FROM generate_series(1, {DOCUMENTS}) g"
        f" UNION SELECT {content}, g, {number} FROM generate_series(1, {DOCUMENTS}) g"
        f" UNION SELECT {identity}, g, {number} FROM generate_series(1, {DOCUMENTS}) g",
        "INSERT INTO forge_versions.identity_change (version, document)"
        f" SELECT {OLD}, g FROM generate_series(1, {DOCUMENTS}) g"
        f" UNION SELECT {identity}, g FROM generate_series(1, {DOCUMENTS}) g",
        f"SELECT setval('forge_versions.change_version', {LATE}),"
        f" setval(pg_get_serial_sequence('forge_versions.document', 'id'), {DOCUMENTS})",
        "VACUUM ANALYZE",
    ):
        world.connection.execute(statement.encode())
    return plans


def refer(world: World, child: str) -> None:
    """Let every document refer to another, whose number the expression gives."""
    for statement in (
        "INSERT INTO forge_versions.reference (parent, name, child, parent_resource)"
        f" SELECT g, 'to', {child}, d.resource FROM generate_series(1, {DOCUMENTS}) g"
        " JOIN forge_versions.document d ON d.id = g",
        "UPDATE forge_versions.document d SET max_dependency = c.identity_version FROM forge_versions.reference r"
        " JOIN forge_versions.document c ON c.id = r.child WHERE r.parent = d.id",
        "VACUUM ANALYZE",
    ):
        world.connection.execute(statement.encode())


def every(ask: Query, world: World, resource: Resource, first: int, last: int = LATE, **more: Any) -> list[Any]:
    """Version and document of all items of a window, page by page."""

    def page(after: str | None) -> Page[Any]:
        window = (first, last) if after is None else (None, None)
        return ask(world.connection, resource, *window, after=after, **more)

    return [(item.version, item.id) for found in pages(page) for item in found.items]


def test_a_listing_with_an_end_that_nearly_all_have_passed(strategic: World, reads: Reads) -> None:
    plans = bulk(strategic, content=f"CASE WHEN g > {DOCUMENTS - 3} THEN {OLD} ELSE {LATE} END")
    refer(strategic, str(DOCUMENTS))
    first = changes(strategic.connection, plans, None, LATE - 1, limit=2)
    assert [item.id for item in first.items] == [DOCUMENTS - 2, DOCUMENTS - 1]
    rest = changes(strategic.connection, plans, after=first.next)
    assert ([item.id for item in rest.items], rest.next) == ([DOCUMENTS], None)
    assert max(reads).rows <= BOUND, max(reads)


def test_who_changed_by_himself_is_not_asked_what_he_refers_to(strategic: World) -> None:
    plans = bulk(strategic, content=str(LATE))
    refer(strategic, str(DOCUMENTS))
    found = standing(strategic.connection, plans)
    values = {
        "strategy": found.strategy,
        "resource": found.resource,
        "after": 0,
        "max": LATE - 1,
        "limit": 10,
        "epoch": 0,
    }
    statement = statement_of(found.strategy, None, False)
    plan = _explained(strategic.connection, statement, {**values, "candidates": CANDIDATES, "bytes": reading.BYTES})
    read = {node.get("Relation Name") for node in _nodes(plan) if node["Actual Loops"]}
    assert "document" in read
    assert "reference" not in read


@pytest.mark.contract("V4")
@pytest.mark.every_version
def test_a_page_of_somebody_who_sees_little(strategic: World, reads: Reads) -> None:
    plans = bulk(strategic, content=f"{OLD} + g % 10", by_access=True)
    refer(strategic, "1 + g % 50")
    for document in (5, DOCUMENTS - 5, DOCUMENTS):
        strategic.connection.execute(
            "INSERT INTO forge_versions.access (subject, document, resource, version)"
            " SELECT 'ada', id, resource, 1 FROM forge_versions.document WHERE id = %s",
            (document,),
        )
    wanted = within(derived(strategic.connection, plans, "ada"), 1, LATE)
    assert len(wanted) == 3
    for limit in (2, 100):
        assert every(stream, strategic, plans, 1, limit=limit, subject="ada") == wanted
    assert max(reads).rows <= BOUND, max(reads)


def test_somebody_who_sees_much_of_other_resources(world: World, reads: Reads) -> None:
    bulk(world, by_access=True)
    few = world.resource("few", by_access=True)
    world.connection.execute(
        "INSERT INTO forge_versions.access (subject, document, resource, version)"
        " SELECT 'ada', id, resource, 1 FROM forge_versions.document"
    )
    world.grant(mine := world.put(few, "mine"), "ada")
    assert [item.id for item in changes(world.connection, few, subject="ada").items] == [mine]
    assert max(reads).rows <= BOUND, max(reads)


def test_keys_and_deletions_of_what_somebody_does_not_see(world: World, reads: Reads) -> None:
    plans = bulk(world, by_access=True)
    world.connection.execute(
        "INSERT INTO forge_versions.key_change (version, document, resource, old_identity, new_identity)"
        " SELECT %s, id, resource, '{}', identity FROM forge_versions.document",
        (BULK,),
    )
    world.connection.execute(
        "INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)"
        " SELECT %s, d.id, d.resource, d.identity, s FROM forge_versions.document d,"
        " (VALUES ('ada'), ('bob'), (NULL)) v (s)",
        (BULK,),
    )
    world.connection.execute(
        "INSERT INTO forge_versions.access (subject, document, resource, version)"
        " SELECT 'ada', id, resource, 25 FROM forge_versions.document WHERE id < %s",
        (DOCUMENTS,),
    )
    world.connection.execute("VACUUM ANALYZE")
    assert every(deletes, world, plans, OLD + 1, subject="ada") == [(BULK, DOCUMENTS)]
    assert every(key_changes, world, plans, OLD + 1, subject="ada") == []
    assert every(stream, world, plans, OLD + 1, subject="ada", limit=2000) == [
        (BULK, DOCUMENTS),
        *((BULK + 5, document) for document in range(1, DOCUMENTS)),
    ]
    assert max(reads).rows <= BOUND, max(reads)
    for subject in ("carla", None):
        reads.clear()
        page = deletes(world.connection, plans, OLD + 1, limit=10, subject=subject)
        assert len(page.items) == (10 if subject is None else 0)
        assert max(reads).rows < 20, max(reads)


@pytest.mark.contract("V4")
@pytest.mark.every_version
@pytest.mark.parametrize("few", [0, 16])
def test_one_stamp_that_very_many_have(
    strategic: World, reads: Reads, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk write of which all but a few has changed since; by itself, and by what it refers to."""
    monkeypatch.setattr(reading, "FEW", few)
    plans = bulk(
        strategic,
        content=f"CASE WHEN g % 400 = 0 THEN {BULK} WHEN g % 3 = 0 THEN {LATE} ELSE {OLD} END",
        identity=f"CASE WHEN g <= 4 THEN {BULK} ELSE {OLD} END",
    )
    strategic.connection.execute(
        "INSERT INTO forge_versions.document_change (version, document, resource)"
        f" SELECT {BULK}, id, resource FROM forge_versions.document ON CONFLICT DO NOTHING".encode()
    )
    refer(strategic, f"CASE WHEN g > {DOCUMENTS // 2} THEN 1 + g % 4 ELSE 5 END")
    wanted = within(derived(strategic.connection, plans), BULK, BULK)
    assert len(wanted) > DOCUMENTS // 4
    assert every(stream, strategic, plans, BULK, BULK, limit=400) == wanted
    assert every(changes, strategic, plans, BULK, limit=2000) == within(
        derived(strategic.connection, plans), BULK, LATE
    )
    assert max(reads).rows <= BOUND, max(reads)


@pytest.mark.parametrize("strategy", ["journal", "denormalized"])
def test_one_stamp_by_which_very_many_identities_changed(world: World, reads: Reads, strategy: str) -> None:
    world.use(strategy)
    plans = bulk(world, content=f"CASE WHEN g > {DOCUMENTS - 5} THEN {OLD} ELSE {LATE} END", identity=str(BULK))
    refer(world, f"1 + g % {DOCUMENTS}")
    wanted = within(derived(world.connection, plans), OLD, LATE - 1)
    assert wanted == [(BULK, DOCUMENTS - n) for n in (4, 3, 2, 1, 0)]
    assert every(changes, world, plans, OLD, LATE - 1, limit=2) == wanted
    assert max(reads).rows <= BOUND, max(reads)


def test_identities_that_changed_again_are_passed_over_in_steps(world: World, reads: Reads) -> None:
    plans = bulk(world, identity=str(LATE))
    other = world.resource("others")
    assert changes(world.connection, other, OLD, LATE - 1).items == []
    assert changes(world.connection, plans, OLD, LATE - 1).items == []
    assert max(reads).rows <= BOUND, max(reads)


def _explained(connection: Connection, statement: str, values: dict[str, Any]) -> dict[str, Any]:
    """How a statement runs, prepared, with the settings of a page."""
    kinds = {"strategy": "text", "subject": "text", "resource": "integer", "epoch": "integer"}
    used = [name for name in values if f"%({name})s" in statement]
    for place, name in enumerate(used, 1):
        statement = statement.replace(f"%({name})s", f"${place}")
    given = [
        "NULL" if (value := values[name]) is None else f"'{value}'" if isinstance(value, str) else str(int(value))
        for name in used
    ]
    types = ", ".join(kinds.get(name, "bigint") for name in used)
    with connection.transaction(force_rollback=True):
        connection.execute(queries("forge.versions", "queries.sql")["settings"])
        connection.execute(f"PREPARE page ({types}) AS {statement}".encode())
        row = connection.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE page ({', '.join(given)})".encode()
        ).fetchone()
        connection.execute("DEALLOCATE page")
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def _read(plan: dict[str, Any]) -> Read:
    """The rows that were read of each table, also those that a filter took away again; the most of them."""
    found: dict[str, float] = {"": 0}
    for node in _nodes(plan):
        if "Relation Name" in node:
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            name = node["Relation Name"]
            found[name] = found.get(name, 0) + rows * node["Actual Loops"]
    name = max(found, key=lambda each: found[each])
    return Read(round(found[name]), name)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)
