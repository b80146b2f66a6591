"""Dead letters: changes that a consumer could not handle, kept in order until they are replayed.

Every function of a worker runs in the transaction of its connection, together with the check of the fence.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from forge import wire
from forge.change import Change
from forge.deliver.consumers.keys import Blocked, key_hash, row_of, whole
from forge.deliver.consumers.sql import sql
from forge.postgres.connection import AsyncConnection, Connection

BEHIND = "behind an earlier change of the same row"
MOST_ERROR = 2000


class Parked(msgspec.Struct, frozen=True):
    """A letter without its change, for users who may not see the change."""

    id: int
    consumer: str
    table: str
    key: str | None
    change_id: str
    error: str
    tries: int
    behind: bool
    replay: bool
    parked_at: datetime


def parked(connection: Connection, limit: int) -> list[Parked]:
    """Return the first letters of all consumers, in order."""
    return [Parked(*row) for row in connection.execute(sql("parked"), {"limit": limit})]


async def park(
    connection: AsyncConnection, consumer: str, change: Change, error: str, tries: int, behind: bool
) -> None:
    """Park a change; repeated calls park it once."""
    schema, table, key = row_of(change)
    await connection.execute(
        sql("park"),
        {
            "consumer": consumer,
            "hash": key_hash(change),
            "schema": schema,
            "table": table,
            "key": key,
            "change_id": change.id,
            "change": wire.encode(change).decode(),
            "error": error[:MOST_ERROR].replace("\0", "\ufffd"),
            "tries": tries,
            "behind": behind,
        },
    )


async def any_left(connection: AsyncConnection, consumer: str) -> bool:
    rows = await connection.execute(sql("any_letters"), {"consumer": consumer})
    return await rows.fetchone() == (True,)


async def blocked(connection: AsyncConnection, consumer: str, changes: Sequence[Change]) -> Blocked:
    """Return the rows and tables of these changes that must queue."""
    tables = sorted({(change.schema, change.table) for change in changes})
    keys = sorted({key for change in changes if (key := row_of(change)[2]) is not None})
    entire = sorted({(change.schema, change.table) for change in changes if whole(change)})
    rows = await connection.execute(sql("blocked"), {"consumer": consumer, "keys": keys, **_names(tables)})
    found = await rows.fetchall()
    if not entire:
        return Blocked(found)
    rows = await connection.execute(sql("blocked_tables"), {"consumer": consumer, **_names(entire)})
    return Blocked(found, await rows.fetchall())


def _names(tables: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"schemas": [schema for schema, _ in tables], "tables": [table for _, table in tables]}


class ReplayLetter:
    """A letter to replay."""

    def __init__(self, id: int, change: str) -> None:
        self.id = id
        self.change = wire.decode(change.encode())


async def next_to_replay(connection: AsyncConnection, consumer: str, shard: int, shards: int) -> ReplayLetter | None:
    """Return the first letter of this shard that is marked for replay."""
    rows = await connection.execute(sql("next_letter"), {"consumer": consumer, "shard": shard, "shards": shards})
    row = await rows.fetchone()
    return None if row is None else ReplayLetter(row[0], row[1])


async def sent(connection: AsyncConnection, letter: ReplayLetter) -> None:
    await connection.execute(sql("letter_sent"), {"id": letter.id})


async def failed(connection: AsyncConnection, consumer: str, letter: ReplayLetter, error: str, tries: int) -> None:
    """Keep the letter and all that queue behind it; remove their replay marks."""
    schema, table, key = row_of(letter.change)
    values = {"consumer": consumer, "id": letter.id, "schema": schema, "table": table, "key": key}
    await connection.execute(
        sql("letter_failed"), {**values, "error": error[:MOST_ERROR].replace("\0", "\ufffd"), "tries": tries}
    )
