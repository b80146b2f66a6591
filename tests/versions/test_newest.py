"""The newest version that is told has nothing uncommitted at or below it, whoever runs and whenever it is asked."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from forge.errors import TransactionUnfit
from forge.postgres.connection import Connection, connect
from forge.versions.documents import put
from forge.versions.reading import changes
from forge.versions.stamps import newest, settled
from tests.versions.journals import STUDENTS, last_stamp

pytestmark = pytest.mark.contract("V5")


@pytest.fixture
def others(versions_url: str) -> Iterator[list[Connection]]:
    """Four more connections."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect(versions_url)) for _ in range(4)]


def write(connection: Connection, key: int) -> int:
    return put(connection, STUDENTS, {"id": key}, {}).version


def test_it_is_what_was_committed_last_when_nobody_writes(versions: Connection) -> None:
    assert newest(versions) == 0
    assert [(write(versions, n), newest(versions)) for n in range(3)] == [(1, 1), (2, 2), (3, 3)]


def test_a_lower_stamp_that_is_not_committed_holds_it_back(versions: Connection, others: list[Connection]) -> None:
    write(versions, 0)
    assert newest(versions) == 1
    with others[0].transaction():
        assert write(others[0], 1) == 2
        assert write(versions, 2) == last_stamp(versions) == 3
        assert newest(versions) == 1
        assert newest(versions) == 1
    assert newest(versions) == 3


@pytest.mark.every_version
def test_one_who_runs_beyond_the_latest_that_ended_holds_it_back(
    versions: Connection, others: list[Connection]
) -> None:
    """The xmax of a snapshot is one above the latest xid that ended: here, the xid of the one who runs."""
    beyond = False
    for key in range(20):  # the server itself may take an xid in between: then it is tried again
        before = newest(versions)
        with others[0].transaction():
            stamp = write(others[0], key)
            snapshot = versions.execute("SELECT pg_current_snapshot()::text").fetchone()
            mine = others[0].execute("SELECT pg_current_xact_id()::text").fetchone()
            assert snapshot is not None
            assert mine is not None
            beyond = snapshot[0] == f"{mine[0]}:{mine[0]}:"
            assert newest(versions) == before
        assert newest(versions) == stamp == before + 1
        if beyond:
            break
    assert beyond


def test_it_moves_though_somebody_always_writes(versions: Connection, others: list[Connection]) -> None:
    """Transactions overlap without a gap; each pair is settled when those have ended who ran when it was taken."""
    told = []
    with ExitStack() as first:
        first.enter_context(others[0].transaction())
        write(others[0], 0)
        for n in range(1, 8):
            now, then = others[n % 2], others[(n + 1) % 2]
            block = ExitStack()
            block.enter_context(now.transaction())
            write(now, n)
            versions.execute("UPDATE forge_versions.settled SET at = at - interval '1 second'")
            told.append(newest(versions))
            first.pop_all().close()
            assert then.info.transaction_status.name == "IDLE"
            first.push(block)
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] >= 5
    assert newest(versions) == 8


def test_a_rolled_back_stamp_is_no_gap(versions: Connection, others: list[Connection]) -> None:
    with others[0].transaction(force_rollback=True):
        write(others[0], 1)
    with others[0].transaction():
        others[0].execute("SAVEPOINT a")
        write(others[0], 2)
        others[0].execute("ROLLBACK TO a")
    assert newest(versions) == last_stamp(versions) == 2


def test_inside_a_transaction_it_is_refused_and_what_others_found_holds_nobody_back(
    versions: Connection, others: list[Connection]
) -> None:
    write(versions, 1)
    with others[0].transaction():
        with pytest.raises(TransactionUnfit, match="inside of a transaction") as refused:
            newest(others[0])
        assert "autocommit" in refused.value.fix
        assert settled(others[0]) == 0
        assert newest(versions) == 1
        assert settled(others[0]) == 1
        write(versions, 2)
        assert newest(versions) == 2
        write(others[0], 3)
        assert settled(others[0]) == 2
    with others[0].transaction():
        others[0].execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert settled(others[0]) == 2
        assert newest(versions) == 3
        assert settled(others[0]) == 2


