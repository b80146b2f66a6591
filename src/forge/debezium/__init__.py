"""Debezium's change-event envelope. In: a Change. Out: one JSON object (the value's payload, no schema part).

The `source` block is that of the connector of the change's database (`forge.debezium.connectors`), and so are the forms
of values: PostgreSQL's below, the others' at the end.

The envelope is that of Debezium's PostgreSQL connector on a table with REPLICA IDENTITY FULL, with
`skipped.operations=none`, `decimal.handling.mode=string` and otherwise its defaults:
`time.precision.mode=adaptive`, `interval.handling.mode=numeric`, `binary.handling.mode=bytes`,
`provide.transaction.metadata=false`. Given the table's columns, values take the forms of that connector:

=============================  =====================================================================
numeric                        string; NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY
real, double precision         number; "NaN", "Infinity", "-Infinity"
date                           days since 1970-01-01; infinities are the connector's two constants
timestamp                      microseconds since 1970-01-01, milliseconds if its precision is 3 or less;
                               infinities are the connector's two constants
timestamptz                    ISO 8601 in UTC with Z and as many decimals as the precision; "infinity"
time                           microseconds, or milliseconds, since midnight
interval                       microseconds, a month being 365.25 / 12 days
bytea                          base64
json, jsonb                    string of JSON
bit(1); bit(n)                 boolean; base64 with the lowest byte first
arrays                         lists of such values, literals with other bounds unchanged
anything else                  as in a Change: time with time zone, money, geometry, hstore and
                               arrays of json keep PostgreSQL's text form, which the connector does not
=============================  =====================================================================

Without columns only the values are known: Decimal becomes a string, bytes base64, UNAVAILABLE the
placeholder, a JSON null null, and the rest is unchanged.

Values that a log of Forge lacks are null: `lsn`, `xmin`, and in `sequence` the commit's position; `db` is empty.
`ts_ms` and related fields are the change's own time, so an event is the same whenever it is encoded. What the
envelope has no place for goes to a field `forge`, which consumers ignore and `decode` reads.

For MySQL and MariaDB, with `time.precision.mode=adaptive_time_microseconds`: date, decimal, floats, binary and json as
above; datetime milliseconds, or microseconds beyond precision 3; timestamp ISO 8601 with Z;
an invalid day, such as 0000-00-00, null; time microseconds, signed; bit(1) a boolean, longer bits base64 with the
lowest byte first; geometry base64, where the connector has a struct.
For MongoDB `before` and `after` are texts of extended JSON (`forge.debezium.documents`), with an `updateDescription`.

`decode` inverts `encode` if given the same columns, but an invalid day comes back as None, an interval as
hours, minutes and seconds, and a text that equals the placeholder as UNAVAILABLE.
"""

from forge.debezium.codecs import PLACEHOLDER
from forge.debezium.envelope import Order, decode, encode

__all__ = ["PLACEHOLDER", "Order", "decode", "encode"]
