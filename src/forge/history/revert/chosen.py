"""Select the changes to undo: the log's rows of a request, of a transaction, or of a user since an instant.

In: a `Choice`. Out: the log's rows in the log's order, with the raw JSON of every value, so that exactly what was
logged is written back. Refused are choices that the log cannot answer for, because days of it were trimmed, and choices
that do not fit into memory.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from psycopg.rows import tuple_row

from forge.changelog import partitions
from forge.errors import RevertRefused
from forge.postgres.connection import Connection
from forge.postgres.text import check_storable
from forge.values import parts

MOST_CHANGES: Final = 100_000
MOST_BYTES: Final = 256 * 1024 * 1024
"""Limits of one revert: changes, and bytes of their images. They are held in memory."""

Image = dict[str, bytes]
"""The columns of a row, each with its value as in the log: JSON text."""

_FIX: Final = "choose less: one transaction, a shorter time, or fewer tables"


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The selection to undo: one of `trace`, `transaction` and `user`; a user needs `since`.

    `since` is inclusive, `until` is not.
    """

    trace: str | None = None
    transaction: str | None = None
    user: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = [name for name in ("trace", "transaction", "user") if getattr(self, name) is not None]
        if len(given) != 1:
            raise RevertRefused("what to revert is not clear", fix="give one of a trace, a transaction, a user")
        if self.user is not None and self.since is None:
            raise RevertRefused("a user's changes since when?", fix="give since, e.g. --since 1h")
        if self.transaction is not None and not re.fullmatch(r"[0-9]{1,19}", self.transaction):
            raise RevertRefused(
                f"{self.transaction!r} is no transaction", fix="give the number that forge history shows, e.g. 771"
            )
        for what, words in (("the trace", [self.trace]), ("the user", [self.user]), ("a table's name", self.tables)):
            check_storable(what, *words, error=RevertRefused)
        for instant in (self.since, self.until):
            if instant is not None and instant.tzinfo is None:
                raise RevertRefused("an instant has no time zone", fix="write it as 2026-11-10 09:00+00")

    def __str__(self) -> str:
        if self.trace is not None:
            what = f"trace {self.trace}"
        elif self.transaction is not None:
            what = f"transaction {self.transaction}"
        else:
            what = f"user {self.user}"
        since = f" since {self.since.isoformat()}" if self.since else ""
        until = f" until {self.until.isoformat()}" if self.until else ""
        return what + since + until + (f" in {', '.join(self.tables)}" if self.tables else "")


class Logged(msgspec.Struct, frozen=True):
    """One row of the log. `before` and `after` are whole rows, None if there was none."""

    tracked: int
    version: int
    id: int
    place: int
    transaction: int
    at: datetime
    op: str
    row_id: str | None
    before: Image | None
    after: Image | None
    hidden: tuple[str, ...]


def read(connection: Connection, choice: Choice, tracked: Sequence[int] | None) -> list[Logged]:
    """Return the chosen changes in order, of these tracked tables or of all; refuse if some of them are lost."""
    cursor = connection.cursor(row_factory=tuple_row)
    first_id = _one(cursor, "SELECT (forge.current_identity()).first_id")[0]
    conditions, values = _conditions(choice, tracked)
    number, size = _one(
        cursor,
        "SELECT count(*), coalesce(sum(coalesce(octet_length(l.before::text), 0)), 0)"
        " + coalesce(sum(coalesce(octet_length(l.after::text), 0)), 0)"
        f" FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version WHERE {conditions}",
        values,
    )
    if number > MOST_CHANGES or size > MOST_BYTES:
        raise RevertRefused(
            f"{number} changes of {size // 2**20} MB are too many to revert at once:"
            f" {MOST_CHANGES} of {MOST_BYTES // 2**20} MB is the most",
            fix=_FIX,
        )
    cursor.execute(
        "SELECT v.tracked_table, l.version, l.id, coalesce(l.rank, l.id), l.transaction_id::text::bigint, l.at,"
        " l.op::text, l.row_id, l.before::text, l.after::text, coalesce(l.hidden, '{}')"
        " FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version"
        f" WHERE {conditions} ORDER BY coalesce(l.rank, l.id), l.id".encode(),
        values,
    )
    found = [_logged(*row) for row in cursor]
    _check_retained(cursor, choice, found, first_id)
    return found


