"""Strategies give the same answers, whatever was written before, between and after, and whoever reads meanwhile."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from forge.errors import StrategyBusy, VersionsError
from forge.postgres import leases
from forge.postgres.connection import Connection, connect
from forge.versions import strategies
from forge.versions.documents import delete, put, set_references
from forge.versions.identity import change_identity
from forge.versions.nouns import Document, Resource
from forge.versions.reading import changes
from forge.versions.stamps import newest, settled
from forge.versions.strategies import STRATEGIES, Strategy, strategy, use_strategy
from forge.versions.triggers import write_by
from tests.versions.aside import SOON, Aside, behind
from tests.versions.journals import COURSES, PLANS, SCHOOLS, STUDENTS

pytestmark = pytest.mark.contract("V8")
RESOURCES = (SCHOOLS, COURSES, PLANS, STUDENTS)


def derived(connection: Connection) -> dict[Resource, list[tuple[int, int]]]:
    """Every version by its definition."""
    rows = connection.execute(
        "SELECT r.project, r.name, r.version, d.id, greatest(d.content_version, d.identity_version,"
        " (SELECT max(c.identity_version) FROM forge_versions.reference e"
        "  JOIN forge_versions.document c ON c.id = e.child WHERE e.parent = d.id))"
        " FROM forge_versions.document d JOIN forge_versions.resource r ON r.id = d.resource"
    ).fetchall()
    found: dict[Resource, list[tuple[int, int]]] = {resource: [] for resource in RESOURCES}
    for project, name, version, document, stamp in rows:
        found[Resource(project, name, version)].append((stamp, document))
    return {resource: sorted(versions) for resource, versions in found.items()}


def told(connection: Connection) -> dict[Resource, list[tuple[int, int]]]:
    """Every version as a reader is told it."""
    pages = {resource: changes(connection, resource, 1, limit=10_000) for resource in RESOURCES}
    return {resource: [(item.version, item.id) for item in page.items] for resource, page in pages.items()}


def write(connection: Connection, chance: random.Random, times: int) -> None:
    """Random changes; those that are refused change nothing."""
    for _ in range(times):
        known = [id for (id,) in connection.execute("SELECT id FROM forge_versions.document ORDER BY id").fetchall()]
        picked = chance.sample(known, min(len(known), chance.randrange(4)))
        references = {f"r{n}": id for n, id in enumerate(picked)}
        inside = {name for name in references if chance.random() < 0.3}
        try:
            match chance.randrange(6):
                case 0 if known:
                    change_identity(connection, chance.choice(known), {"id": chance.randrange(1000)})
                case 1 if known:
                    set_references(connection, chance.choice(known), references, inside)
                case 2 if known:
                    delete(connection, chance.choice(known))
                case _:
                    body = {"a": chance.randrange(3)}
                    put(connection, chance.choice(RESOURCES), {"id": chance.randrange(40)}, body, references, inside)
        except VersionsError:
            continue


def deadlocks(*sessions: Connection) -> int:
    """How many deadlocks the database of these sessions, which are all that took part, has had."""
    for session in sessions:
        session.execute("SELECT pg_stat_force_next_flush()")
    row = (
        sessions[0]
        .execute("SELECT pg_stat_clear_snapshot(), deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .fetchone()
    )
    assert row is not None
    return int(row[1])


@pytest.mark.parametrize("mode", ["application", "trigger"])
def test_every_way_from_one_to_another_gives_the_same_answers(versions: Connection, mode: str) -> None:
    chance = random.Random(7)
    write(versions, chance, 40)
    if mode == "trigger":
        write_by(versions, "trigger")
    way: list[Strategy] = ["monotonic", "denormalized", "monotonic", "journal", "denormalized", "journal", "journal"]
    for name in way:
        use_strategy(versions, name, batch=7)
        assert strategy(versions) == name
        assert told(versions) == derived(versions)
        write(versions, chance, 15)
        assert told(versions) == derived(versions)


def test_what_no_strategy_keeps_is_not_there(versions: Connection) -> None:
    triggers = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
    before = versions.execute(triggers).fetchall()
    use_strategy(versions, "monotonic")
    use_strategy(versions, "denormalized")
    use_strategy(versions, "journal")
    assert versions.execute(triggers).fetchall() == before
    assert versions.execute("SELECT to_regclass('forge_versions.document_kept')").fetchone() == (None,)


def test_readers_and_writers_are_right_while_strategies_change(versions: Connection, versions_url: str) -> None:
    """One writes all the time, one goes through the strategies; every answer is right in the snapshot it is read in."""
    write(versions, random.Random(1), 40)
    stop = threading.Event()
    failed: list[BaseException] = []
    seen: set[str] = set()

    def writing() -> None:
        try:
            with connect(versions_url) as connection:
                chance = random.Random(2)
                while not stop.is_set():
                    write(connection, chance, 1)
        except BaseException as error:
            failed.append(error)

    def switching() -> None:
        try:
            with connect(versions_url) as connection:
                deadline = time.monotonic() + 60
                while seen != set(STRATEGIES) and time.monotonic() < deadline:
                    for name in (*STRATEGIES, *reversed(STRATEGIES)):
                        use_strategy(connection, name, batch=5)
        except BaseException as error:
            failed.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=act) for act in (writing, switching)]
    for thread in threads:
        thread.start()
    while not stop.is_set():
        newest(versions)
        with versions.transaction():
            versions.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            last = settled(versions)
            page = changes(versions, SCHOOLS, 1, last, limit=10_000)
            expected = [pair for pair in derived(versions)[SCHOOLS] if pair[0] <= last]
            assert [(item.version, item.id) for item in page.items] == expected != []
            seen.add(strategy(versions))
    for thread in threads:
        thread.join()
    assert failed == []
    assert seen == set(STRATEGIES)
    assert told(versions) == derived(versions)


def test_who_drops_his_reference_while_an_identity_changes_has_the_version_of_that(
    versions: Connection, versions_url: str
) -> None:
    """A document's own change is committed while the change of the identity waits to tell it."""
    school = put(versions, SCHOOLS, {"id": 1}, {}).document
    course = put(versions, COURSES, {"code": "a"}, {}, {"school": school}).document
    use_strategy(versions, "monotonic")
    behind(
        versions,
        versions_url,
        lambda connection: set_references(connection, course, {}),
        lambda connection: change_identity(connection, school, {"id": 2}),
    )
    assert told(versions)[COURSES] == derived(versions)[COURSES] == [(3, course.id)]


