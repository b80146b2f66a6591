"""Servers that are set up wrong, and users that may not: an error that says what to do, or a warning."""

from collections.abc import Iterator

import pytest

from forge.capture import changes as everything
from forge.capture import open_source
from forge.capture.mysql import MysqlSource
from forge.change import Op
from forge.errors import ConfigError, SourceError
from forge.testing.mariadb import MariadbServer, fresh_mariadb, run, temporary_mariadb
from tests.capture.mysql.reading import changes, snapshot, source

pytestmark = pytest.mark.contract("W5")


@pytest.fixture(scope="module")
def other() -> Iterator[MariadbServer]:
    """A server whose settings tests change."""
    with temporary_mariadb({"binlog_row_metadata": "NO_LOG", "binlog_annotate_row_events": "OFF"}) as server:
        yield server


@pytest.fixture
def other_database(other: MariadbServer) -> Iterator[str]:
    with fresh_mariadb(other) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_image", "NOBLOB", "FULL"),
    ],
)
async def test_a_wrong_setting(other: MariadbServer, name: str, wrong: str, right: str) -> None:
    reader = source(other.url())
    cursor = await reader.now()
    run(other.url(), f"SET GLOBAL {name} = '{wrong}'")
    try:
        for action in (reader.now(), changes(reader, cursor, 1), snapshot(reader)):
            with pytest.raises(SourceError, match=f"{name} is {wrong}") as refused:
                await action
            assert f"SET GLOBAL {name} = {right}" in refused.value.fix
    finally:
        run(other.url(), f"SET GLOBAL {name} = '{right}'")
    await reader.now()


async def test_a_server_without_a_binary_log() -> None:
    with temporary_mariadb({"skip_log_bin": None}) as server:
        with pytest.raises(SourceError, match="log_bin is OFF") as refused:
            await source(server.url()).now()
        assert "log_bin=" in refused.value.fix


async def test_rights(maria: MariadbServer, maria_database: str) -> None:
    name = maria_database.rpartition("/")[2]
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    cursor = await source(maria_database).now()
    run(maria.url(), "CREATE OR REPLACE USER reader@'%' IDENTIFIED BY 'pw'", f"GRANT SELECT ON {name}.* TO reader@'%'")
    reader = source(maria.url(name, user="reader", password="pw"))
    for action in (reader.now(), changes(reader, cursor, 1), snapshot(reader)):
        with pytest.raises(SourceError, match=r"refuses a right|does not send its log") as refused:
            await action
        assert "REPLICATION" in refused.value.fix
    run(maria.url(), "GRANT REPLICATION CLIENT ON *.* TO reader@'%'")
    with pytest.raises(SourceError) as refused:
        await changes(reader, cursor, 1)
    assert "REPLICATION SLAVE" in refused.value.fix
    run(maria.url(), "GRANT REPLICATION SLAVE ON *.* TO reader@'%'")
    run(maria_database, "INSERT INTO t VALUES (2)")
    (only,) = await changes(reader, cursor, 1)
    assert only.after == {"id": 2}
    assert [change.after for batch in await snapshot(reader) for change in batch.changes] == [{"id": 1}, {"id": 2}]
    with pytest.raises(SourceError, match="refuses the user") as refused:
        await source(maria.url(name, user="reader", password="wrong")).now()
    assert "pw" not in str(refused.value)
    assert "wrong" not in reader.name


async def test_a_log_that_does_not_name_columns(other: MariadbServer, other_database: str) -> None:
    """Names, signs, sets and keys come from the catalog; where it does not fit any more, the table is invalidated."""
    reader = source(other_database)
    run(
        other_database,
        "CREATE TABLE t (id bigint unsigned PRIMARY KEY, e enum('a','b'), s varchar(9) character set latin1, b blob)",
    )
    start = await reader.now()
    run(other_database, "INSERT INTO t VALUES (18446744073709551615, 'b', 'é', x'00')")
    (row,) = await changes(reader, start, 1)
    assert row.key == {"id": 18446744073709551615}
    assert row.after == {"id": 18446744073709551615, "e": "b", "s": "é", "b": b"\0"}
    run(other_database, "ALTER TABLE t DROP COLUMN e", "INSERT INTO t VALUES (1, 'x', NULL)")
    found = await changes(reader, start, 3)
    assert [change.op for change in found] == [Op.INVALIDATE, Op.SCHEMA, Op.INSERT]
    assert found[2].after == {"id": 1, "s": "x", "b": None}
    warned = " ".join((await reader.status()).warnings)
    assert "binlog_row_metadata" in warned
    assert "binlog_annotate_row_events" in warned


async def test_warnings(maria_database: str) -> None:
    run(maria_database, "CREATE TABLE t (n int) ENGINE=Aria", "CREATE TABLE u (id int PRIMARY KEY)")
    status = await source(maria_database).status()
    assert [warning.split(" ", 1)[0].rpartition(".")[2] for warning in status.warnings] == ["t", "t"]
    assert "Aria" in status.warnings[0]
    assert "no primary key" in status.warnings[1]
    assert (status.kind, status.lag_bytes) == ("mysql", None)
    assert status.details["retention"] == "binary logs are kept until someone purges them"


@pytest.mark.contract("W12")
async def test_lag_counts_from_what_was_acknowledged(maria_database: str) -> None:
    reader = source(maria_database)
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY, s text)")
    await reader.ack(await reader.now())
    assert (await reader.status()).lag_bytes == 0
    run(maria_database, "INSERT INTO t VALUES (1, repeat('x', 10000))")
    lag = (await reader.status()).lag_bytes
    assert lag is not None
    assert 10_000 < lag < 20_000


@pytest.mark.parametrize(
    "url",
    ["mysql://", "mysql://h:port/d", "mysql://h/d?nonsense=1", "mysql://h/d?ssl=maybe", "mysql://h/d?server_id=0"],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError):
        open_source(url)


async def test_opened_by_url(maria_database: str) -> None:
    run(maria_database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    async with open_source(maria_database.replace("mysql://", "mariadb://")) as opened:
        assert isinstance(opened, MysqlSource)
        assert opened.capabilities.snapshots
        async for batch in everything(opened, snapshot=True):
            assert [change.after for change in batch.changes] == [{"id": 1}]
            break
