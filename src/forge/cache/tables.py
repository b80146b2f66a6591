"""Match changes to entries by table, for entries of which only the tables are known."""

from collections.abc import Iterable

from forge.cache.entry import CacheEntry
from forge.cache.recent_changes import ANY_TABLE
from forge.change import Change

Tables = tuple[str, ...]


class TableMatcher:
    """Entries by the tables they read."""

    def __init__(self) -> None:
        self._reads: dict[str, Tables] = {}
        self._keys: dict[str, set[str]] = {}

    def put(self, key: str, reads: Tables) -> None:
        self.remove(key)
        self._reads[key] = reads
        for table in reads:
            self._keys.setdefault(table, set()).add(key)

    def remove(self, key: str) -> None:
        for table in self._reads.pop(key, ()):
            keys = self._keys[table]
            keys.discard(key)
            if not keys:
                del self._keys[table]

    def touched(self, change: Change) -> Iterable[str]:
        return self._keys.get(f"{change.schema}.{change.table}", set()) | self._keys.get(ANY_TABLE, set())

    def touches(self, reads: Tables, changes: Iterable[Change]) -> bool:
        return any(ANY_TABLE in reads or f"{change.schema}.{change.table}" in reads for change in changes)

    def encode(self, reads: Tables) -> bytes:
        return b""

    def decode(self, entry: CacheEntry) -> Tables:
        return entry.tables
