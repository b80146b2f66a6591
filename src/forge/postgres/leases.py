"""Leases: elect the one session that does a job, such as maintaining the log or keeping a lake.

In: a connection and the job's name. Out: whether its session does that job. The rows are in `forge.lease`, the protocol
is in `forge.take_lease`, which every caller uses. A session that does such a job is a `forge.postgres.held_session`.
Change versions have the same in their own schema, which also exists without a log.

Invariants:

- A job has at most one holder. It holds the lease until it gives it up or its session ends, for whatever reason; the
  server ends sessions that hold leases and are silent for some seconds.
- Only roles that may write the table are elected. An advisory lock may be taken by any role that may connect.
- The session that works is the one that holds the lease: no work continues after the lease is lost.
- Holding takes no transaction: an idle holder has no xid and no xmin, so it does not hold back vacuum.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from forge.postgres import locks
from forge.postgres.connection import Connection
from forge.postgres.queries import filled, query_file

query: Final = query_file("forge.postgres", "leases.sql")

Schema = Literal["forge", "forge_versions"]

MAINTENANCE: Final = "maintenance"
"""The lease of the session that maintains the log."""
INSTANTS: Final = "instants"
"""The lease of the session that records instants."""


class LeaseHolder(msgspec.Struct, frozen=True):
    """A session that holds a lease or an advisory lock. `client` is None if it is local, or hidden from this role."""

    name: str
    pid: int
    role: str | None
    application: str
    client: str | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        """Return a text for people.

        >>> str(LeaseHolder("maintenance", 4711, "forge", "forge maintenance", "10.0.0.3"))
        'pid 4711, forge maintenance, role forge, from 10.0.0.3'
        """
        parts = [f"pid {self.pid}", self.application, f"role {self.role}" if self.role else ""]
        parts.append(f"from {self.client}" if self.client else "")
        parts.append(f"since {self.since:%Y-%m-%d %H:%M:%S}" if self.since else "")
        return ", ".join(part for part in parts if part)


def take(connection: Connection, name: str, schema: Schema = "forge") -> bool:
    """Take a lease, unless another session holds it. The connection must not be in a transaction."""
    row = connection.execute(f"SELECT {schema}.take_lease(%s)".encode(), (name,)).fetchone()
    return row == (True,)


def give_up(connection: Connection, name: str, schema: Schema = "forge") -> None:
    """Give up a lease, so that another session can take it."""
    connection.execute(f"SELECT {schema}.drop_lease(%s)".encode(), (name,))


def holders(connection: Connection, schema: Schema = "forge") -> list[LeaseHolder]:
    """Return every held lease, by name."""
    rows = connection.execute(filled(query("holders"), {"schema": schema}).encode()).fetchall()
    return [LeaseHolder(*row) for row in rows]


def holder(connection: Connection, name: str, schema: Schema = "forge") -> LeaseHolder | None:
    """Return the session that holds a lease."""
    return next((found for found in holders(connection, schema) if found.name == name), None)


def strangers(connection: Connection) -> list[LeaseHolder]:
    """Return sessions of roles without rights on the log that hold, or wait for, one of Forge's advisory locks.

    A follower may have a role that only reads the log; a role that may not even read it has no reason to use the locks.
    """
    rows = connection.execute(query("strangers"), {"wake": locks.WAKE, "pace": locks.PACE}).fetchall()
    return [LeaseHolder(*row) for row in rows]
