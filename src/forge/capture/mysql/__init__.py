"""MySQL and MariaDB as a source: a snapshot of the tables, then the binary log as changes.

In: the URL of a server with `log_bin`, `binlog_format=ROW` and `binlog_row_image=FULL`. Out: a source
(`forge.capture.source`) whose cursors are places in that log. A value has the same form from a snapshot and from the
log, and none depends on a session's settings:

==================================  ==========================================================================
MySQL, MariaDB                      in a Change
==================================  ==========================================================================
NULL                                None; a column that was not logged is UNAVAILABLE
integers, signed and not, year      int; `boolean` is tinyint(1), so 0 and 1; the year 0000 is 0
decimal                             Decimal, with its scale
float                               float, the one that its shortest text names
double                              float
bit(n)                              str of n digits 0 and 1
char, varchar, text                 str, from any character set; bytes where they are no text in it
enum                                str; '' for a value that was none of them
set                                 str, its words with commas in between, in the order of the definition
binary, varbinary, blob, vector     bytes; binary(n) with the zeros at its end
date                                str, ISO 8601; zero dates as they are: '0000-00-00', '2026-00-00'
datetime                            str, ISO 8601, without zeros at the end of the fraction
timestamp                           str, ISO 8601 in UTC; '0000-00-00T00:00:00+00:00' for the zero timestamp
time                                str, '-838:59:59' to '838:59:59', with the fraction that it has
json                                MySQL: decoded, as PostgreSQL's jsonb; MariaDB: str, as that is a text there
geometry                            bytes: four of the SRID, then WKB
uuid, inet4, inet6                  str
==================================  ==========================================================================

The modules, from the socket up: `address` connects, `feed` reads raw events, `tables` reads the maps of tables and
`rows` their rows, `changes` is the state machine over events, `tail` the thread that runs it, `snapshot` reads tables,
`source` combines them. `catalog` and `view` query the server, `settings` checks it.
"""

from forge.capture.mysql.comments import comment
from forge.capture.mysql.source import MysqlSource

__all__ = ["MysqlSource", "comment"]
