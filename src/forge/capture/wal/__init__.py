"""PostgreSQL's logical replication as a source, kind `wal`: no extension, no trigger, no extra writes.

The server decodes its WAL by pgoutput and sends it over a replication connection; a replication slot keeps what was not
acknowledged. Values have the forms of the trigger log (`forge.capture.wal.texts`). The WAL lacks: the actor and the
reason, unless the writer used `forge.transaction`; the row before an update or delete, unless the table's replica
identity is full (else only its key); a value stored out of line that did not change (filled in from the trigger log if
that is installed); generated columns, before PostgreSQL 18. Those are UNAVAILABLE, never None.

`connection` implements the protocol, `protocol` and `decode` read messages, `relations` and `texts` compile the
decoders of a table's rows, `spool` keeps unfinished transactions, `session` streams over one connection, `snapshot` and
`regions` read existing rows without a gap or an overlap, `slot` and `publication` manage the server's side, `source`
combines all of it.
"""

from forge.capture.wal.slot import SlotLimits
from forge.capture.wal.slot import SlotLimits as Limits
from forge.capture.wal.source import WalSource

__all__ = ["Limits", "SlotLimits", "WalSource"]
