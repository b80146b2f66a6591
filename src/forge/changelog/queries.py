"""Named queries of the log."""

from typing import Final

from forge.postgres.queries import query_file

query: Final = query_file("forge.changelog", "sql/queries.sql")
"""Return a query of `sql/queries.sql` by its name."""
maintenance: Final = query_file("forge.changelog", "sql/maintenance.sql")
"""Return a query of `sql/maintenance.sql` by its name."""
