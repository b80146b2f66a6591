"""SQLite as a source: the queue that triggers fill, seen by every process, and the update hook of one connection."""

from forge.capture.sqlite.context import transaction
from forge.capture.sqlite.hook import Hook
from forge.capture.sqlite.install import disable, enable, refresh
from forge.capture.sqlite.source import SqliteSource

__all__ = ["Hook", "SqliteSource", "disable", "enable", "refresh", "transaction"]
