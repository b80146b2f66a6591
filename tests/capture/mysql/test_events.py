"""Logs as a crash or a bad disk leaves them: real events, taken from a server and then spoiled."""

import asyncio
import random
import zlib
from collections.abc import Iterable, Iterator

import pytest

from forge.capture import Filter
from forge.capture.mysql import catalog
from forge.capture.mysql.address import MysqlAddress
from forge.capture.mysql.changes import BinlogChanges
from forge.capture.mysql.cursor import MysqlCursor
from forge.capture.mysql.feed import BinlogFeed
from forge.capture.mysql.view import MysqlCatalog
from forge.change import Op
from forge.errors import CursorForeign, DecodeError, SourceError
from forge.testing.mariadb import run
from tests.capture.mysql.reading import changes, source

pytestmark = pytest.mark.contract("W5")

FORMAT, XID, INCIDENT, PAYLOAD = 15, 16, 26, 40


@pytest.fixture
def log(maria_database: str) -> Iterator[tuple[list[bytes], MysqlCursor, MysqlCatalog]]:
    """The events of one transaction of two inserts, the cursor before them, and the catalog."""
    address = MysqlAddress.parse(maria_database)
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY, s text)")
    start = MysqlCursor.parse(asyncio.run(source(maria_database).now()))
    run(maria_database, "BEGIN", "INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b')", "COMMIT")
    control, reading = address.connect(5), address.connect(5)
    told = catalog.server(control)
    number = random.randrange(1 << 30, 1 << 31)
    place = start.place
    feed = BinlogFeed.open(reading, address, told, number, 1.0, file=place.file, offset=place.offset)
    events: list[bytes] = []
    while not any(event[4] == XID for event in events):
        events += feed.read()
    feed.close()
    yield events, start, MysqlCatalog(control, told, address.database, Filter())
    control._force_close()


def reading(start: MysqlCursor, view: MysqlCatalog) -> BinlogChanges:
    return BinlogChanges(view, "test", start, checksums=True)


def take(found: BinlogChanges, events: Iterable[bytes]) -> None:
    for event in events:
        found.take(event)


def signed(event: bytes) -> bytes:
    """With its checksum made right again."""
    return event[:-4] + zlib.crc32(event[:-4]).to_bytes(4, "little")


def of_type(event: bytes, kind: int) -> bytes:
    return signed(event[:4] + bytes([kind]) + event[5:])


def test_whole(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    events, start, view = log
    found = reading(start, view)
    take(found, events)
    assert [change.op for change in found.changes] == [Op.INSERT, Op.INSERT]
    assert found.cursor().events == 0


def test_a_transaction_without_an_end(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    """The server crashed while it wrote the log, and began a new file."""
    events, start, view = log
    found = reading(start, view)
    take(found, events[:-1])
    assert found.cursor().events == 2
    found.take(next(event for event in events if event[4] == FORMAT))
    assert [change.op for change in found.changes] == [Op.INSERT, Op.INSERT, Op.INVALIDATE]
    assert "crashed" in found.changes[-1].context.more["reason"]
    assert found.cursor().events == 0


def test_a_damaged_event(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    events, start, view = log
    found = reading(start, view)
    take(found, events[:-1])
    middle = len(events[-1]) // 2
    with pytest.raises(DecodeError, match="checksum"):
        found.take(events[-1][:middle] + bytes([events[-1][middle] ^ 1]) + events[-1][middle + 1 :])


def test_rows_that_end_too_early(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    events, start, view = log
    found = reading(start, view)
    spoiled = [signed(event[:-5] + event[-4:]) if event[4] in (23, 30) else event for event in events]
    with pytest.raises(DecodeError, match="cannot be decoded"):
        take(found, spoiled)


def test_events_that_are_missing(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    events, start, view = log
    found = reading(start, view)
    take(found, events)
    found.empty()
    found.take(of_type(events[-1], INCIDENT))
    assert [(change.op, change.table) for change in found.changes] == [(Op.INVALIDATE, "t")]


def test_compressed_transactions_are_refused(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    events, start, view = log
    found = reading(start, view)
    take(found, events[:2])
    with pytest.raises(SourceError) as refused:
        found.take(of_type(events[-1], PAYLOAD))
    assert "binlog_transaction_compression = OFF" in refused.value.fix


def test_a_file_that_was_begun_at_another_time(log: tuple[list[bytes], MysqlCursor, MysqlCatalog]) -> None:
    events, start, view = log
    place = start.place._replace(created=start.place.created - 1)
    found = reading(MysqlCursor(start.server, place, 0, start.gtid), view)
    with pytest.raises(CursorForeign, match="is not the file"):
        take(found, events)


async def test_logs_with_and_without_checksums(maria_database: str) -> None:
    reader = source(maria_database)
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)")
    start = await reader.now()
    run(
        maria_database,
        "INSERT INTO t VALUES (1)",
        "SET GLOBAL binlog_checksum = NONE",
        "INSERT INTO t VALUES (2)",
        "SET GLOBAL binlog_checksum = CRC32",
        "INSERT INTO t VALUES (3)",
    )
    assert [change.key for change in await changes(reader, start, 3)] == [{"id": 1}, {"id": 2}, {"id": 3}]
