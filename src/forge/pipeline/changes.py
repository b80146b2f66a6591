"""The frame of changes: the output of every input of the pipeline, and the content of bronze.

A row is one Change with its images as JSON text exactly as the log has them (`forge.values` decodes them). `seq` is
sortable text: of two changes of one row the later one has the larger `seq`, across all inputs of a lake:

- `gggg` + `pppppppppppppppp` [+ `iiiiiiiiiiiiiiii`], in hexadecimal digits, for a logged change: its generation, its
  position in the order of the log, and its id where that differs from the position.
- `gggg!` for a row of a snapshot (op `read`), and `gggg!` + a counter in a table without a key, where rows may be
  equal; `gggg` alone for the row (op `snapshot`) that announces the snapshot; `gggg!` also for the event (op
  `invalidate`) that says that rows of the snapshot are unknown.

Each snapshot that a stream takes begins a generation. The generation of a logged change is the number of snapshots that
do not show it, so the rows of a snapshot sort after all changes that it shows and before all that it does not show.
Generation 0 is everything before the first snapshot.

>>> seq(1, 255), seq(1, 255, 256), seq_of_read(2), seq_of_read(2, 7)
('000100000000000000ff', '000100000000000000ff0000000000000100', '0002!', '0002!000000000007')
>>> seq_of_read(1) < seq_of_read(1, 1) < seq(1, 0) < seq(1, 1) < seq(1, 1, 2) < seq(1, 2) < seq_of_read(2)
True
"""

from typing import Final

from pyspark.sql.types import (
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

CHANGES: Final = StructType(
    [
        StructField("seq", StringType(), False),
        StructField("id", StringType(), False),
        StructField("op", StringType(), False),
        StructField("schema", StringType(), False),
        StructField("table", StringType(), False),
        StructField("version", IntegerType(), False),
        StructField("row_id", StringType()),
        StructField("before", StringType()),
        StructField("after", StringType()),
        StructField("hidden", StringType()),
        StructField("at", TimestampType(), False),
        StructField("transaction", LongType()),
        StructField("user_id", StringType()),
        StructField("function_name", StringType()),
        StructField("trace_id", StringType()),
        StructField("context", StringType()),
        StructField("session_user", StringType()),
        StructField("application_name", StringType()),
    ]
)
"""`op` is a value of `forge.change.Op`; `version` names a definition (`forge.pipeline.definitions`); `hidden` is a JSON
array of names or null; `transaction` is null for rows of a snapshot and for sources without such numbers."""

BRONZE: Final = StructType(
    [*CHANGES.fields, StructField("day", DateType(), False), StructField("batch", LongType(), False)]
)
"""Changes as stored in bronze: `day` is the UTC day of `at`, the partition; `batch` is the batch that brought the
change."""


def seq(generation: int, place: int, id: int | None = None) -> str:
    """Return the `seq` of a logged change; `id` is given when it differs from the position."""
    return f"{generation:04x}{place:016x}" + ("" if id is None or id == place else f"{id:016x}")


def seq_of_read(generation: int, counter: int | None = None) -> str:
    """Return the `seq` of a row of a snapshot."""
    return f"{generation:04x}!" + ("" if counter is None else f"{counter:012d}")
