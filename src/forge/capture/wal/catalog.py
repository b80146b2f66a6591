"""Catalog data that completes a relation message, read over an ordinary connection."""

from typing import NamedTuple

from forge.capture.wal.protocol import RelationColumn, RelationMessage
from forge.capture.wal.relations import Facts, WalRelation
from forge.capture.wal.slot import sql
from forge.postgres.connection import AsyncConnection


class Published(NamedTuple):
    """A table of a publication: its number of 8 kB pages, and whether to read it without its inheriting children."""

    relation: WalRelation
    pages: int
    only: bool


class RelationCatalog:
    """Relations by their definition: each is queried and compiled once."""

    def __init__(self) -> None:
        self._known: dict[tuple[RelationMessage, tuple[str, ...]], WalRelation] = {}

    async def relation(self, connection: AsyncConnection, message: RelationMessage) -> WalRelation:
        """Return the decoder of a table's rows from this message on."""
        found = await (await connection.execute(sql("relation").encode(), {"oid": message.oid})).fetchone()
        key, columns, generated = (tuple(part or ()) for part in found[:3]) if found is not None else ((), (), ())
        known = self._known.get((message, (*key, "|", *generated)))
        if known is None:
            asked = {"types": [c.type for c in message.columns], "modifiers": [c.modifier for c in message.columns]}
            types = await (await connection.execute(sql("types").encode(), asked)).fetchall()
            facts = Facts([(name, form) for name, form in types], key, columns, generated)
            known = self._known[message, (*key, "|", *generated)] = WalRelation(message, facts)
        return known

    async def columns(self, connection: AsyncConnection) -> list[tuple[str, str, list[str]]]:
        """Return every table that can be published: schema, name, columns."""
        return [
            (schema, table, names)
            for schema, table, names in await (await connection.execute(sql("columns").encode())).fetchall()
        ]

    async def shape(self, connection: AsyncConnection, schema: str, table: str) -> RelationMessage | None:
        """Return the current definition of a table by its name; None if there is none."""
        asked = {"schema": schema, "table": table}
        row = await (await connection.execute(sql("shape").encode(), asked)).fetchone()
        if row is None:
            return None
        oid, identity, names, types, modifiers, identified = row
        parts = zip(names, types, modifiers, strict=True)
        columns = tuple(
            RelationColumn(name, kind, modifier, identity == "f" or name in identified)
            for name, kind, modifier in parts
        )
        return RelationMessage(oid, schema, table, identity, columns)

    async def published(self, connection: AsyncConnection, publication: str) -> dict[int, Published]:
        """Return the current tables of a publication, by oid and in its order."""
        rows = await (await connection.execute(sql("published").encode(), {"publication": publication})).fetchall()
        found = {}
        for oid, schema, table, identity, _, names, types, modifiers, pages, kind, identified in rows:
            parts = zip(names, types, modifiers, strict=True)
            columns = tuple(
                RelationColumn(name, kind, modifier, identity == "f" or name in identified)
                for name, kind, modifier in parts
            )
            shown = RelationMessage(oid, schema, table, identity, columns)
            found[oid] = Published(await self.relation(connection, shown), pages, kind == "r")
        return found
