"""MySQL and MariaDB: the binary log as changes, and the tables before it."""

from forge.capture.mysql.changes import comment
from forge.capture.mysql.source import MysqlSource

__all__ = ["MysqlSource", "comment"]
