"""Temporary real servers for tests of changes, and faults between them and their clients."""

from forge.testing.postgres import available_versions, fresh_database, temporary_postgres
from forge.testing.proxy import FaultProxy

__all__ = ["FaultProxy", "available_versions", "fresh_database", "temporary_postgres"]
