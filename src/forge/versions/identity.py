"""Changing a document's identity, and with it that of all documents whose identities contain it.

The change and all that follows from it have one stamp. Those who merely refer to the document are not touched: that
their representation changed is found on reading.
"""

from collections.abc import Mapping
from typing import Any

from forge.changelog.connection import Connection
from forge.versions.documents import get, id_of, mismatch, unknown
from forge.versions.nouns import Document, KeyChange, decode, encode
from forge.versions.operation import operation, sql
from forge.versions.stamps import stamped


def change_identity(connection: Connection, document: int | Document, identity: Mapping[str, Any]) -> KeyChange:
    """Give a document another identity; parts that come from its references may be left out.

    The one that it has already takes no stamp, and the answer has the version that it had.
    """
    number = id_of(document)
    with operation(connection):
        if connection.execute(sql("held"), {"document": number}).fetchone() is None:
            raise unknown(number)
        asked = {"document": number, "identity": encode(identity)}
        row = connection.execute(sql("identity_of"), asked).fetchone()
        assert row is not None
        old, new, differs, contains = row
        if contains is not None:
            raise mismatch(contains)
        if differs:
            above = connection.execute("SELECT forge_versions.hold_dependents(%s)", ([number],)).fetchone()
            with stamped(connection) as stamp:
                connection.execute(sql("identity"), {"document": number, "old": old, "identity": new, "stamp": stamp})
                if above != ([],):
                    connection.execute("SELECT forge_versions.carry(%s, %s)", ([number], stamp))
        found = get(connection, number)
    return KeyChange(found.identity_version, number, found.resource, decode(old), found.identity)