def three_schools_and_six_courses(connection: Connection) -> tuple[Document, list[Document]]:
    """The courses refer to the first school; of ten documents, batches of four end with the first course."""
    school, *_ = [put(connection, SCHOOLS, {"id": n}, {}).document for n in range(3)]
    return school, [put(connection, COURSES, {"code": n}, {}, {"school": school}).document for n in range(6)]


def held(connection: Connection, document: Document) -> None:
    connection.execute("SELECT FROM forge_versions.document WHERE id = %s FOR UPDATE", (document.id,))
    connection.execute("SELECT FROM forge_versions.reference WHERE parent = %s FOR UPDATE", (document.id,))


@pytest.mark.parametrize(("has", "wants"), [(1, 4), (4, 1)], ids=["the first", "the last"])
@pytest.mark.parametrize("name", ["monotonic", "denormalized"])
def test_it_holds_nothing_while_it_waits_for_a_writer(
    versions: Connection, versions_url: str, name: Strategy, has: int, wants: int
) -> None:
    """A writer has one document of a batch, and then another: neither waits for the other in a circle."""
    school, courses = three_schools_and_six_courses(versions)
    with connect(versions_url) as writer, ThreadPoolExecutor(1) as thread, ExitStack() as writing:

        def begin(after: int) -> None:
            if after == courses[0].id:
                writing.enter_context(writer.transaction())
                held(writer, courses[has])

        changing = thread.submit(use_strategy, versions, name, batch=4, progress=begin)
        with connect(versions_url) as watcher:
            Aside(versions.info.backend_pid, changing).waits(watcher, on=writer)
        writer.execute("SET LOCAL deadlock_timeout = '10ms'")
        held(writer, courses[wants])
        writing.close()
        changing.result(SOON)
    assert told(versions) == derived(versions)
    change_identity(versions, school, {"id": 9})
    assert told(versions) == derived(versions)


