"""Copy the change log into a lakehouse on Spark: bronze holds every change, silver each table, gold the aggregates.

    import forge.pipeline

    forge.pipeline.register(spark)
    spark.readStream.format("forge").option("url", url).option("tables", "orders").load()

Only this package imports pyspark and delta.

Invariants:

- Bronze holds every change exactly once, whichever process is killed and when; its batches are those of the stream's
  checkpoint.
- Silver and gold are functions of bronze: a replay gives the same tables, and so does any order of its batches.
- `_seq` orders all changes of a row in a lake; a smaller one never wins over a larger one.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.pipeline.source import register

__all__ = ["register"]


def __getattr__(name: str) -> Any:
    if name == "register":
        from forge.pipeline.source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
