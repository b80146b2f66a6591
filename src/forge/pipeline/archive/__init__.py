"""Archives, the second input of the pipeline: files of changes become the same frame as the live log.

    from forge.pipeline import archive

    found = archive.read(spark, "s3a://backups/changes/", definitions=lake_definitions)
    found.changes, found.definitions, found.refused

What may lie in the files, all of it mixed:

- JSON lines, plain or compressed, or Parquet with such JSON in a column `value` (and in `key` the message's key):
  changes in Forge's wire form, as `forge tail --format json` prints them, or events in Debezium's envelope, bare or
  with their schema part, of the connectors for PostgreSQL, MySQL, MariaDB and SQL Server.
- Parquet with the columns of CHANGES: a copy of the lake's own bronze.

What always holds:

- Nothing is rounded: an image holds exactly the values that were archived, in the log's own form.
- A change of Forge's log has the `seq` and the `id` that it has when it comes by the stream, so it is one change.
- A line is a change, or nothing (a tombstone, an empty line), or refused with a reason. No line stops the others.
- The same files give the same rows and the same definitions, however Spark divides them.
"""

from forge.pipeline.archive.archive import Archive, read
from forge.pipeline.archive.files import import_id

__all__ = ["Archive", "import_id", "read"]
