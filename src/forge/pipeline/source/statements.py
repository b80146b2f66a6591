"""The source's queries, and how values come into those that COPY runs, which takes no parameters."""

from typing import Any, LiteralString

import psycopg

from forge.changelog.connection import Connection
from forge.changelog.queries import queries


def source_query(name: str) -> LiteralString:
    """A query of the source by its name."""
    return queries("forge.pipeline.source", "queries.sql")[name]


def bound(connection: Connection, statement: Any, values: dict[str, Any]) -> str:
    """The statement with its values written into it."""
    return psycopg.ClientCursor(connection).mogrify(statement, values)


def quoted(name: str) -> str:
    """A name as SQL writes it.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
