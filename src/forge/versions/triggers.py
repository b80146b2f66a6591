"""Choose who stamps and journals: the API of `forge.versions`, or triggers, for applications that write with their own
SQL.

    write_by(connection, "trigger")
    connection.execute("UPDATE forge_versions.document SET body = … WHERE resource = 3")

The triggers work on all rows of a statement at once. A statement takes a stamp for its inserts or deletes and for new
identities; changes of bodies and references share one stamp per transaction, as long as no other transaction's stamp
came in between on the same document. The API may be used beside them: the triggers skip what the API stamps.
"""

from typing import Literal

from forge.postgres.connection import Connection
from forge.versions.operation import typed
from forge.versions.switch import sql, switch

Writes = Literal["application", "trigger"]


def write_by(connection: Connection, writes: Writes) -> None:
    """Create or drop the triggers; in every transaction either all statements have them or none."""

    def act() -> None:
        connection.execute(sql(f"writes_{writes}"))
        connection.execute("UPDATE forge_versions.setting SET writes = %s", (writes,))

    switch(connection, act)


def writes(connection: Connection) -> str:
    """Return which of the two is in use."""
    with typed():
        row = connection.execute("SELECT writes FROM forge_versions.setting").fetchone()
    assert row is not None
    return str(row[0])
