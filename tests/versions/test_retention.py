"""What the journals keep, and that nobody is told of a part as if it were the whole."""

import threading
import time
from datetime import timedelta

import pytest

from forge.errors import ConfigError, VersionsMissing, WindowExpired
from forge.postgres import leases
from forge.postgres.connection import Connection, connect
from forge.versions import reading
from forge.versions.available import available
from forge.versions.nouns import Resource
from forge.versions.reading import Standing, changes, deletes, key_changes, stream
from forge.versions.retention import JOURNALS, Partition, VersionPolicy, maintain, partitions
from tests.versions.world import World

SIZE = 10
pytestmark = pytest.mark.contract("V7")


@pytest.fixture
def world(versions: Connection) -> World:
    """Journals whose partitions are made small, as far as they are made from now on."""
    versions.execute("UPDATE forge_versions.setting SET partition_size = %s", (SIZE,))
    for journal in JOURNALS:
        versions.execute(f"DROP TABLE forge_versions.{journal}_0, forge_versions.{journal}_10000000".encode())
        versions.execute(
            f"CREATE TABLE forge_versions.{journal}_0 PARTITION OF forge_versions.{journal}"
            " FOR VALUES FROM (0) TO (MAXVALUE)".encode()
        )
    return World(versions)


def ranges(connection: Connection, journal: str = "document_change") -> list[tuple[int, int | None]]:
    return [(each.first, each.end) for each in partitions(connection) if each.journal == journal]


