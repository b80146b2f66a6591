"""The tracked tables, their resource names, and the tables with Forge's triggers."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, MetaData, Table, inspect, text
from sqlalchemy.exc import NoInspectionAvailable

from forge.errors import TrackingError
from forge.tracking.record import NAME, OWN

FRESH: Final = 5.0
"""Lifetime of the cached list of tables with triggers, in seconds."""

_TRIGGERS: Final = text(
    "SELECT DISTINCT n.nspname, c.relname, pg_catalog.pg_table_is_visible(c.oid)"
    " FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid"
    " JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace AND f.nspname = 'forge'"
    " JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND pg_catalog.starts_with(p.proname::text, 'log_')"
)
_INSTALLED: Final = text("SELECT pg_catalog.to_regprocedure('public.forge_context(text,text,text,jsonb)') IS NOT NULL")


class Names:
    """A set of tables, by name; a name without a schema matches that table in any schema."""

    def __init__(self, tables: Iterable[Any]) -> None:
        self._found = {name.casefold() for table in tables for name in [table_name(table)]}

    def __contains__(self, table: tuple[str | None, str]) -> bool:
        schema, name = table
        folded = name.casefold()
        return folded in self._found or (schema is not None and f"{schema.casefold()}.{folded}" in self._found)


class TrackedTables:
    """The tracked tables."""

    def __init__(
        self, tables: Iterable[Any] | MetaData | None, skip: Collection[Any], names: Mapping[str, str]
    ) -> None:
        chosen = tables.tables.values() if isinstance(tables, MetaData) else tables
        self._metadata = tables if isinstance(tables, MetaData) else None
        self._chosen = None if chosen is None else Names(chosen)
        self._skip = Names([*skip, NAME])
        self._names = dict(names)

    def tracked(self, schema: str | None, table: str) -> bool:
        """Whether a table is tracked."""
        if (schema, table) in self._skip:
            return False
        if self._chosen is None or (schema, table) in self._chosen:
            return True
        # tables may have been added to the MetaData since
        return self._metadata is not None and (f"{schema}.{table}" if schema else table) in self._metadata.tables

    def resource(self, schema: str | None, table: str) -> str:
        """Return the resource name of the table for subscribers."""
        return self._names.get(f"{schema}.{table}") or self._names.get(table) or table


def table_name(table: Any) -> str:
    """Return a table's name, with its schema if it has one, from a name, a Table or a mapped class."""
    if isinstance(table, str):
        return table
    if not isinstance(table, Table):
        try:
            table = inspect(table).local_table
        except (NoInspectionAvailable, AttributeError):
            raise TrackingError(
                f"{table!r} is not a table", fix="name tables by their names, Table objects or mapped classes"
            ) from None
    return str(table.fullname)


class Triggers:
    """The tables of a PostgreSQL database that have Forge's triggers."""

    def __init__(self) -> None:
        self.installed = False
        self._seen: set[tuple[str | None, str]] = set()
        self._read_at = float("-inf")

    def refresh(self, connection: Connection) -> None:
        """Read them again if the cached list is too old."""
        if connection.dialect.name != "postgresql" or time.monotonic() - self._read_at < FRESH:
            return
        self.installed = bool(connection.execute(_INSTALLED, execution_options=OWN).scalar())
        seen: set[tuple[str | None, str]] = set()
        if self.installed:
            for schema, table, visible in connection.execute(_TRIGGERS, execution_options=OWN):
                seen.add((schema, table))
                if visible:
                    seen.add((None, table))
        self._seen, self._read_at = seen, time.monotonic()

    def __contains__(self, table: tuple[str | None, str]) -> bool:
        return table in self._seen


def written_table(statement: Any) -> Table | None:
    """Return the table that an INSERT, UPDATE or DELETE writes, as in its MetaData; None if it is not a table."""
    found = statement.table
    if not isinstance(found, Table):
        found = getattr(found, "element", None)  # an alias
    if not isinstance(found, Table):
        return None
    return found.metadata.tables.get(found.key, found)
