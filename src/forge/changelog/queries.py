"""Named queries of the log."""

from typing import Final

from forge.postgres.queries import query_file

query: Final = query_file("forge.changelog", "sql/queries.sql")
"""Return a query of `sql/queries.sql` by its name."""