def _conditions(choice: Choice, tracked: Sequence[int] | None) -> tuple[str, dict[str, Any]]:
    conditions = ["l.op <> 'R'"]
    if choice.trace is not None:
        conditions.append("l.trace_id = %(trace)s")
    elif choice.transaction is not None:
        # another server, from before a restore, may have assigned the same number: the newest one is meant
        conditions.append(
            "l.transaction_id = %(transaction)s::text::xid8 AND l.id >= coalesce((SELECT max(i.first_id)"
            " FROM forge.log_identity i WHERE i.first_id <= (SELECT max(o.id) FROM forge.forge_event_log o"
            " WHERE o.transaction_id = %(transaction)s::text::xid8)), 0)"
        )
    else:
        conditions.append("coalesce(l.user_id, l.db_user) = %(user)s")  # as in forge audit
    if choice.since is not None:
        conditions.append(
            "l.at >= %(since)s AND (l.day >= (%(since)s AT TIME ZONE 'UTC')::date - 1 OR l.day = 'infinity')"
        )
    if choice.until is not None:
        conditions.append(
            "l.at < %(until)s AND (l.day <= (%(until)s AT TIME ZONE 'UTC')::date + 1 OR l.day = 'infinity')"
        )
    if tracked is not None:
        conditions.append("v.tracked_table = ANY (%(tracked)s)")
    values = {
        "trace": choice.trace,
        "transaction": choice.transaction,
        "user": choice.user,
        "since": choice.since,
        "until": choice.until,
        "tracked": list(tracked or ()),
    }
    return " AND ".join(conditions), values


def _logged(
    tracked: int,
    version: int,
    id: int,
    place: int,
    transaction: int,
    at: datetime,
    op: str,
    row_id: str | None,
    before: str | None,
    after: str | None,
    hidden: list[str],
) -> Logged:
    new = None if after is None else parsed(after)
    old = None if before is None else parsed(before)
    if old is not None and new is not None:
        old = {**new, **old}
    return Logged(tracked, version, id, place, transaction, at, op, row_id, old, new, tuple(hidden))


def parsed(image: str) -> Image:
    """Parse a row image, its values unchanged."""
    return {name: bytes(value) for name, value in parts(image).items()}


def _check_retained(cursor: Any, choice: Choice, found: list[Logged], first_id: int) -> None:
    """Refuse when some of the chosen changes may have been trimmed."""
    rows = cursor.execute(
        "SELECT partition, last_id >= %s, last_transaction::text::bigint FROM forge.trimmed WHERE rows > 0", (first_id,)
    ).fetchall()
    days = [day for name, *_ in rows if (day := partitions.partition_day(name)) is not None]
    begins = max((datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1) for day in days), default=None)
    # transaction numbers are comparable only within this server's own, and within those of earlier servers
    lost = {ours: max((last for _, here, last in rows if here is ours and last), default=0) for ours in (True, False)}
    oldest = f"; it begins at {begins.isoformat()}" if begins else ""
    if choice.user is not None and choice.since is not None and begins is not None and choice.since < begins:
        raise RevertRefused(f"the log of then has been trimmed{oldest}", fix="choose a later instant")
    if any(change.transaction <= lost[change.id >= first_id] for change in found):
        raise RevertRefused(f"some of these changes may have been trimmed{oldest}", fix="choose a later transaction")
    if not found:
        raise RevertRefused(
            f"the log has no change of {choice}{oldest}", fix="look for it with forge audit or forge history"
        )


def _one(cursor: Any, statement: str, values: Any = None) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row
