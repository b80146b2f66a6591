"""Rows of a snapshot as changes; the same row has the same id however often the snapshot is resumed."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from forge.capture.wal.decode import KIND
from forge.capture.wal.relations import Row, WalRelation
from forge.capture.wal.snapshot import SnapshotPage
from forge.change import Change, ChangeSource, Op

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Reads:
    """The rows of one snapshot, taken at `taken`; all that it shows is before the LSN `base`."""

    def __init__(self, name: str, server: str, base: int, taken: int) -> None:
        self._source = ChangeSource(KIND, name, f"{base:016x}")
        self._prefix = f"{server}:{base:016x}.r"
        self._at = _EPOCH + timedelta(microseconds=taken)
        self._counts: dict[int, int] = {}

    def changes(self, page: SnapshotPage) -> list[Change]:
        relation = page.relation
        return [self._change(relation, row) for row in page.rows]

    def _change(self, relation: WalRelation, row: Row) -> Change:
        key = relation.key(row)
        change = Change("", Op.READ, relation.schema, relation.table, self._source, self._at, key, None, row)
        if key is None:
            self._counts[relation.oid] = self._counts.get(relation.oid, 0) + 1
        word = self._counts[relation.oid] if key is None else change.row_id
        return msgspec.structs.replace(change, id=f"{self._prefix}{relation.oid}.{word}")
