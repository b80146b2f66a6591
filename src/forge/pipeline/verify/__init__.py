"""Compare a lake with its database at one snapshot: counts and hashes of rows by slice, then the rows that differ.

Both sides hash each row by the same text (`forge.pipeline.silver.texts`): Spark builds it from the typed columns of the
lake, PostgreSQL from the rows as of the snapshot, so the comparison is exact under concurrent writes. Slices with the
same count and sum of hashes are equal; only the rows of the others are fetched, as keys and hashes, and compared. A row
that differs because it did not fit its types, and whose quarantined version equals the database, is reported as such.

Excluded columns are on neither side; masked ones are compared in masked form. A variant is not compared: it does not
keep its original text.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from forge.changelog.queries import query
from forge.cursor import Snapshot
from forge.errors import HistoryUnavailable, LakeError, NotInstalled
from forge.pipeline import bronze
from forge.pipeline.lake import Lake
from forge.pipeline.silver.layout import in_order
from forge.pipeline.silver.names import silver_names
from forge.pipeline.source.statements import source_query
from forge.pipeline.tables import exists
from forge.pipeline.verify.report import RowDifference, TableReport, VerifyReport
from forge.pipeline.verify.sides import InDatabase
from forge.pipeline.verify.table import compare
from forge.postgres.connection import connect, typed_errors

__all__ = ["RowDifference", "TableReport", "VerifyReport", "verify"]


def verify(
    spark: SparkSession,
    lake: Lake,
    url: str,
    tables: Sequence[str] | None = None,
    *,
    snapshot: str,
    slices: int = 64,
) -> VerifyReport:
    """Compare tables, by default all that are tracked and in the lake, as of a snapshot of the database.

    The snapshot is the lake's position; the lake must not advance during the comparison. HistoryUnavailable is raised
    when the log cannot reconstruct a table at the snapshot, because it was truncated or redefined since; after the next
    batch it can.
    """
    known = bronze.definitions(spark, lake)
    reports: list[TableReport] = []
    with typed_errors(), connect(url) as connection:
        identity = connection.execute(query("identity")).fetchone()
        if identity is None:
            raise NotInstalled("Forge is not installed in this database", fix="forge init")
        wanted = list(tables) if tables is not None else None
        tracked = connection.execute(source_query("tracked"), {"tables": wanted}).fetchall()
        for name in wanted or ():
            if not any(name in (each[2], f"{each[1]}.{each[2]}") for each in tracked):
                raise LakeError(f"the table {name} is not tracked", fix=f"forge enable {name}, or leave it out")
        for number, schema, table, *_ in tracked:
            name = f"{schema}.{table}"
            if not exists(spark, lake.current(name)):
                if wanted is None:
                    continue
                raise LakeError(f"the lake has no table {name}", fix="forge pipeline run --once")
            own = in_order(each for each in known.values() if each.name == name)
            names = silver_names(dict.fromkeys(column.name for each in own for column in each.columns))
            with connection.transaction():
                there = InDatabase(connection, number, Snapshot.parse(snapshot), identity[3])
                if there.version not in known:
                    raise HistoryUnavailable(
                        f"{name} was defined again since the lake's last batch",
                        fix="forge pipeline run --once, then ask again",
                    )
                reports.append(compare(spark, lake, known[there.version], names, there, slices))
    return VerifyReport(snapshot, reports)
