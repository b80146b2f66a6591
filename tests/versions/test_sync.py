"""A copy kept by change queries alone ends equal to its source, whatever happens on the way."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from forge.embedded import PostgresServer
from forge.errors import MirrorUnusable, UnknownResource, WindowExpired
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from forge.versions.access import grant, revoke
from forge.versions.documents import delete, find, put
from forge.versions.nouns import Event, Page, Resource
from forge.versions.resources import declare
from forge.versions.sync import (
    DatabaseSource,
    FilesMirror,
    Mirror,
    MirrorState,
    Reach,
    SqliteMirror,
    Synced,
    SyncProgress,
    VersionsSource,
    sync,
)
from tests.versions.school import (
    PLANS,
    STUDENTS,
    Shown,
    changed,
    copy_in_files,
    copy_in_sqlite,
    school,
    school_database,
    source_of,
)


class Kept:
    """A copy of one kind in a place of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.path = folder / ("copy.db" if kind == "sqlite" else "copy")

    def open(self, resource: Resource = PLANS) -> Mirror:
        return SqliteMirror(self.path, resource) if self.kind == "sqlite" else FilesMirror(self.path, resource)

    def shown(self, resource: Resource = PLANS) -> Shown:
        return (copy_in_sqlite if self.kind == "sqlite" else copy_in_files)(self.path, resource)

    def sync(
        self, source: VersionsSource, limit: int = 500, tell: Callable[[SyncProgress], None] | None = None
    ) -> Synced:
        with closing(self.open(source.resource)) as mirror:
            return sync(source, mirror, limit=limit, tell=tell or (lambda progress: None))

    def state(self) -> MirrorState:
        with closing(self.open()) as mirror:
            found = mirror.state()
        assert found is not None
        return found


