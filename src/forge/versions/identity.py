"""Change a document's identity, and with it that of all documents whose identities contain it.

The change and everything that follows from it have one stamp. Documents that merely refer to the document are not
written: readers derive that their representation changed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from forge.postgres.connection import Connection
from forge.versions.documents import get, id_of, mismatch, unknown
from forge.versions.nouns import Document, KeyChange, decode, readable
from forge.versions.operation import operation, sql
from forge.versions.stamps import stamped
from forge.versions.texts import json_of


def change_identity(connection: Connection, document: int | Document, identity: Mapping[str, Any]) -> KeyChange:
    """Give a document another identity; parts that come from its references may be omitted.

    An unchanged identity takes no stamp, and the result has the existing version.
    """
    number = id_of(document)
    asked = {"document": number, "identity": json_of(identity, "identity")}
    with operation(connection):
        above: list[int] | None = _hold(connection, number) if _wanted(connection, asked).differs else None
        if connection.execute(sql("held"), {"document": number}).fetchone() is None:
            raise unknown(number)
        found = _wanted(connection, asked)
        if found.differs:
            above = _hold(connection, number) if above is None else above
            with stamped(connection) as stamp:
                given = {"document": number, "old": found.old, "identity": found.new, "stamp": stamp}
                connection.execute(sql("identity"), given)
                if above:
                    connection.execute("SELECT forge_versions.carry(%s, %s)", ([number], stamp))
        now = get(connection, number)
    with readable(number):
        return KeyChange(now.identity_version, number, now.resource, decode(found.old), now.identity)


class _Wanted(NamedTuple):
    """The current and the wanted identity of a document, and whether they differ."""

    old: str
    new: str
    differs: bool


def _wanted(connection: Connection, asked: Mapping[str, Any]) -> _Wanted:
    row = connection.execute(sql("identity_of"), asked).fetchone()
    if row is None:
        raise unknown(asked["document"])
    *found, contains = row
    if contains is not None:
        raise mismatch(contains)
    return _Wanted(*found)


def _hold(connection: Connection, document: int) -> list[int]:
    """Lock a document and all whose identities contain its own, in the order of ids; return these."""
    row = connection.execute("SELECT forge_versions.hold_dependents(%s)", ([document],)).fetchone()
    assert row is not None
    return list(row[0])
