"""Sources of copies: a database here, or a server that answers change queries in `forge.versions.sync.http`."""

from typing import Protocol

import msgspec

from forge.postgres.connection import Connection, connect, typed_errors
from forge.versions.available import available
from forge.versions.install import require_installed
from forge.versions.nouns import Event, Page, Resource
from forge.versions.reading import standing, stream


class Reach(msgspec.Struct, frozen=True):
    """The range of versions, the id of the installation, and the reader, where that matters.

    `epoch` changes when access to the resource changes.
    """

    oldest: int
    newest: int
    install: str | None = None
    subject: str | None = None
    epoch: int = 0


class VersionsSource(Protocol):
    """One resource, as visible to one reader."""

    resource: Resource

    def available(self) -> Reach: ...

    def page(self, min: int | None, max: int, *, after: str | None, limit: int) -> Page[Event]:
        """Return a page of a window of the stream; without `min`, of all documents unchanged after `max`."""
        ...

    def close(self) -> None: ...


class DatabaseSource:
    """A resource in a database that this process may read: all of it, or the documents that a subject has access to."""

    def __init__(self, url: str, resource: Resource, *, subject: str | None = None) -> None:
        self.resource = resource
        self._subject = subject
        self._connection = connect(url, application_name="forge versions sync")
        try:
            with typed_errors():
                require_installed(self._connection)
                standing(self._connection, resource)
        except BaseException:
            self._connection.close()
            raise

    def available(self) -> Reach:
        with typed_errors():
            found = available(self._connection)
            epoch = standing(self._connection, self.resource).epoch
            return Reach(found.oldest, found.newest, install_id(self._connection), self._subject, epoch)

    def page(self, min: int | None, max: int, *, after: str | None, limit: int) -> Page[Event]:
        with typed_errors():
            return stream(self._connection, self.resource, min, max, after=after, limit=limit, subject=self._subject)

    def close(self) -> None:
        self._connection.close()


def install_id(connection: Connection) -> str:
    """Return the id of the installation: an opaque text that two databases never share."""
    row = connection.execute("SELECT left(encode(sha256(token_key), 'hex'), 16) FROM forge_versions.setting").fetchone()
    assert row is not None
    return str(row[0])
