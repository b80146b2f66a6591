"""Documents in a database, whichever it is: what a test writes and asks, in one way for PostgreSQL and SQL Server.

A store is a connection to a database with change versions. Versions are not the same on both: here a put takes one
stamp, there every statement does. So tests compare what is told with what `derived` finds by brute force from the rows.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

from forge.postgres.connection import Connection, connect
from forge.versions import access, documents
from forge.versions.identity import change_identity
from forge.versions.nouns import Deletion, KeyChange, Page, Resource, Upsert
from forge.versions.reading import changes, deletes, key_changes, pages, stream
from forge.versions.resources import declare
from forge.versions.retention import VersionPolicy, maintain
from forge.versions.stamps import newest
from forge.versions.strategies import Strategy, strategy, use_strategy

Kind = Literal["changes", "deletes", "key_changes"]
Found = tuple[int, int]
"""A version, and the document that has it."""
Item = tuple[int, int, int]
"""A version, the document that has it, and whether that is a new key (0), a deletion (1) or the document (2)."""
_KINDS = (KeyChange, Deletion, Upsert)
_ASKED: dict[Kind, Callable[..., Page[Any]]] = {"changes": changes, "deletes": deletes, "key_changes": key_changes}


class Rows(NamedTuple):
    """The tables, as they are: documents with their resource and two tokens, edges, and who sees what since when."""

    documents: dict[int, tuple[str, int, int]]
    edges: list[tuple[int, int]]
    access: dict[tuple[str, int], int]


class Store(Protocol):
    """What every database can do."""

    def another(self) -> AbstractContextManager["Store"]:
        """Another connection to the same database."""

    def transaction(self) -> AbstractContextManager[Any]:
        """What is written inside is committed at its end."""

    def declare(self, name: str, *, by_access: bool = False) -> None: ...

    def put(
        self,
        resource: str,
        identity: Mapping[str, Any],
        references: Mapping[str, int] | None = None,
        in_identity: Collection[str] = (),
    ) -> int:
        """A new document; its id. The identities of what `in_identity` names become part of its own."""

    def change(self, document: int, body: Mapping[str, Any]) -> None: ...

    def rename(self, document: int, identity: Mapping[str, Any]) -> None: ...

    def refer(self, document: int, references: Mapping[str, int]) -> None: ...

    def delete(self, document: int) -> None: ...

    def grant(self, document: int, subject: str) -> None: ...

    def revoke(self, document: int, subject: str) -> None: ...

    def next_stamp(self, version: int) -> None:
        """Let this be the next."""

    def newest(self) -> int: ...

    def pages(
        self,
        kind: Kind,
        resource: str,
        window: tuple[int, int],
        limit: int,
        *,
        strategy: Strategy = "journal",
        subject: str | None = None,
    ) -> Iterator[list[Found]]:
        """The pages of an answer, each asked for when it is wanted; WindowExpired once the journals are cut above."""

    def stream(
        self, resource: str, window: tuple[int, int], limit: int, *, subject: str | None = None
    ) -> Iterator[list[Item]]:
        """The pages of all that happened in a window."""

    def everything(self, resource: str, upto: int, limit: int, *, subject: str | None = None) -> Iterator[list[Found]]:
        """The pages of a whole resource, but for what changed after a version."""

    def strategy(self) -> Strategy: ...

    def use_strategy(self, name: Strategy, batch: int) -> None: ...

    def retain(self, oldest: int) -> None:
        """Let windows begin there or later, and cut the journals."""

    def identity(self, document: int) -> Any: ...

    def identities(self, document: int) -> dict[str, Any]:
        """What a document shows of those that it refers to, by name."""

    def rows(self) -> Rows: ...


class PostgresStore:
    """A store in PostgreSQL, by the API."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._connection, self._url = connection, url

    def another(self) -> "Opened":
        return Opened(self._url)

    def transaction(self) -> AbstractContextManager[Any]:
        return self._connection.transaction()

    def declare(self, name: str, *, by_access: bool = False) -> None:
        declare(self._connection, _resource(name), by_access=by_access)

    def put(
        self,
        resource: str,
        identity: Mapping[str, Any],
        references: Mapping[str, int] | None = None,
        in_identity: Collection[str] = (),
    ) -> int:
        return documents.put(
            self._connection, _resource(resource), identity, {}, references, in_identity=in_identity
        ).id

    def change(self, document: int, body: Mapping[str, Any]) -> None:
        found = documents.get(self._connection, document)
        documents.put(self._connection, found.resource, found.identity, body)

    def rename(self, document: int, identity: Mapping[str, Any]) -> None:
        change_identity(self._connection, document, identity)

    def refer(self, document: int, references: Mapping[str, int]) -> None:
        documents.set_references(self._connection, document, references)

    def delete(self, document: int) -> None:
        documents.delete(self._connection, document)

    def grant(self, document: int, subject: str) -> None:
        access.grant(self._connection, document, subject)

    def revoke(self, document: int, subject: str) -> None:
        access.revoke(self._connection, document, subject)

    def next_stamp(self, version: int) -> None:
        self._connection.execute("SELECT setval('forge_versions.change_version', %s, false)", (version,))

    def newest(self) -> int:
        return newest(self._connection)

    def pages(
        self,
        kind: Kind,
        resource: str,
        window: tuple[int, int],
        limit: int,
        *,
        strategy: Strategy = "journal",
        subject: str | None = None,
    ) -> Iterator[list[Found]]:
        if strategy != self.strategy():
            use_strategy(self._connection, strategy)
        for items in self._pages(_ASKED[kind], resource, window, limit, subject):
            yield [(item.version, item.id) for item in items]

    def stream(
        self, resource: str, window: tuple[int, int], limit: int, *, subject: str | None = None
    ) -> Iterator[list[Item]]:
        for items in self._pages(stream, resource, window, limit, subject):
            yield [(item.version, item.id, _KINDS.index(type(item))) for item in items]

    def everything(self, resource: str, upto: int, limit: int, *, subject: str | None = None) -> Iterator[list[Found]]:
        for items in self._pages(changes, resource, (None, upto), limit, subject):
            yield [(item.version, item.id) for item in items]

    def _pages(
        self,
        ask: Callable[..., Page[Any]],
        resource: str,
        window: tuple[int | None, int],
        limit: int,
        subject: str | None,
    ) -> Iterator[list[Any]]:
        def page(token: str | None) -> Page[Any]:
            given = window if token is None else (None, None)
            return ask(self._connection, _resource(resource), *given, after=token, limit=limit, subject=subject)

        for found in pages(page):
            yield found.items

    def strategy(self) -> Strategy:
        return strategy(self._connection)

    def use_strategy(self, name: Strategy, batch: int) -> None:
        use_strategy(self._connection, name, batch=batch)

    def retain(self, oldest: int) -> None:
        maintain(self._connection, VersionPolicy(versions=self.newest() - oldest + 1))

    def identity(self, document: int) -> Any:
        return documents.get(self._connection, document).identity

    def identities(self, document: int) -> dict[str, Any]:
        found = documents.get(self._connection, document)
        return {name: reference.identity for name, reference in found.references.items()}

    def rows(self) -> Rows:
        every = self._connection.execute(
            "SELECT d.id, r.name, d.content_version, d.identity_version"
            " FROM forge_versions.document d JOIN forge_versions.resource r ON r.id = d.resource"
        ).fetchall()
        edges = self._connection.execute("SELECT parent, child FROM forge_versions.reference").fetchall()
        seen = self._connection.execute("SELECT subject, document, version FROM forge_versions.access").fetchall()
        return Rows(
            {id: (name, content, identity) for id, name, content, identity in every},
            [(parent, child) for parent, child in edges],
            {(subject, document): version for subject, document, version in seen},
        )


class Opened(AbstractContextManager["Store"]):
    """A store on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Store:
        self._connection = connect(self._url)
        return PostgresStore(self._connection, self._url)

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def derived(rows: Rows, resource: str, subject: str | None = None) -> dict[int, int]:
    """The version of every document of a resource, by its definition; for a subject, of those that it sees."""
    found = {id: max(tokens) for id, (name, *tokens) in rows.documents.items() if name == resource}
    for parent, child in rows.edges:
        if parent in found:
            found[parent] = max(found[parent], rows.documents[child][2])
    if subject is None:
        return found
    return {
        id: max(found[id], version) for (whom, id), version in rows.access.items() if whom == subject and id in found
    }


def within(versions: Mapping[int, int], window: tuple[int, int]) -> list[Found]:
    """Version and document of those in a window, in order."""
    return sorted((version, id) for id, version in versions.items() if window[0] <= version <= window[1])


def spelled(value: Mapping[str, Any]) -> str:
    """The one spelling of an identity: keys in order, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _resource(name: str) -> Resource:
    return Resource("test", name)
