"""The database file of a URL, connections to it, and SQLite's errors as Forge's.

`sqlite:///shop.db` is a file in the working directory, `sqlite:////srv/shop.db` one by its absolute path. A connection
never creates a file, never starts a transaction implicitly, and waits for a lock up to its timeout.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from forge.errors import ConfigError, SourceError

OLDEST: Final = (3, 37, 0)
"""The first SQLite that lists tables with their types."""
PATIENCE: Final = 5.0
"""Seconds to wait for a lock."""
WHILE_REPLACED: Final = 30.0
"""Seconds that a file may be missing or unreadable for a follower."""


class FileIdentity(NamedTuple):
    """The identity of a file, independent of its name."""

    device: int
    inode: int


class SqliteFile:
    """A database file."""

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self.url: Final = url
        self.path: Final = path_of(url)
        self.name: Final = str(self.path)
        self.patience: Final = patience

    def identity(self) -> FileIdentity:
        """Raise SourceError when there is no file of this name."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self.unreadable(error) from error
        if stat.S_ISDIR(found.st_mode):
            raise SourceError(f"{self.name} is a folder", fix="name the database file in it")
        return FileIdentity(found.st_dev, found.st_ino)

    def connect(self) -> sqlite3.Connection:
        """Open a connection in autocommit mode; any thread may use it, one at a time."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise SourceError(
                f"SQLite {sqlite3.sqlite_version} is too old", fix="use a Python with SQLite 3.37 or newer"
            )
        self.identity()
        # Opening and closing it by other means than SQLite's would release the locks of other connections.
        effective = os.access in os.supports_effective_ids
        if not os.access(self.path, os.R_OK, effective_ids=effective):
            raise self.unreadable(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
        with self.errors():
            connection = sqlite3.connect(
                f"file://{quote(str(self.path.absolute()))}?mode=rw",
                uri=True,
                timeout=self.patience,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=64,
            )
            try:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except sqlite3.Error:
                connection.close()
                raise
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of SQLite in this block into SourceErrors with a fix."""
        try:
            yield
        except sqlite3.Error as error:
            raise self.translate(error) from error

    def translate(self, error: sqlite3.Error) -> SourceError:
        """Return the meaning of a SQLite error for a reader or tracker of this file."""
        name = getattr(error, "sqlite_errorname", "") or ""
        for start, (what, fix) in _MEANINGS.items():
            if name.startswith(start):
                if start == "SQLITE_BUSY" and os.path.exists(f"{self.path}-wal"):
                    fix = _BUSY_WAL
                return SourceError(f"{self.name} {what.format(seconds=self.patience)}", fix=fix)
        line = " ".join(str(error).split())
        return SourceError(f"{self.name}: {line}", fix="see what SQLite says; forge status names what is tracked")

    def unreadable(self, error: OSError) -> SourceError:
        if isinstance(error, FileNotFoundError):
            return SourceError(
                f"there is no file {self.name}", fix="check the URL: sqlite:///relative, sqlite:////absolute"
            )
        if isinstance(error, PermissionError):
            return SourceError(f"{self.name} may not be read", fix=_RIGHTS)
        return SourceError(f"{self.name} cannot be opened: {error.strerror}", fix="name a database file")


_RIGHTS: Final = "give this user the right to read and write the file and its folder, where SQLite keeps its journal"
_BUSY_WAL: Final = "end the transaction that writes, or keep transactions short: one connection writes at a time"
_MEANINGS: Final = {
    "SQLITE_NOTADB": ("is not a SQLite database", "check the URL; an encrypted file cannot be read"),
    "SQLITE_CORRUPT": ("is damaged", "PRAGMA integrity_check, then restore a backup"),
    "SQLITE_READONLY": ("cannot be written", _RIGHTS),
    "SQLITE_CANTOPEN": ("cannot be opened", _RIGHTS),
    "SQLITE_PERM": ("may not be opened", _RIGHTS),
    "SQLITE_BUSY": (
        "was locked by another connection for {seconds:g} s",
        "end the transaction that holds it; PRAGMA journal_mode=WAL lets readers and writers go on side by side",
    ),
    "SQLITE_LOCKED": ("is locked by its own process", "end the statement that reads or writes the table"),
    "SQLITE_FULL": ("has no room to grow", "free space on the disk"),
    "SQLITE_IOERR": ("cannot be read or written", "check the disk"),
}


def may_pass(error: BaseException | None) -> float:
    """Return for how many seconds an error of SQLite or the system is worth a retry."""
    if isinstance(error, FileNotFoundError):
        return WHILE_REPLACED
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_SCHEMA", "SQLITE_PROTOCOL")):
        return float("inf")
    return WHILE_REPLACED if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR")) else 0.0


def path_of(url: str) -> Path:
    """Return the file that a URL names.

    >>> str(path_of("sqlite:///shop.db")), str(path_of("sqlite:////srv/my%20shop.db?feed=queue"))
    ('shop.db', '/srv/my shop.db')
    """
    parts = urlsplit(url)
    path = unquote(parts.path[1:])
    if parts.scheme != "sqlite" or parts.netloc or not path or path == ":memory:":
        raise ConfigError(
            f"{url!r} names no database file", fix="write it as sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    for option in filter(None, parts.query.split("&")):
        if option not in ("feed=queue",):
            raise ConfigError(f"no option {option!r} of a SQLite file", fix="leave it out")
    return Path(path)
