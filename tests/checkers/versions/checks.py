"""Invariants, checked in the database without any of the queries under test."""

from collections.abc import Iterable
from typing import Any

from forge.postgres.connection import Connection
from forge.versions.nouns import Json, Resource, decode

Mirror = dict[int, tuple[int, Json]]
"""Documents by id: version and representation."""

Access = tuple[str, int, int]
"""A subject, a document, and since which version it is seen."""

_SOURCE = """
SELECT d.id, d.identity::text, d.body::text, coalesce(e.names, '{}')::text,
       greatest(d.content_version, d.identity_version, e.version, a.version)
FROM forge_versions.document d JOIN forge_versions.resource r ON r.id = d.resource
LEFT JOIN LATERAL (
    SELECT jsonb_object_agg(f.name, c.identity), max(c.identity_version) FROM forge_versions.reference f
    JOIN forge_versions.document c ON c.id = f.child WHERE f.parent = d.id
) e (names, version) ON true
LEFT JOIN forge_versions.access a ON a.document = d.id AND a.subject = %(subject)s
WHERE (r.project, r.name, r.version) = (%(project)s, %(name)s, %(version)s)
  AND (%(subject)s::text IS NULL OR a.subject IS NOT NULL)
"""
_COUNTS = """
SELECT n, (SELECT count(*) FROM forge_versions.document_change j WHERE j.version <= n)
        + (SELECT count(*) FROM forge_versions.identity_change j WHERE j.version <= n)
        + (SELECT count(*) FROM forge_versions.key_change j WHERE j.version <= n)
        + (SELECT count(*) FROM forge_versions.deletion j WHERE j.version <= n)
FROM unnest(%s::bigint[]) n
"""


def source(connection: Connection, resource: Resource, subject: str | None) -> Mirror:
    """A resource as it is, for somebody: every version by its definition."""
    rows = connection.execute(
        _SOURCE,
        {"project": resource.project, "name": resource.name, "version": resource.version, "subject": subject},
    ).fetchall()
    return {
        id: (version, {"identity": decode(identity), "body": decode(body), "references": decode(references)})
        for id, identity, body, references, version in rows
    }


def compare(mirror: Mirror, truth: Mirror, upto: int, gone: set[int]) -> list[str]:
    """What a client lacks that is settled, or has that was deleted; `gone` is what was deleted later."""
    wrong = []
    for id, (version, shown) in truth.items():
        if version <= upto and mirror.get(id) != (version, shown):
            had = mirror.get(id)
            wrong.append(f"at {upto} document {id} is {shown} of {version}, and the client has {had}")
    wrong += [f"at {upto} the client has document {id}, which is no more" for id in mirror.keys() - truth.keys() - gone]
    return wrong


def deleted_after(connection: Connection, upto: int, subject: str | None) -> set[int]:
    """What was deleted beyond a version."""
    rows = connection.execute(
        "SELECT document FROM forge_versions.deletion WHERE version > %s AND subject IS NOT DISTINCT FROM %s",
        (upto, subject),
    ).fetchall()
    return {id for (id,) in rows}


def journaled(connection: Connection, versions: Iterable[int]) -> dict[int, int]:
    """How many journal rows there are up to each of these versions."""
    return dict(connection.execute(_COUNTS, (sorted(set(versions)),)).fetchall())


def accesses(connection: Connection, upto: int) -> set[Access]:
    """Who sees what, of that which was given up to a version."""
    rows = connection.execute(
        "SELECT subject, document, version FROM forge_versions.access WHERE version <= %s", (upto,)
    ).fetchall()
    return {(subject, document, version) for subject, document, version in rows}


def consistent(connection: Connection) -> list[str]:
    """Tokens are in the journals, identities contain what they have to, and key changes follow each other."""
    wrong = []
    for id, own, identity in _rows(
        connection,
        "SELECT d.id, greatest(d.content_version, d.identity_version) IS NOT DISTINCT FROM"
        " (SELECT max(version) FROM forge_versions.document_change c WHERE c.document = d.id),"
        " d.identity_version IS NOT DISTINCT FROM"
        " (SELECT max(version) FROM forge_versions.identity_change c WHERE c.document = d.id)"
        " FROM forge_versions.document d",
    ):
        if not (own and identity):
            wrong.append(f"the tokens of document {id} are not those of the journals")
    for parent, name in _rows(
        connection,
        "SELECT r.parent, r.name FROM forge_versions.reference r JOIN forge_versions.document p ON p.id = r.parent"
        " JOIN forge_versions.document c ON c.id = r.child"
        " WHERE r.in_identity AND p.identity -> r.name IS DISTINCT FROM c.identity",
    ):
        wrong.append(f"the identity of document {parent} does not contain that of its {name}")
    for id, version in _rows(
        connection,
        "SELECT k.document, k.version FROM (SELECT document, version, new_identity,"
        " lead(old_identity) OVER (PARTITION BY document ORDER BY version) AS next FROM forge_versions.key_change) k"
        " LEFT JOIN forge_versions.document d ON d.id = k.document"
        " WHERE k.new_identity <> coalesce(k.next, d.identity)",
    ):
        wrong.append(f"the key change of document {id} at {version} leads elsewhere than the next one begins")
    return wrong


def _rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()
