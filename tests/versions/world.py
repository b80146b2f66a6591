"""Documents written by plain SQL, as an application with its own statements would, and what should be read of them.

`World` stamps and journals itself, keeps what every strategy stands on, and commits each change by itself. The
functions derive every version by brute force: all documents, all edges, a maximum in Python.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from forge.postgres.connection import Connection
from forge.versions.nouns import Resource, encode
from forge.versions.resources import declare

STRATEGIES = ("journal", "monotonic", "denormalized")
KEPT = "greatest(content_version, identity_version, max_dependency)"


class World:
    """A database with change versions, and a hand that writes to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS document_kept ON forge_versions.document (resource, ({KEPT}), id)".encode()
        )

    def resource(self, name: str, *, by_access: bool = False) -> Resource:
        """Declare a resource."""
        resource = Resource("test", name)
        declare(self.connection, resource, by_access=by_access)
        return resource

    def put(
        self, resource: Resource, key: Any, references: Mapping[str, int] | None = None, body: Mapping[str, Any] = {}
    ) -> int:
        """Make a document."""
        with self.connection.transaction():
            stamp = self.stamp()
            document = self._value(
                "INSERT INTO forge_versions.document"
                " (resource, identity, body, content_hash, content_version, identity_version)"
                " SELECT r.id, %s::jsonb, %s::jsonb, '', %s, %s FROM forge_versions.resource r"
                " WHERE r.project = %s AND r.name = %s RETURNING id",
                (encode({"key": key}), encode(body), stamp, stamp, resource.project, resource.name),
            )
            self._edges(document, references or {})
            self._journal(stamp, document, identity=True)
        return int(document)

    def change(self, document: int, body: Mapping[str, Any] | None = None) -> int:
        """Change a document's content; the stamp."""
        with self.connection.transaction():
            stamp = self.stamp()
            self._do(
                "UPDATE forge_versions.document SET content_version = %s, body = coalesce(%s::jsonb, body)"
                " WHERE id = %s",
                (stamp, None if body is None else encode(body), document),
            )
            self._journal(stamp, document, identity=False)
        return stamp

    def refer(self, document: int, references: Mapping[str, int]) -> int:
        """Change what a document refers to; the stamp."""
        with self.connection.transaction():
            stamp = self.stamp()
            self._do("UPDATE forge_versions.document SET content_version = %s WHERE id = %s", (stamp, document))
            self._do("DELETE FROM forge_versions.reference WHERE parent = %s", (document,))
            self._edges(document, references)
            self._journal(stamp, document, identity=False)
        return stamp

    def rekey(self, keys: Mapping[int, Any]) -> int:
        """Give documents other identities, all by one stamp; the stamp."""
        with self.connection.transaction():
            stamp = self.stamp()
            for document, key in keys.items():
                self._do(
                    "INSERT INTO forge_versions.key_change (version, document, resource, old_identity, new_identity)"
                    " SELECT %s, id, resource, identity, %s::jsonb FROM forge_versions.document WHERE id = %s",
                    (stamp, encode({"key": key}), document),
                )
                self._do(
                    "UPDATE forge_versions.document SET identity = %s::jsonb, identity_version = %s WHERE id = %s",
                    (encode({"key": key}), stamp, document),
                )
                self._do(
                    "UPDATE forge_versions.document SET max_dependency = %s WHERE id IN"
                    " (SELECT parent FROM forge_versions.reference WHERE child = %s)",
                    (stamp, document),
                )
                self._journal(stamp, document, identity=True)
        return stamp

    def delete(self, document: int) -> int:
        """Delete a document that nobody refers to; the stamp."""
        with self.connection.transaction():
            stamp = self.stamp()
            self._do(
                "INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)"
                " SELECT %(stamp)s, d.id, d.resource, d.identity, s.subject FROM forge_versions.document d,"
                " (SELECT NULL UNION ALL SELECT subject FROM forge_versions.access WHERE document = %(document)s)"
                " s (subject) WHERE d.id = %(document)s",
                {"stamp": stamp, "document": document},
            )
            self._do("DELETE FROM forge_versions.access WHERE document = %s", (document,))
            self._do("DELETE FROM forge_versions.document WHERE id = %s", (document,))
        return stamp

    def grant(self, document: int, subject: str) -> int:
        """Let somebody see a document; the stamp."""
        with self.connection.transaction():
            stamp = self.stamp()
            self._do(
                "INSERT INTO forge_versions.access (subject, document, resource, version)"
                " SELECT %s, id, resource, %s FROM forge_versions.document WHERE id = %s",
                (subject, stamp, document),
            )
        return stamp

    def revoke(self, document: int, subject: str) -> int:
        """Let somebody see a document no more; the stamp."""
        with self.connection.transaction():
            stamp = self.stamp()
            self._do("DELETE FROM forge_versions.access WHERE document = %s AND subject = %s", (document, subject))
            self._do(
                "INSERT INTO forge_versions.deletion (version, document, resource, identity, subject)"
                " SELECT %s, id, resource, identity, %s FROM forge_versions.document WHERE id = %s",
                (stamp, subject, document),
            )
        return stamp

    def use(self, strategy: str) -> None:
        """Read by another strategy from now on."""
        self._do("UPDATE forge_versions.setting SET strategy = %s", (strategy,))

    def stamp(self) -> int:
        """The next version."""
        return int(self._value("SELECT forge_versions.stamp()"))

    def _edges(self, document: int, references: Mapping[str, int]) -> None:
        for name, child in references.items():
            self._do(
                "INSERT INTO forge_versions.reference (parent, name, child, parent_resource)"
                " SELECT id, %s, %s, resource FROM forge_versions.document WHERE id = %s",
                (name, child, document),
            )
        self._do(
            "UPDATE forge_versions.document d SET max_dependency = greatest(d.max_dependency,"
            " (SELECT max(c.identity_version) FROM forge_versions.reference r"
            " JOIN forge_versions.document c ON c.id = r.child WHERE r.parent = d.id)) WHERE d.id = %s",
            (document,),
        )

    def _journal(self, stamp: int, document: int, *, identity: bool) -> None:
        self._do(
            "INSERT INTO forge_versions.document_change (version, document, resource)"
            " SELECT %s, id, resource FROM forge_versions.document WHERE id = %s",
            (stamp, document),
        )
        if identity:
            self._do(
                "INSERT INTO forge_versions.identity_change (version, document) VALUES (%s, %s)", (stamp, document)
            )

    def _do(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> None:
        self.connection.execute(statement.encode(), values)

    def _value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        row = self.connection.execute(statement.encode(), values).fetchone()
        assert row is not None
        return row[0]


def derived(connection: Connection, resource: Resource, subject: str | None = None) -> dict[int, int]:
    """The version of every document of a resource that a subject sees; None sees all."""
    rows = connection.execute(
        "SELECT d.id, d.content_version, d.identity_version, r.name FROM forge_versions.document d"
        " JOIN forge_versions.resource r ON r.id = d.resource"
    ).fetchall()
    identities = {id: identity for id, _, identity, _ in rows}
    found = {id: max(content, identity) for id, content, identity, name in rows if name == resource.name}
    for parent, child in connection.execute("SELECT parent, child FROM forge_versions.reference").fetchall():
        if parent in found:
            found[parent] = max(found[parent], identities[child])
    if subject is None:
        return found
    rows = connection.execute(
        "SELECT document, version FROM forge_versions.access WHERE subject = %s", (subject,)
    ).fetchall()
    return {document: max(found[document], version) for document, version in rows if document in found}


def within(versions: Mapping[int, int], first: int, last: int) -> list[tuple[int, int]]:
    """Version and document of those in a window, in order."""
    return sorted((version, document) for document, version in versions.items() if first <= version <= last)
