"""SQL statements of the outbox, by name."""

from typing import Final

from forge.postgres.queries import query_file

sql: Final = query_file("forge.deliver.outbox")