@pytest.fixture(params=["sqlite", "files"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(request.param, tmp_path)


@pytest.fixture
def in_file(tmp_path: Path) -> Kept:
    """For what does not depend on where the copy is kept."""
    return Kept("sqlite", tmp_path)


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with school_database(server) as found:
        yield found


@pytest.fixture
def source(url: str) -> Iterator[Connection]:
    with connect(url) as connection:
        yield connection


@pytest.fixture
def plans(url: str) -> Iterator[DatabaseSource]:
    with closing(DatabaseSource(url, PLANS)) as found:
        yield found


class Cut(Exception):
    """The process ends here."""


class Failing:
    """A source that ends after some pages."""

    def __init__(self, source: VersionsSource, pages: int, error: Exception | None = None) -> None:
        self.resource = source.resource
        self._source = source
        self._left = pages
        self._error = error or Cut()

    def available(self) -> Reach:
        return self._source.available()

    def page(self, min: int | None, max: int, *, after: str | None, limit: int) -> Page[Event]:
        if not self._left:
            raise self._error
        self._left -= 1
        return self._source.page(min, max, after=after, limit=limit)

    def close(self) -> None:
        self._source.close()


def test_a_new_copy_equals_its_source(kept: Kept, source: Connection, plans: DatabaseSource) -> None:
    told: list[SyncProgress] = []
    done = kept.sync(plans, limit=2, tell=told.append)
    assert kept.shown() == source_of(source, PLANS) != {}
    assert (done.upserts, done.deletions, done.again) == (5, 0, None)
    assert [progress.items for progress in told] == [2, 4, 5]
    assert told[0].listing
    again = kept.sync(plans)
    assert (again.items, again.upto) == (0, done.upto)


def test_it_follows_what_happens(kept: Kept, source: Connection, plans: DatabaseSource) -> None:
    kept.sync(plans)
    changed(source)
    done = kept.sync(plans, limit=2)
    assert kept.shown() == source_of(source, PLANS)
    assert (done.deletions, done.key_changes, done.removed, done.again) == (1, 1, 0, None)
    assert done.upserts == 5  # one by its student's identity alone, and no other
    assert kept.sync(plans).items == 0


@pytest.mark.parametrize("listing", [True, False])
def test_cut_short_it_goes_on_from_there(
    kept: Kept, source: Connection, plans: DatabaseSource, tmp_path: Path, listing: bool
) -> None:
    copies = [Kept(kept.kind, tmp_path / str(pages)) for pages in range(4)]
    if not listing:
        for copy in copies:
            copy.sync(plans)
    changed(source)
    whole = 5 if listing else 7
    for pages, copy in enumerate(copies):
        with pytest.raises(Cut):
            copy.sync(Failing(plans, pages), limit=1)
        done = copy.sync(plans, limit=1)
        assert copy.shown() == source_of(source, PLANS)
        assert (done.items, done.again) == (whole - pages, None)


def test_what_happens_while_it_lists_is_not_lost(kept: Kept, source: Connection, plans: DatabaseSource) -> None:
    with pytest.raises(Cut):
        kept.sync(Failing(plans, 2), limit=1)
    changed(source)
    kept.sync(plans, limit=1)
    assert kept.shown() == source_of(source, PLANS)


def test_a_window_that_is_gone_begins_it_anew(kept: Kept, source: Connection, plans: DatabaseSource) -> None:
    kept.sync(plans)
    changed(source)
    source.execute("UPDATE forge_versions.setting SET oldest = %s", (plans.available().newest,))
    with pytest.raises(Cut):  # what is there stays until the new listing is complete
        kept.sync(Failing(plans, 2), limit=1)
    gone = {id for id, document in kept.shown().items() if document[0] == {"plan": "P4"}}
    assert gone
    done = kept.sync(plans, limit=2)
    assert kept.shown() == source_of(source, PLANS)
    assert done.removed == 1


def test_why_it_was_begun_anew_is_told(in_file: Kept, source: Connection, plans: DatabaseSource) -> None:
    in_file.sync(plans)
    changed(source)
    source.execute("UPDATE forge_versions.setting SET oldest = %s", (plans.available().newest,))
    done = in_file.sync(plans)
    assert "the oldest that is known" in (done.again or "")
    assert in_file.state().generation == 2


def test_a_source_that_never_can_is_told(in_file: Kept, plans: DatabaseSource) -> None:
    with pytest.raises(WindowExpired):
        in_file.sync(Failing(plans, 0, WindowExpired("gone", fix="wait", oldest=9)))


def test_another_installation_begins_it_anew(in_file: Kept, server: PostgresServer, plans: DatabaseSource) -> None:
    in_file.sync(plans)
    with fresh_database(server) as there, connect(there) as other:
        school(other, 2)
        with closing(DatabaseSource(there, PLANS)) as elsewhere:
            done = in_file.sync(elsewhere)
            assert "another installation" in (done.again or "")
            assert in_file.shown() == source_of(other, PLANS)


def test_somebody_else_begins_it_anew(in_file: Kept, url: str) -> None:
    with by_access(url) as (connection, seen), closing(DatabaseSource(url, PLANS, subject="bob")) as other:
        for plan, who in (("P1", "ada"), ("P2", "bob")):
            found = find(connection, PLANS, {"plan": plan})
            assert found is not None
            grant(connection, found, who)
        in_file.sync(seen)
        assert in_file.sync(other).again == "it was copied as ada sees it, and bob asks now"
        assert in_file.shown() == source_of(connection, PLANS, "bob") != source_of(connection, PLANS, "ada")


def test_a_source_that_went_back_begins_it_anew(in_file: Kept, source: Connection, plans: DatabaseSource) -> None:
    in_file.sync(plans)
    with closing(in_file.open()) as mirror:
        state = mirror.state()
        assert state is not None
        mirror.take([], msgspec.structs.replace(state, upto=state.upto + 1000))
    assert "was at" in (in_file.sync(plans).again or "")
    assert in_file.shown() == source_of(source, PLANS)


def test_a_page_token_that_is_not_the_sources_is_read_again(
    in_file: Kept, source: Connection, plans: DatabaseSource
) -> None:
    in_file.sync(plans)
    changed(source)
    with closing(in_file.open()) as mirror:
        state = mirror.state()
        assert state is not None
        until = plans.available().newest
        mirror.take([], msgspec.structs.replace(state, until=until, token="forged"))
    done = in_file.sync(plans)
    assert done.again is None
    assert in_file.shown() == source_of(source, PLANS)


def test_others_write_all_the_while(kept: Kept, url: str, source: Connection, plans: DatabaseSource) -> None:
    wrong: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            with connect(url) as connection:
                for number in range(40):
                    with connection.transaction():
                        mine = {"number": f"{worker}-{number}"}
                        put(connection, STUDENTS, mine, {"name": "x"})
                        to = {"student": (STUDENTS, mine)}
                        plan = put(connection, PLANS, {"plan": f"{worker}-{number % 7}"}, {"n": number}, to)
                        if number % 5 == 4:
                            delete(connection, plan.document)
        except BaseException as error:
            wrong.append(error)

    writers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        kept.sync(plans, limit=7)
    for writer in writers:
        writer.join()
    assert not wrong
    kept.sync(plans, limit=7)
    assert kept.shown() == source_of(source, PLANS)


@contextmanager
def by_access(url: str) -> Iterator[tuple[Connection, DatabaseSource]]:
    with connect(url) as connection:
        declare(connection, PLANS, by_access=True)
        with closing(DatabaseSource(url, PLANS, subject="ada")) as found:
            yield connection, found


def test_a_grant_brings_what_is_old_and_a_revocation_takes_it(kept: Kept, url: str) -> None:
    with by_access(url) as (connection, seen):
        first, second, third = (find(connection, PLANS, {"plan": f"P{number}"}) for number in (1, 2, 3))
        assert first is not None
        assert second is not None
        assert third is not None
        grant(connection, first, "ada")
        grant(connection, second, "bob")
        kept.sync(seen)
        assert set(kept.shown()) == {first.id}
        grant(connection, third, "ada")
        revoke(connection, first, "ada")
        assert kept.sync(seen).items == 2
        assert kept.shown() == source_of(connection, PLANS, "ada")
        assert set(kept.shown()) == {third.id}
        revoke(connection, third, "ada")
        grant(connection, third, "ada")
        grant(connection, first, "ada")
        delete(connection, first)
        delete(connection, second)
        kept.sync(seen, limit=1)
        assert kept.shown() == source_of(connection, PLANS, "ada")


def test_a_resource_that_is_closed_or_opened_begins_it_anew(kept: Kept, url: str, source: Connection) -> None:
    plan = find(source, PLANS, {"plan": "P1"})
    assert plan is not None
    grant(source, plan, "ada")
    with closing(DatabaseSource(url, PLANS, subject="ada")) as seen:
        assert kept.sync(seen).upserts == 5
        declare(source, PLANS, by_access=True)
        done = kept.sync(seen)
        assert (done.again, done.removed) == ("who may see the resource was changed since", 4)
        assert kept.shown() == source_of(source, PLANS, "ada") != {}
        declare(source, PLANS, by_access=True)
        declare(source, PLANS)
        assert kept.sync(seen).again is None
        declare(source, PLANS, by_access=False)
        assert kept.sync(seen).again is not None
        assert kept.shown() == source_of(source, PLANS)
        declare(source, PLANS, by_access=True)
        declare(source, PLANS, by_access=False)
        assert kept.sync(seen).again is not None


@pytest.mark.parametrize("listing", [True, False])
def test_a_resource_that_is_closed_while_it_is_copied_begins_it_anew(
    in_file: Kept, url: str, source: Connection, listing: bool
) -> None:
    plan = find(source, PLANS, {"plan": "P1"})
    assert plan is not None
    grant(source, plan, "ada")
    with closing(DatabaseSource(url, PLANS, subject="ada")) as seen:
        if not listing:
            in_file.sync(seen)
            changed(source)
        pages: list[SyncProgress] = []

        def close(progress: SyncProgress) -> None:
            pages.append(progress)
            if len(pages) == 2:
                declare(source, PLANS, by_access=True)

        done = in_file.sync(seen, limit=1, tell=close)
        assert done.again == "who may see the resource was changed meanwhile"
        assert in_file.shown() == source_of(source, PLANS, "ada")
        assert set(in_file.shown()) == {plan.id}
        assert in_file.sync(seen).again is None


def test_one_sync_at_a_time_keeps_a_file(tmp_path: Path, plans: DatabaseSource) -> None:
    kept = Kept("sqlite", tmp_path)
    with closing(kept.open()) as mirror:
        kept.sync(plans)
        with pytest.raises(MirrorUnusable, match="somebody else"):
            sync(plans, mirror)


def test_one_sync_at_a_time_keeps_a_folder(tmp_path: Path, plans: DatabaseSource) -> None:
    kept = Kept("files", tmp_path)
    with closing(kept.open()), pytest.raises(MirrorUnusable, match="somebody else"):
        kept.open()
    kept.sync(plans)


def test_two_resources_share_a_file(tmp_path: Path, url: str, source: Connection) -> None:
    kept = Kept("sqlite", tmp_path)
    for resource in (PLANS, STUDENTS):
        with closing(DatabaseSource(url, resource)) as found:
            kept.sync(found)
    changed(source)
    for resource in (PLANS, STUDENTS):
        with closing(DatabaseSource(url, resource)) as found:
            kept.sync(found)
        assert kept.shown(resource) == source_of(source, resource)


def test_a_folder_of_another_resource_is_refused(tmp_path: Path, plans: DatabaseSource) -> None:
    kept = Kept("files", tmp_path)
    kept.sync(plans)
    with pytest.raises(MirrorUnusable, match="is a copy of ed-fi/graduationPlans"):
        kept.open(STUDENTS)
    (kept.path / ".forge-sync.json").write_text("{}")
    with pytest.raises(MirrorUnusable, match="not what a sync wrote"):
        kept.open()


def test_what_is_no_copy_is_refused(tmp_path: Path, plans: DatabaseSource) -> None:
    (tmp_path / "text.db").write_text("hello, this is a text that is no database\n" * 20)
    with pytest.raises(MirrorUnusable, match="SQLite cannot keep"):
        SqliteMirror(tmp_path / "text.db", PLANS)
    with pytest.raises(MirrorUnusable, match="no copy can be kept"):
        FilesMirror(tmp_path / "text.db", PLANS)
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "7.json").write_text("[1]")
    with closing(FilesMirror(folder, PLANS)) as mirror, pytest.raises(MirrorUnusable, match="not what a sync wrote"):
        sync(plans, mirror)
    assert (folder / "7.json").read_text() == "[1]"


def test_a_page_and_its_state_are_kept_together(tmp_path: Path, plans: DatabaseSource) -> None:
    kept = Kept("sqlite", tmp_path)
    kept.sync(plans)
    with sqlite3.connect(kept.path) as connection:
        connection.execute("CREATE TRIGGER refuse BEFORE UPDATE ON forge_sync BEGIN SELECT RAISE(ABORT, 'no'); END")
    connection.close()
    before = kept.shown()
    with closing(kept.open()) as mirror:
        state = mirror.state()
        assert state is not None
        page = plans.page(None, state.upto, after=None, limit=2)
        with pytest.raises(MirrorUnusable, match="no"):
            mirror.take(page.items, MirrorState(upto=0, generation=9))
        assert mirror.state() == state
    assert kept.shown() == before


def test_an_unknown_resource_is_told(url: str) -> None:
    with pytest.raises(UnknownResource):
        DatabaseSource(url, Resource("ed-fi", "teachers"))
