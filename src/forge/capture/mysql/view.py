"""The catalog for a reader of the log: queried when needed, cached until a definition changes."""

from collections.abc import Iterable, Mapping

from forge.capture.filters import Filter
from forge.capture.mysql import catalog
from forge.capture.mysql.address import Connection
from forge.capture.mysql.cascades import Cascade, Name
from forge.capture.mysql.catalog import OWN
from forge.capture.mysql.codecs import Charset
from forge.capture.mysql.tables import KnownTable


class MysqlCatalog:
    """Implements `forge.capture.mysql.transaction_changes.Catalog` over one connection."""

    def __init__(self, connection: Connection, told: catalog.MysqlServer, database: str | None, filter: Filter) -> None:
        self.mariadb = told.mariadb
        self._connection = connection
        self._database = database
        self._filter = filter
        self._charsets = catalog.Charsets(connection)
        self._wanted: dict[Name, bool] = {}
        self._known: dict[Name, KnownTable | None] = {}
        self._followed: list[Name] | None = None
        self._cascades: dict[Name, list[Cascade]] | None = None

    def wants(self, schema: str, table: str) -> bool:
        """Tell whether the table is followed: of the URL's database, or not the server's own, and not filtered out."""
        found = self._wanted.get((schema, table))
        if found is None:
            ours = schema == self._database if self._database else schema not in OWN
            found = self._wanted[schema, table] = ours and (table == "*" or self._filter.wants_table(schema, table))
        return found

    def known(self, schema: str, table: str) -> KnownTable | None:
        if (schema, table) not in self._known:
            self._known[schema, table] = catalog.known(self._connection, schema, table)
        return self._known[schema, table]

    def followed(self) -> Iterable[Name]:
        """Return the existing tables that are followed."""
        if self._followed is None:
            self._followed = [name for name in catalog.tables(self._connection, self._database) if self.wants(*name)]
        return self._followed

    def cascades(self) -> Mapping[Name, list[Cascade]]:
        if self._cascades is None:
            self._cascades = catalog.cascades(self._connection)
        return self._cascades

    def collations(self) -> Mapping[int, str]:
        return self._charsets.by_collation

    def charset(self, name: str) -> Charset:
        return self._charsets(name)

    def forget(self) -> None:
        """Clear the cache after a change of definition."""
        self._known.clear()
        self._followed = self._cascades = None