def test_it_goes_on_where_it_is_told_of_a_deadlock_of_writers(versions: Connection, versions_url: str) -> None:
    """It waits for one writer, another waits behind it, and the first for that one: the server may end any of them."""
    school, courses = three_schools_and_six_courses(versions)
    with ExitStack() as stack:
        first, second, watcher = (stack.enter_context(connect(versions_url)) for _ in range(3))
        thread = stack.enter_context(ThreadPoolExecutor(3))
        versions.execute("SET deadlock_timeout = '500ms'; SET statement_timeout = '20s'")

        def begin(after: int) -> None:
            if after == courses[0].id:
                for writer, document in ((first, courses[1]), (second, school)):
                    writer.execute("SET deadlock_timeout = '2s'; SET statement_timeout = '20s'; BEGIN")
                    held(writer, document)

        changing = thread.submit(use_strategy, versions, "monotonic", batch=4, progress=begin)
        Aside(versions.info.backend_pid, changing).waits(watcher, on=first)
        behind_it = thread.submit(held, second, courses[1])
        Aside(second.info.backend_pid, behind_it).waits(watcher, on=versions)
        circle = thread.submit(held, first, school)
        for writer, done in ((first, circle), (second, behind_it)):
            ended = done.exception(SOON)
            assert ended is None or isinstance(ended, psycopg.errors.DeadlockDetected)
            writer.execute("ROLLBACK")
        changing.result(SOON)
        assert deadlocks(versions, first, second) >= 1
    assert told(versions) == derived(versions)


@pytest.mark.parametrize(("former", "name"), [("journal", "monotonic"), ("monotonic", "journal")])
def test_its_index_is_made_and_dropped_though_it_ends_a_deadlock(
    versions: Connection, versions_url: str, former: Strategy, name: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a writer who then wants the table for himself, and is the first to ask whether that is a circle."""
    school, _ = three_schools_and_six_courses(versions)
    use_strategy(versions, former)
    with connect(versions_url) as writer, connect(versions_url) as watcher, ThreadPoolExecutor(2) as thread:
        writer.execute("SET deadlock_timeout = '20s'; SET statement_timeout = '40s'")
        versions.execute("SET deadlock_timeout = '2s'")
        act = strategies._again

        def begun(given: Callable[[], object]) -> None:
            writer.execute("BEGIN; LOCK TABLE forge_versions.document IN ROW EXCLUSIVE MODE")
            act(given)

        monkeypatch.setattr(strategies, "_again", begun)
        changing = thread.submit(use_strategy, versions, name)
        Aside(versions.info.backend_pid, changing).waits(watcher, on=writer)
        circle = thread.submit(writer.execute, "LOCK TABLE forge_versions.document IN SHARE UPDATE EXCLUSIVE MODE")
        ended = circle.exception(2 * SOON)
        assert ended is None or isinstance(ended, psycopg.errors.DeadlockDetected)
        writer.execute("ROLLBACK")
        changing.result(SOON)
        assert deadlocks(versions, writer) == 1
    change_identity(versions, school, {"id": 9})
    assert strategy(versions) == name
    assert told(versions) == derived(versions)


def test_it_gives_up_where_a_transaction_never_ends(versions: Connection, versions_url: str) -> None:
    with connect(versions_url) as other, other.transaction():
        put(other, SCHOOLS, {"id": 1}, {})
        with pytest.raises(StrategyBusy, match=r"for all of 0\.3 s"):
            use_strategy(versions, "monotonic", patience=0.3)
        assert strategy(versions) == "journal"
        put(versions, SCHOOLS, {"id": 2}, {})
    use_strategy(versions, "monotonic")


def test_only_one_session_changes_it_and_not_inside_a_transaction(versions: Connection, versions_url: str) -> None:
    with versions.transaction(), pytest.raises(StrategyBusy, match="several transactions"):
        use_strategy(versions, "monotonic")
    with connect(versions_url) as other:
        assert leases.take(other, "strategy", "forge_versions")
        with pytest.raises(StrategyBusy, match="another session"):
            use_strategy(versions, "monotonic")


def test_one_that_was_cut_short_is_completed(versions: Connection) -> None:
    write(versions, random.Random(3), 40)

    class Cut(Exception):
        pass

    def cut(after: int) -> None:
        raise Cut

    with pytest.raises(Cut):
        use_strategy(versions, "monotonic", batch=5, progress=cut)
    assert strategy(versions) == "journal"
    write(versions, random.Random(4), 20)
    assert told(versions) == derived(versions)
    use_strategy(versions, "monotonic", batch=5)
    assert told(versions) == derived(versions)
