"""Tables as of a snapshot: the rows now, less what the log says happened since.

A row that nobody changed since comes from the table; of every other row, its image before its first change. Rows of a
table without a key are counted. No transaction has to stay open between the snapshot and the read.

Invariants:
- The statements are run in one transaction with the query `tables`, whose row they are made from.
- They need a log that was not trimmed since the snapshot, and a table that was not changed as a whole (`whole`).
- Values that were redacted are marked in the images as they are in the log.
"""

from collections.abc import Mapping
from typing import Any, Final, LiteralString, NamedTuple

from forge.cursor import Snapshot
from forge.postgres import session
from forge.postgres.queries import filled, queries

PINS: Final = session.set_local(session.TEXTS, session.CATALOG, session.ALL_ROWS)


def rewind_query(name: str) -> LiteralString:
    """A query of the file by its name."""
    return queries("forge.changelog", "sql/rewind.sql")[name]


class CurrentTable(NamedTuple):
    """A tracked table as it is now, as the query `tables` tells it, and the SQL of its rows."""

    id: int
    version: int
    schema: str
    name: str
    columns: list[dict[str, Any]]
    key: list[str]
    relation: str
    alias: str
    row_id: str
    source: str
    versions: list[int]
    key_types: list[str]
    collations: list[str]

    def since(self, snapshot: Snapshot, first_id: int) -> dict[str, Any]:
        """Parameters of what happened to this table after a snapshot."""
        return {**snapshot.bounds, "versions": self.versions, "first": first_id}

    def keyed(
        self,
        *,
        stored_bounds: str = "true",
        logged_bounds: str = "true",
        stored_keys: str = "",
        logged_keys: str = "",
        order: str = "",
    ) -> str:
        """The rows as of a snapshot, `(row_id, image)`: of those of the table and of the log `l` that are in bounds.

        With an order, more columns for it may be named; then no row is looked up but in a hash table, so that the
        table can be read in the order of an index.
        """
        words = {
            "bounds": logged_bounds,
            "stored_keys": stored_keys,
            "logged_keys": logged_keys,
            "order": order,
            "stored_bounds": stored_bounds,
            "unchanged": f"{self.row_id} NOT IN (SELECT c.row_id FROM changed c)"
            if order
            else f"NOT EXISTS (SELECT FROM changed c WHERE c.row_id = {self.row_id})",
        }
        return self._filled("keyed", words)

    def counted(self) -> str:
        """The rows as of a snapshot, `(null, image, n)`, numbered from 1 in the order of their images."""
        return self._filled("counted", {})

    def unchanged_rows(self, order: str) -> str:
        """All rows now, `(row_id, image)`: those of the snapshot of this very transaction."""
        return self._filled("now", {"order": order})

    def _filled(self, name: str, words: Mapping[str, str]) -> str:
        """A statement with parameters; a `%` of the words is none."""
        fragments = {"first": rewind_query("first"), "before": rewind_query("before")}
        own = {"row_id": self.row_id, "relation": self.relation, "alias": self.alias, "source": self.source}
        escaped = {word: text.replace("%", "%%") for word, text in {**words, **own}.items()}
        return filled(filled(rewind_query(name), fragments), escaped)
