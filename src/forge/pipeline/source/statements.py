"""The source's queries, and how values come into those that COPY runs, which takes no parameters."""

from typing import Any, Final

import psycopg

from forge.postgres.connection import Connection
from forge.postgres.queries import query_file

source_query: Final = query_file("forge.pipeline.source")


def bound(connection: Connection, statement: Any, values: dict[str, Any]) -> str:
    """The statement with its values written into it."""
    return psycopg.ClientCursor(connection).mogrify(statement, values)
