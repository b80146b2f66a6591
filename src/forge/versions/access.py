"""Access of subjects to documents, for resources that are by access.

For a subject that gets access the document changes at that version, however old it is; for a subject that loses access
it is deleted. Both take a stamp, and neither does when nothing changes.
"""

from typing import Any

from forge.postgres.connection import Connection
from forge.versions.documents import get, id_of, unknown
from forge.versions.nouns import Deletion, Document, Upsert
from forge.versions.operation import operation, sql
from forge.versions.stamps import stamped
from forge.versions.texts import text_of


def grant(connection: Connection, document: int | Document, subject: str) -> Upsert:
    """Grant a subject access to a document; the result's version is the one at which it appears to the subject."""
    asked = {"document": id_of(document), "subject": text_of(subject, "subject")}
    with operation(connection):
        if connection.execute(sql("present"), asked).fetchone() is None:
            raise unknown(id_of(document))
        while (version := _granted(connection, asked)) is None:
            pass
        return Upsert(version, get(connection, id_of(document)))


def _granted(connection: Connection, asked: dict[str, Any]) -> int | None:
    """Return the version of an access, new or not; None when it existed and was removed before it was locked."""
    if connection.execute(sql("grant"), asked).fetchone() is not None:
        with stamped(connection) as stamp:
            connection.execute(sql("granted"), {**asked, "stamp": stamp})
        return stamp
    row = connection.execute(sql("access"), asked).fetchone()
    return None if row is None else int(row[0])


def revoke(connection: Connection, document: int | Document, subject: str) -> Deletion | None:
    """Revoke a subject's access to a document; None when there was none."""
    asked = {"document": id_of(document), "subject": text_of(subject, "subject")}
    with operation(connection):
        if connection.execute(sql("present"), asked).fetchone() is None:
            raise unknown(id_of(document))
        if connection.execute(sql("revoke"), asked).fetchone() is None:
            return None
        with stamped(connection) as stamp:
            connection.execute(sql("revoked"), {**asked, "stamp": stamp})
        found = get(connection, id_of(document))
    return Deletion(stamp, found.id, found.resource, found.identity, subject)
