"""The statements of the outbox, by name."""

from typing import LiteralString

from forge.changelog.queries import queries


def sql(name: str) -> LiteralString:
    """One of `queries.sql`."""
    return queries("forge.deliver.outbox", "queries.sql")[name]