def count(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM forge_versions.document_change").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.every_version
def test_partitions_are_made_a_whole_one_ahead(world: World) -> None:
    plans = world.resource("plans")
    first = maintain(world.connection)
    assert first.made == [f"{journal}_20" for journal in sorted(JOURNALS)]
    assert ranges(world.connection) == [(0, 20), (20, None)]
    assert maintain(world.connection).made == []
    for key in range(25):
        world.put(plans, key)
    assert len(maintain(world.connection).made) == len(JOURNALS)
    assert ranges(world.connection) == [(0, 20), (20, 40), (40, None)]
    for key in range(25, 80):
        world.put(plans, key)
    maintain(world.connection)
    assert ranges(world.connection, "deletion") == [(0, 20), (20, 40), (40, 100), (100, None)]
    assert [item.version for item in changes(world.connection, plans, 1, limit=1000).items] == list(range(1, 81))
    indexes = world.connection.execute(
        "SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relname LIKE 'document_change_%'"
        " AND i.indisvalid GROUP BY c.oid"
    ).fetchall()
    assert indexes == [(2,)] * 4


def test_what_an_install_makes_is_what_a_round_would_leave(versions: Connection) -> None:
    assert partitions(versions) == sorted(
        Partition(journal, *bounds) for journal in JOURNALS for bounds in ((0, 10_000_000), (10_000_000, None))
    )
    assert maintain(versions).made == [f"{journal}_20000000" for journal in sorted(JOURNALS)]


def test_the_last_versions_are_kept_and_the_oldest_follows(world: World) -> None:
    plans = world.resource("plans")
    for key in range(55):
        world.put(plans, key)
        if key % SIZE == 0:
            maintain(world.connection)
    report = maintain(world.connection, VersionPolicy(versions=12))
    assert report.oldest == 44
    assert report.dropped == [f"{journal}_{first}" for journal in sorted(JOURNALS) for first in (0, 20, 30)]
    assert available(world.connection).oldest == 44
    assert ranges(world.connection)[0] == (40, 50)
    assert count(world.connection) == 16
    with pytest.raises(WindowExpired) as raised:
        changes(world.connection, plans, 43)
    assert raised.value.oldest == 44
    assert [item.version for item in changes(world.connection, plans, 44).items] == list(range(44, 56))
    assert len(changes(world.connection, plans).items) == 55
    assert maintain(world.connection, VersionPolicy(versions=40)).oldest == 44


def test_what_was_stamped_within_an_age_is_kept(world: World) -> None:
    plans = world.resource("plans")
    for key in range(33):
        world.put(plans, key)
        if key % SIZE == 0:
            maintain(world.connection)
    assert maintain(world.connection, VersionPolicy(age=timedelta(days=1))).oldest == 1
    world.connection.execute(
        "UPDATE forge_versions.document_change SET at = at - interval '2 days' WHERE version <= 27 AND version <> 5"
    )
    assert maintain(world.connection, VersionPolicy(age=timedelta(days=3))).oldest == 1
    assert maintain(world.connection, VersionPolicy(age=timedelta(days=1), versions=20)).oldest == 14
    assert maintain(world.connection, VersionPolicy(age=timedelta(days=1), versions=2)).oldest == 28
    assert ranges(world.connection)[0] == (20, 30)


def test_everything_may_be_old_but_the_newest_stays_askable(world: World) -> None:
    plans = world.resource("plans")
    for key in range(33):
        world.put(plans, key)
    assert maintain(world.connection, VersionPolicy(age=timedelta())).oldest == 33
    assert available(world.connection).oldest == available(world.connection).newest == 33
    assert len(changes(world.connection, plans, 33).items) == 1


def test_a_client_between_two_pages_is_told_and_never_given_a_part(world: World) -> None:
    plans = world.resource("plans")
    for key in range(45):
        world.put(plans, key)
        if key % SIZE == 0:
            maintain(world.connection)
    for document in range(1, 20):
        world.delete(document)
    windows = {ask: ask(world.connection, plans, 5, limit=3) for ask in (changes, deletes, stream)}
    late = changes(world.connection, plans, 44, limit=1)
    report = maintain(world.connection, VersionPolicy(versions=20))
    assert report.dropped
    for ask, page in windows.items():
        with pytest.raises(WindowExpired) as raised:
            ask(world.connection, plans, after=page.next)
        assert raised.value.oldest == report.oldest == 45
    with pytest.raises(WindowExpired):
        changes(world.connection, plans, after=late.next)


def test_who_gave_no_beginning_is_not_told_that_it_is_too_old(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest rises after it was read, and before the page is."""
    plans = world.resource("plans")
    made = [world.put(plans, key) for key in range(6)]
    for document in made[:4]:
        world.rekey({document: f"other {document}"})
        world.delete(document)
    read = reading.standing
    rising = [8, 9]

    def risen(connection: Connection, resource: Resource) -> Standing:
        found = read(connection, resource)
        if rising:
            connection.execute("UPDATE forge_versions.setting SET oldest = %s", (rising.pop(0),))
        return found

    monkeypatch.setattr(reading, "standing", risen)
    assert [item.id for item in deletes(world.connection, plans).items] == made[1:4]
    rising += [10, 11]
    assert [item.id for item in key_changes(world.connection, plans).items] == made[2:4]
    rising += [12]
    with pytest.raises(WindowExpired):
        deletes(world.connection, plans, 11)


def test_nothing_goes_while_a_snapshot_is_older_than_the_new_oldest(world: World, versions_url: str) -> None:
    plans = world.resource("plans")
    for key in range(45):
        world.put(plans, key)
        if key % SIZE == 0:
            maintain(world.connection)
    assert available(world.connection).newest == 45
    with connect(versions_url) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT 1 FROM pg_class LIMIT 1").fetchone() == (1,)
        report = maintain(world.connection, VersionPolicy(versions=5))
        assert (report.oldest, report.dropped) == (41, [])
        assert "document_change_0" in report.waiting
        assert len(changes(reader, plans, 1, 45).items) == 45
        reader.execute("COMMIT")
        with pytest.raises(WindowExpired):
            changes(reader, plans, 1, 45)
    assert "document_change_0" in maintain(world.connection, VersionPolicy(versions=5)).dropped


def test_who_waits_for_a_lock_gives_way_and_goes_on_in_the_next_round(world: World, versions_url: str) -> None:
    plans = world.resource("plans")
    for key in range(45):
        world.put(plans, key)
        if key % SIZE == 0:
            maintain(world.connection)
    for key in range(45, 65):
        world.put(plans, key)
    with connect(versions_url) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO forge_versions.document_change (version, document, resource) VALUES (64, 0, 0)")
        report = maintain(world.connection, VersionPolicy(versions=5))
        assert "document_change_60" in report.waiting
        assert "deletion_80" in report.made
        writer.execute("ROLLBACK")
    report = maintain(world.connection, VersionPolicy(versions=5))
    assert "document_change_80" in report.made
    assert report.waiting == []
    assert ranges(world.connection) == [(60, 80), (80, None)]
    assert world.connection.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_a_detach_that_was_left_behind_is_completed(world: World) -> None:
    plans = world.resource("plans")
    for key in range(45):
        world.put(plans, key)
        if key % SIZE == 0:
            maintain(world.connection)
    world.connection.execute(
        "ALTER TABLE forge_versions.deletion DETACH PARTITION forge_versions.deletion_0 CONCURRENTLY"
    )
    assert "deletion_0" in maintain(world.connection).dropped
    assert world.connection.execute("SELECT to_regclass('forge_versions.deletion_0')").fetchone() == (None,)


def test_writers_and_readers_go_on_while_partitions_come_and_go(world: World, versions_url: str) -> None:
    """No write fails, and no window that is answered lacks anything."""
    plans = world.resource("plans")
    stop = threading.Event()
    failed: list[Exception] = []
    written: list[int] = []
    expired: list[bool] = []

    def write() -> None:
        try:
            with connect(versions_url) as connection:
                hand = World(connection)
                while not stop.is_set():
                    written.append(hand.put(plans, len(written)))
        except Exception as error:
            failed.append(error)

    def read() -> None:
        try:
            with connect(versions_url) as connection:
                while not stop.is_set():
                    known = available(connection)
                    if known.newest:
                        try:
                            page = changes(connection, plans, known.oldest, known.newest, limit=10_000)
                        except WindowExpired as error:
                            expired.append(error.oldest > known.oldest)
                            continue
                        assert [item.version for item in page.items] == list(range(known.oldest, known.newest + 1))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=target) for target in (write, read)]
    for thread in threads:
        thread.start()
    made, dropped = 0, 0
    while made < 40 or dropped < 40:
        report = maintain(world.connection, VersionPolicy(versions=15))
        made, dropped = made + len(report.made), dropped + len(report.dropped)
        assert not failed
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert all(expired)
    assert len(changes(world.connection, plans, limit=10_000).items) == len(written)


class TestRefusals:
    """What cannot be maintained is refused by name."""

    @pytest.fixture
    def connection(self, versions: Connection) -> Connection:
        return versions

    def test_policies_that_keep_nothing_sensible(self) -> None:
        for wrong in ({"versions": 0}, {"versions": -1}, {"age": timedelta(seconds=-1)}):
            with pytest.raises(ConfigError):
                VersionPolicy(**wrong)

    def test_inside_a_transaction(self, connection: Connection) -> None:
        with connection.transaction(), pytest.raises(ConfigError):
            maintain(connection)

    def test_where_nothing_is_installed(self, empty_database: str) -> None:
        with connect(empty_database) as connection, pytest.raises(VersionsMissing):
            maintain(connection)

    def test_two_at_once(self, connection: Connection, versions_url: str) -> None:
        with connect(versions_url) as other:
            assert leases.take(other, leases.MAINTENANCE, "forge_versions")
            assert maintain(connection).busy
        deadline = time.monotonic() + 30  # the server ends a session after its client has
        while maintain(connection).busy:
            assert time.monotonic() < deadline

    def test_a_partition_that_somebody_else_made(self, connection: Connection) -> None:
        connection.execute("CREATE TABLE forge_versions.other PARTITION OF forge_versions.deletion DEFAULT")
        with pytest.raises(ConfigError, match="DEFAULT"):
            maintain(connection)
