"""Queries of the source, and the binding of values into COPY statements, which take no parameters."""

from typing import Any, Final

import psycopg

from forge.postgres.connection import Connection
from forge.postgres.queries import query_file

source_query: Final = query_file("forge.pipeline.source")


def bound(connection: Connection, statement: Any, values: dict[str, Any]) -> str:
    """Return the statement with its values as literals."""
    return psycopg.ClientCursor(connection).mogrify(statement, values)
