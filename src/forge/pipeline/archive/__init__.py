"""Archives, the second input of the pipeline: files of changes become the same frame as the live log.

    from forge.pipeline import archive

The files may contain any mix of:

- JSON lines, plain or compressed, or Parquet with such JSON in a column `value` (and the message's key in `key`):
  changes in Forge's wire form, as `forge tail --format json` prints them, or events in Debezium's envelope, with or
  without their schema part, from the connectors for PostgreSQL, MySQL, MariaDB and SQL Server.
- Parquet with the columns of CHANGES: a copy of the lake's own bronze.

Invariants:

- Nothing is rounded: an image holds exactly the archived values, in the log's own form.
- A change of Forge's log has the same `seq` and `id` as when it comes by the stream, so it is the same change.
- A line is a change, or empty (a tombstone, an empty line), or refused with a reason. No line stops the others.
- The same files give the same rows and the same definitions, however Spark partitions them.
"""

from forge.pipeline.archive.archive import Archive, read
from forge.pipeline.archive.files import import_id

__all__ = ["Archive", "import_id", "read"]
