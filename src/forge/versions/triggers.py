"""Who stamps and journals: the API of `forge.versions`, or triggers, for applications that write by SQL of their own.

    write_by(connection, "trigger")
    connection.execute("UPDATE forge_versions.document SET body = … WHERE resource = 3")

The triggers work on all rows of a statement at once. A statement takes a stamp for what it inserts or deletes and for
new identities; changes of bodies and references share one in a transaction, as long as no other transaction's stamp
came in between on the same document. The API may be used beside them: the triggers leave to it what it stamps itself.
"""

from typing import Literal

from forge.postgres.connection import Connection
from forge.versions.operation import typed
from forge.versions.switch import sql, switch

Writes = Literal["application", "trigger"]


def write_by(connection: Connection, writes: Writes) -> None:
    """Make or drop the triggers; every transaction has either all of its statements with them or none."""

    def act() -> None:
        connection.execute(sql(f"writes_{writes}"))
        connection.execute("UPDATE forge_versions.setting SET writes = %s", (writes,))

    switch(connection, act)


def writes(connection: Connection) -> str:
    """Which of the two it is."""
    with typed():
        row = connection.execute("SELECT writes FROM forge_versions.setting").fetchone()
    assert row is not None
    return str(row[0])
