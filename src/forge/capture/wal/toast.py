"""Fill in values from the trigger log that the WAL omits because they are stored out of line and did not change.

The log has every whole row. Its entries of the same transaction and row are compared; if all that agree with what the
WAL sent have the same value, that is the value. Anything else stays UNAVAILABLE.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from psycopg.types.string import ByteaBinaryLoader

from forge.capture.wal.slot import sql
from forge.change import UNAVAILABLE, Change, same
from forge.changelog.decode import LogDecoder
from forge.changelog.queries import query
from forge.postgres.connection import AsyncConnection
from forge.values import Column


class Filler:
    """Fills in the values that the log knows."""

    def __init__(self) -> None:
        self._decoder = LogDecoder("")

    async def fill(
        self,
        connection: AsyncConnection,
        changes: list[Change],
        columns: Sequence[Sequence[Column]],
        which: Sequence[int],
    ) -> None:
        """Replace the changes that lack a value that the log has."""
        for place in which:
            if place < len(changes):
                change = changes[place]
                sent = {column.name for column in columns[place] if column.kind != "hidden"}
                after = change.after or {}
                missing = [name for name, value in after.items() if value is UNAVAILABLE and name in sent]
                if missing and change.key is not None:
                    changes[place] = await self._filled(connection, change, missing)

    async def _filled(self, connection: AsyncConnection, change: Change, missing: Sequence[str]) -> Change:
        asked = {"transaction": change.source.transaction, "row": change.row_id}
        cursor = connection.cursor(binary=True)
        cursor.adapters.register_loader("json", ByteaBinaryLoader)
        rows = await (await cursor.execute(sql("log_updates").encode(), asked)).fetchall()
        if unknown := self._decoder.unknown(rows):
            versions = await (await connection.execute(query("versions"), {"ids": list(unknown)})).fetchall()
            for version in versions:
                self._decoder.learn(*version)
        assert change.after is not None
        agreeing = [
            logged.after
            for logged in self._decoder.changes(rows)
            if (logged.schema, logged.table) == (change.schema, change.table)
            and logged.after is not None
            and _agrees(change.after, logged.after)
        ]
        after: dict[str, Any] = dict(change.after)
        before = None if change.before is None else dict(change.before)
        for name in missing:
            values = [row.get(name, UNAVAILABLE) for row in agreeing]
            if values and all(same(values[0], value) for value in values):
                after[name] = values[0]
                if before is not None and before.get(name, UNAVAILABLE) is UNAVAILABLE:
                    before[name] = values[0]  # it did not change
        return msgspec.structs.replace(change, before=before, after=after)


def _agrees(sent: Any, logged: Any) -> bool:
    return all(value is UNAVAILABLE or same(logged.get(name, UNAVAILABLE), value) for name, value in sent.items())