def test_a_connection_that_begins_transactions_by_itself_is_refused(versions: Connection, versions_url: str) -> None:
    write(versions, 1)
    with psycopg.connect(versions_url) as connection:
        with pytest.raises(TransactionUnfit, match="inside of a transaction"):
            newest(connection)
        with pytest.raises(TransactionUnfit, match="inside of a transaction"):
            changes(connection, STUDENTS)
        assert newest(versions) == 1
        assert len(changes(connection, STUDENTS, 1, 1).items) == 1


def test_it_takes_no_transaction_id_where_none_would_tell_more(versions: Connection, others: list[Connection]) -> None:
    def ids(count: int) -> int:
        """How many were given while it was asked so often."""
        found = []
        for times in (count, 0):
            row = others[1].execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
            assert row is not None
            found.append(row[0])
            for _ in range(times):
                newest(versions)
        return int(found[1] - found[0])

    write(versions, 0)
    assert newest(versions) == 1
    assert ids(5) == 0
    with others[0].transaction():
        write(others[0], 1)
        write(versions, 2)
        assert newest(versions) == 1
        versions.execute("UPDATE forge_versions.settled SET at = at + interval '1 hour'")
        assert ids(5) == 0
        versions.execute("UPDATE forge_versions.settled SET at = at - interval '2 hours'")
        assert ids(5) == 0
        write(versions, 3)
        versions.execute("UPDATE forge_versions.settled SET at = at - interval '2 hours'")
        assert ids(1) == 1
    assert newest(versions) == 4


def test_what_it_tells_is_on_disk_though_commits_do_not_wait_for_that(versions: Connection) -> None:
    """Else a crash could take the sequence back behind it. The server's own writer may be quick, but not every time."""
    versions.execute("SET synchronous_commit = off")
    for n in range(1, 31):
        assert write(versions, n) == n
        row = versions.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        assert newest(versions) == n
        flushed = versions.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", row).fetchone()
        assert flushed == (True,)


def test_a_prepared_transaction_holds_it_back(versions: Connection, others: list[Connection]) -> None:
    others[0].execute("BEGIN")
    write(others[0], 1)
    others[0].execute("PREPARE TRANSACTION 'held'")
    write(versions, 2)
    assert newest(versions) == 0
    others[0].execute("COMMIT PREPARED 'held'")
    assert newest(versions) == 2


def waiting(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM forge_versions.settled").fetchone()
    assert row is not None
    return int(row[0])


def test_pairs_do_not_pile_up(versions: Connection, others: list[Connection]) -> None:
    with others[0].transaction():
        write(others[0], 0)
        for n in range(1, 30):
            write(versions, n)
            assert newest(versions) == 0
            versions.execute("UPDATE forge_versions.settled SET at = clock_timestamp() + interval '1 hour'")
        assert waiting(versions) == 1
    assert newest(versions) == 30
    assert versions.execute("SELECT version FROM forge_versions.settled").fetchall() == [(30,)]


def test_pairs_are_the_rarer_the_longer_somebody_hangs(versions: Connection, others: list[Connection]) -> None:
    """Each round is ten minutes. What came before another began who still runs is told when he ends, but for a part."""
    with others[0].transaction():
        write(others[0], 0)
        for _ in range(144):
            versions.execute("SELECT forge_versions.stamp()")
            assert newest(versions) == 0
            versions.execute("UPDATE forge_versions.settled SET at = at - interval '10 minutes'")
        assert 10 < waiting(versions) < 50
        others[1].execute("BEGIN")
        write(others[1], 1)
    last = last_stamp(versions)
    assert last - 144 * 0.2 < newest(versions) < last
    others[1].execute("COMMIT")
    assert newest(versions) == last
    assert waiting(versions) <= 2


def test_a_restored_database_finds_its_newest_again(versions: Connection) -> None:
    """A dump carries pairs whose xids mean nothing in the cluster that it is restored to."""
    write(versions, 1)
    assert newest(versions) == 1
    versions.execute("UPDATE forge_versions.settled SET horizon = '9000000000'")
    assert newest(versions) == 1
    write(versions, 2)
    assert newest(versions) == 2
