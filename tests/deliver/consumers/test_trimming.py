"""What becomes of the log under a consumer that has not read it: held, said, and dropped only as the policy states."""

from datetime import UTC, date, datetime, timedelta

import pytest

from forge.change import Change
from forge.changelog import partitions
from forge.changelog.maintenance import Policy, run_once
from forge.changelog.partitions import partition_name
from forge.changelog.unread import unread
from forge.deliver.consumers import ConsumerContext, Consumers
from forge.deliver.consumers.control import Control
from forge.doctor import Level, examine
from forge.errors import CursorExpired
from forge.postgres.connection import Connection
from tests.deliver.consumers.working import table, until, working

TODAY = datetime.now(UTC).date()


def ago(days: int) -> date:
    return TODAY - timedelta(days=days)


def old_day(connection: Connection, day: date, key: int) -> None:
    """A day's partition as if one row had been written then."""
    partitions.make(connection, day)
    connection.execute(
        "INSERT INTO forge.forge_event_log (transaction_id, at, day, version, op, row_id, after)"
        " SELECT pg_current_xact_id(), %s::date + interval '12 hours', %s, max(v.id), 'I', %s::text,"
        " json_build_object('id', %s::int, 'v', null) FROM forge.table_version v",
        (day, day, key, key),
    )


def consumers(seen: list[str]) -> Consumers:
    found = Consumers()

    @found.consumer("slow", tables=["item"])
    async def take(ctx: ConsumerContext, change: Change) -> None:
        seen.append(change.row_id)

    return found


@pytest.fixture
async def stopped(database: str, connection: Connection) -> str:
    """A consumer that was registered and runs no more."""
    table(connection)
    async with working(database, consumers([])):
        pass
    return database


@pytest.mark.contract("W12")
async def test_a_day_past_retention_is_held_for_who_has_not_read_it(stopped: str, connection: Connection) -> None:
    for days in (40, 33):
        old_day(connection, ago(days), days)
    report = run_once(stopped, Policy(retention_days=30, hold_days=7))
    assert report.dropped == [partition_name(ago(40))]
    assert report.held == [partition_name(ago(33))]
    lost, held = report.problems
    assert "dropped though slow has not read it" in lost
    assert f"slow has not read {ago(33)}" in held
    findings = [f for f in examine(stopped) if f.check in ("consumers", "retention")]
    assert [(f.check, f.level) for f in findings] == [("consumers", Level.WARNING)] * 3
    assert "days behind" in findings[0].what
    assert f"{ago(33)} of the log is past retention and held for slow" in findings[1].what
    assert findings[2].what == "nobody works on consumer slow"


async def test_who_has_read_holds_nothing(stopped: str, connection: Connection) -> None:
    old_day(connection, ago(33), 33)
    seen: list[str] = []
    async with working(stopped, consumers(seen)):
        await until(lambda: not unread(connection, [ago(33)]))  # its cursor is saved after its work
    assert seen == ["33"]
    report = run_once(stopped, Policy(retention_days=30, hold_days=7))
    assert (report.dropped, report.held, report.problems) == ([partition_name(ago(33))], [], [])


async def test_without_holding_the_warning_comes_a_day_before(stopped: str, connection: Connection) -> None:
    old_day(connection, ago(30), 30)
    report = run_once(stopped, Policy(retention_days=30, hold_days=0))
    assert report.dropped == []
    assert [problem for problem in report.problems if "dropped within a day" in problem]


async def test_above_the_size_limit_nothing_is_held(stopped: str, connection: Connection) -> None:
    old_day(connection, ago(33), 33)
    report = run_once(stopped, Policy(retention_days=30, hold_days=7, size_limit=1))
    assert report.dropped == [partition_name(ago(33))]
    assert "dropped though slow has not read it" in report.problems[0]


@pytest.mark.contract("W12")
async def test_a_consumer_whose_place_is_gone_says_so_and_goes_on_when_told(
    stopped: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    old_day(connection, ago(40), 40)
    control = Control(stopped)
    (before,) = await control.statuses("slow")
    run_once(stopped, Policy(retention_days=30, hold_days=7))
    connection.execute("INSERT INTO item VALUES (1)")
    seen: list[str] = []
    async with working(stopped, consumers(seen)):
        await until(lambda: connection.execute("SELECT state FROM forge.consumer").fetchone() == ("expired",))
        (status,) = await control.statuses("slow")
        assert status.last_error is not None
        assert "forge consumers rewind slow --to start" in status.last_error
        [finding] = [f for f in examine(stopped) if f.check == "consumers"]
        assert (finding.level, finding.fix is not None) == (Level.PROBLEM, True)
        with pytest.raises(CursorExpired):
            await control.rewind("slow", before.cursor)
        await control.resume("slow")
        assert (await control.statuses("slow"))[0].state == "expired"
        await control.rewind("slow", "start")
        await until(lambda: seen == ["1"])
    assert "has expired" in caplog.text


def test_what_was_done_once_is_forgotten_with_the_log(database: str, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO forge.consumer_once (consumer, id, at) SELECT 'c', n::text, now() - n * interval '1 day'"
        " FROM generate_series(35, 41) n"
    )
    run_once(database, Policy(retention_days=30, hold_days=7))
    rows = connection.execute("SELECT id FROM forge.consumer_once ORDER BY 1").fetchall()
    assert rows == [("35",), ("36",), ("37",)]
