"""The log's own queries."""

from typing import Final

from forge.postgres.queries import query_file

query: Final = query_file("forge.changelog", "sql/queries.sql")
"""A query of `sql/queries.sql` by its name."""
