"""Tables as of a snapshot: the current rows, minus what the log says happened since.

An unchanged row comes from the table; a changed row is its image before its first change. Rows of a table without a key
are counted. No transaction has to stay open between the snapshot and the read.

Invariants:
- The statements run in one transaction with the query `tables`, whose row they are built from.
- They need a log that was not trimmed since the snapshot, and a table that was not changed as a whole (`whole`).
- Redacted values are marked in the images as they are in the log.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from forge.cursor import Snapshot
from forge.postgres import session
from forge.postgres.names import escaped
from forge.postgres.queries import filled, query_file

PINS: Final = session.set_local(session.TEXTS, session.CATALOG, session.ALL_ROWS)


rewind_query: Final = query_file("forge.changelog", "sql/rewind.sql")
"""Return a query of `sql/rewind.sql` by its name."""


class CurrentTable(NamedTuple):
    """A tracked table in its current form, as the query `tables` returns it, and the SQL of its rows."""

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

    @property
    def words(self) -> dict[str, str]:
        """The words in braces of a query about this table, for a statement with parameters."""
        own = {"row_id": self.row_id, "relation": self.relation, "alias": self.alias, "source": self.source}
        return {word: escaped(text) for word, text in own.items()}

    def since(self, snapshot: Snapshot, first_id: int) -> dict[str, Any]:
        """Return the parameters that select what happened to this table after a snapshot."""
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
        """Return the SQL of the rows as of a snapshot, `(row_id, image)`, from the rows of the table and of the log `l`
        in bounds.

        With an order, more columns for it may be named; then rows are looked up only in a hash table, so that the table
        can be read in the order of an index.
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
        """Return the SQL of the rows as of a snapshot, `(null, image, n)`, numbered from 1 in order of images."""
        return self._filled("counted", {})

    def unchanged_rows(self, order: str) -> str:
        """Return the SQL of all current rows, `(row_id, image as text)`, in the same snapshot."""
        return self._filled("now", {"order": order})

    def _filled(self, name: str, words: Mapping[str, str]) -> str:
        """Fill in a statement with parameters; a `%` in the words is not a parameter."""
        fragments = {"first": rewind_query("first"), "before": rewind_query("before")}
        safe = {word: escaped(text) for word, text in words.items()}
        return filled(filled(rewind_query(name), fragments), {**safe, **self.words})
