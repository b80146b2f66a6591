"""PostgreSQL's logical replication as a source, kind `wal`: no extension, no trigger, nothing written by the writer.

The server decodes its WAL by pgoutput and sends it over a replication connection; a replication slot keeps what was not
acknowledged. Values have the forms of the trigger log (`forge.capture.wal.texts`). What the WAL does not say: who and
why, unless the writer used `forge.transaction`; the row before an update or delete, unless the table's replica identity
is full (else its key alone); a value stored out of line that did not change (filled in from the trigger log where that
is installed); columns that are generated, before PostgreSQL 18. Those are UNAVAILABLE, never None.

`connection` speaks the protocol, `protocol` and `decode` read messages, `relations` and `texts` compile what decodes a
table's rows, `spool` keeps unfinished transactions, `session` streams over one connection, `snapshot` and `regions`
read what is there without a gap or an overlap, `slot` and `publication` look after the server's side, `source` is all
of it.
"""

from forge.capture.wal.slot import Limits
from forge.capture.wal.source import WalSource

__all__ = ["Limits", "WalSource"]
