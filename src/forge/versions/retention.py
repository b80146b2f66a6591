"""Retention of the journals: partitions by range of versions, created in advance and dropped when they are old.

The input is a policy; the output is a report of one round.

Invariants:

- Every write has a partition: the last one of each journal has no end. A round gives it an end, a whole partition ahead
  of the last stamp, and creates the next. Writers wait during that moment, and the round waits for them at most 100 ms;
  only where rounds run so late that the last partition already has rows, writers wait until these are read.
- `oldest` is raised and committed before anything is dropped, and a partition is dropped only when no transaction's
  snapshot is older than that commit. So a reader that misses a dropped row finds that its window is expired.
- Stamps within `age` are kept, and so are the last `versions` stamps; with both, the union is kept. Partitions are
  dropped whole, so rows below `oldest` may remain for a while; readers never see them.
- A partition that conflicts with another session's locks waits for the next round.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from forge.errors import ConfigError
from forge.postgres import leases
from forge.postgres.connection import Connection, typed_errors
from forge.versions.install import require_installed
from forge.versions.stamps import newest

JOURNALS: Final = ("document_change", "identity_change", "deletion", "key_change")

_LOCK_TIMEOUT: Final = "100ms"
_SETTLE: Final = 1.0
_BOUNDS: Final = re.compile(r"FOR VALUES FROM \('?(\d+)'?\) TO \((?:'?(\d+)'?|MAXVALUE)\)")
_NAME: Final = re.compile(rf"({'|'.join(JOURNALS)})_(\d+)")


class VersionPolicy(msgspec.Struct, frozen=True):
    """The retention: the last `versions` stamps, stamps within `age`, or both; with neither, everything."""

    versions: int | None = None
    age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.versions is not None and self.versions < 1:
            raise ConfigError(f"{self.versions} versions cannot be kept", fix="keep 1 or more")
        if self.age is not None and self.age < timedelta():
            raise ConfigError("an age cannot be below zero", fix="give one such as 30 days")


class RetentionReport(msgspec.Struct):
    """The result of one round. `waiting`: partitions in use. `busy`: another session runs a round; nothing was done."""

    oldest: int = 0
    busy: bool = False
    made: list[str] = msgspec.field(default_factory=list)
    dropped: list[str] = msgspec.field(default_factory=list)
    waiting: list[str] = msgspec.field(default_factory=list)


class Partition(NamedTuple):
    """Versions from `first` to below `end` of a journal; the last has no end. `leaving`: its detach has begun."""

    journal: str
    first: int
    end: int | None
    leaving: bool = False

    @property
    def name(self) -> str:
        return f"{self.journal}_{self.first}"


def maintain(connection: Connection, policy: VersionPolicy = VersionPolicy()) -> RetentionReport:  # noqa: B008
    """Run one round, on a connection in autocommit mode and outside of any transaction."""
    if not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE:
        raise ConfigError(
            "the journals cannot be maintained inside a transaction", fix="use a connection in autocommit mode"
        )
    with typed_errors():
        require_installed(connection)
        if not leases.take(connection, leases.MAINTENANCE, "forge_versions"):
            return RetentionReport(busy=True, oldest=_oldest(connection))
        try:
            with _hurried(connection):
                return _round(connection, policy)
        finally:
            if not connection.closed:
                leases.give_up(connection, leases.MAINTENANCE, "forge_versions")


def partitions(connection: Connection) -> list[Partition]:
    """Return the attached partitions of a journal, in order."""
    rows = connection.execute(
        "SELECT p.relname, pg_get_expr(c.relpartbound, c.oid), i.inhdetachpending FROM pg_inherits i"
        " JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent"
        " WHERE p.relnamespace = 'forge_versions'::regnamespace AND p.relkind = 'p' AND p.relname = ANY (%s)",
        (list(JOURNALS),),
    ).fetchall()
    return sorted(_partition(*row) for row in rows)


def next_end(first: int, last: int, size: int) -> int | None:
    """Return the end for the open partition, which begins at `first`, when `last` is the last stamp.

    It stays open while a whole partition lies between the last stamp and it.

    >>> next_end(100, 20, 50), next_end(100, 50, 50), next_end(100, 340, 50)
    (None, 150, 400)
    """
    return None if first > last + size else max(first, last + size) // size * size + size


def _partition(journal: str, bounds: str | None, leaving: bool) -> Partition:
    match = _BOUNDS.fullmatch(bounds or "")
    if match is None:
        raise ConfigError(
            f"a partition of forge_versions.{journal} has bounds that Forge did not make: {bounds}",
            fix="attach it from a number of versions to another",
        )
    return Partition(journal, int(match[1]), None if match[2] is None else int(match[2]), leaving)


def _round(connection: Connection, policy: VersionPolicy) -> RetentionReport:
    report = RetentionReport()
    _finish(connection, report)
    _make(connection, report)
    report.oldest = _raise_oldest(connection, policy)
    _drop(connection, report)
    return report


def _finish(connection: Connection, report: RetentionReport) -> None:
    """Complete the work that earlier rounds began."""
    for partition in partitions(connection):
        if partition.leaving:
            with _giving_way(report, partition):
                connection.execute(_alter(partition, "DETACH PARTITION {} FINALIZE"))
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'forge_versions'::regnamespace AND c.relkind = 'r'"
        " AND NOT c.relispartition AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid)"
    ).fetchall()
    for (name,) in rows:
        if match := _NAME.fullmatch(name):
            partition = Partition(match[1], int(match[2]), None)
            with _giving_way(report, partition):
                connection.execute(sql.SQL("DROP TABLE {}").format(_table(partition.name)))
                report.dropped.append(partition.name)


def _make(connection: Connection, report: RetentionReport) -> None:
    """End the last partition of each journal and create the next, where the stamps are close."""
    for partition in partitions(connection):
        if partition.end is None and _next_end(connection, partition) is not None:
            with _giving_way(report, partition):
                report.made.append(_end(connection, partition))


def _next_end(connection: Connection, partition: Partition) -> int | None:
    row = connection.execute(
        "SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END, s.partition_size"
        " FROM forge_versions.setting s, forge_versions.change_version q"
    ).fetchone()
    assert row is not None
    return next_end(partition.first, *row)


def _end(connection: Connection, partition: Partition) -> str:
    """End a partition while writers are locked out, so that no row is beyond the end; normally it has no rows."""
    with connection.transaction():
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(_table(partition.journal)))
        end = _next_end(connection, partition)
        assert end is not None
        following = Partition(partition.journal, end, None)
        connection.execute(_alter(partition, "DETACH PARTITION {}"))
        connection.execute(
            _alter(
                partition, "ATTACH PARTITION {} FOR VALUES FROM ({first}) TO ({end})", first=partition.first, end=end
            )
        )
        connection.execute(
            sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO (MAXVALUE)").format(
                _table(following.name), _table(following.journal), end
            )
        )
    return following.name


def _raise_oldest(connection: Connection, policy: VersionPolicy) -> int:
    """Set the start of the journals; it never decreases."""
    known, last = _oldest(connection), newest(connection)
    wanted = [
        *([last - policy.versions + 1] if policy.versions is not None else []),
        *([_stamped_within(connection, policy.age, known, last)] if policy.age is not None else []),
    ]
    oldest = min(*wanted, last) if wanted else known
    if oldest > known:
        connection.execute("UPDATE forge_versions.setting SET oldest = greatest(oldest, %s)", (oldest,))
    return _oldest(connection)


def _stamped_within(connection: Connection, age: timedelta, oldest: int, last: int) -> int:
    """Return a version below which everything was stamped longer ago than that.

    Stamps are taken in order, and each before its row is written: everything below a row is older than the row. So
    every row that was written before that time is a correct answer, and the highest that a binary search finds is a
    good one.
    """
    low, high, found = oldest - 1, last, oldest
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(
            "SELECT version, at < clock_timestamp() - %s FROM forge_versions.document_change"
            " WHERE version > %s AND version <= %s ORDER BY version DESC LIMIT 1",
            (age, low, middle),
        ).fetchone()
        if row is not None and not row[1]:
            high = row[0] - 1
        else:
            found = found if row is None else row[0] + 1
            low = middle
    return found


def _drop(connection: Connection, report: RetentionReport) -> None:
    """Drop the partitions below the oldest version, as soon as every transaction can see it."""
    there = partitions(connection)
    old = [each for each in there if each.end is not None and each.end <= report.oldest]
    known = bool(old) and _known(connection)
    busy = {each.journal for each in there if each.leaving}  # a journal has at most one that is being detached
    for partition in old:
        if not known or partition.journal in busy:
            report.waiting.append(partition.name)
            continue
        with _giving_way(report, partition):
            busy.add(partition.journal)
            connection.execute(_alter(partition, "DETACH PARTITION {} CONCURRENTLY"))
            busy.remove(partition.journal)
            connection.execute(sql.SQL("DROP TABLE {}").format(_table(partition.name)))
            report.dropped.append(partition.name)


def _known(connection: Connection) -> bool:
    """Whether every transaction in this database can see the oldest; waits briefly for those that cannot."""
    deadline = time.monotonic() + _SETTLE
    while True:
        row = connection.execute(
            "SELECT count(*) FROM forge_versions.setting s JOIN pg_stat_activity a ON a.datname = current_database()"
            " AND a.pid <> pg_backend_pid() AND a.backend_xmin IS NOT NULL AND age(a.backend_xmin) >= age(s.xmin)"
        ).fetchone()
        if row == (0,):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def _oldest(connection: Connection) -> int:
    row = connection.execute("SELECT oldest FROM forge_versions.setting").fetchone()
    assert row is not None
    return int(row[0])


def _table(name: str) -> sql.Identifier:
    return sql.Identifier("forge_versions", name)


def _alter(partition: Partition, action: str, **values: int) -> sql.Composed:
    table = sql.SQL("ALTER TABLE {} ").format(_table(partition.journal))
    return table + sql.SQL(action).format(_table(partition.name), **values)


@contextmanager
def _hurried(connection: Connection) -> Iterator[None]:
    """Limit the wait for locks within this block."""
    row = connection.execute("SELECT current_setting('lock_timeout')").fetchone()
    assert row is not None
    connection.execute("SELECT set_config('lock_timeout', %s, false)", (_LOCK_TIMEOUT,))
    try:
        yield
    finally:
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (row[0],))


@contextmanager
def _giving_way(report: RetentionReport, partition: Partition) -> Iterator[None]:
    """Skip what cannot be locked in time until the next round."""
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        report.waiting.append(partition.name)
