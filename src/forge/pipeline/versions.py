"""Derive the change versions of all documents: take documents and references, return a frame of versions.

    with of_database(spark, url) as corpus:
        derived(corpus).write.parquet("versions")
    derived(of_lake(spark, lake)).where("change_version > 1000").show()

The results equal those that `forge.versions` derives page by page: the greatest of a document's own two stamps and of
the identity stamps of the documents that it refers to. A database is read at one snapshot, by any number of tasks; a
lake is read as of its last batch.

With `transitive`, an identity that contains another counts as changed when the contained one did, recursively. This
makes no difference where Forge wrote the documents, because it stamps all documents whose identity changed; the corpus
of another system may differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Final, NamedTuple
from urllib.parse import quote

from psycopg import conninfo
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from forge.errors import HistoryUnavailable, ServerError, UnknownResource
from forge.pipeline.lake import Lake
from forge.pipeline.tables import exists, load
from forge.postgres import session
from forge.postgres.connection import Connection, connect
from forge.versions.install import require_installed
from forge.versions.nouns import Resource

SCHEMA: Final = "forge_versions"
_DOCUMENTS: Final = ("id", "resource", "content_version", "identity_version")
_REFERENCES: Final = ("parent", "child", "in_identity")
_RESOURCES: Final = ("id", "project", "name", "version")


class Corpus(NamedTuple):
    """The input for deriving versions."""

    documents: DataFrame
    references: DataFrame
    resources: DataFrame


def derived(corpus: Corpus, *, transitive: bool = False) -> DataFrame:
    """Return per document `id`, `project`, `resource`, `resource_version` and `change_version`."""
    documents = corpus.documents.select(*_DOCUMENTS)
    identities = documents.select(F.col("id").alias("child"), F.col("identity_version").alias("stamp"))
    if transitive:
        identities = _closed(identities, corpus.references)
    of_children = (
        corpus.references.select("parent", "child")
        .join(identities, "child")
        .groupBy(F.col("parent").alias("id"))
        .agg(F.max("stamp").alias("dependency"))
    )
    own = F.greatest("content_version", "identity_version", "dependency")  # greatest() ignores a dependency of null
    if transitive:
        own = F.greatest(own, "stamp")
        documents = documents.join(identities.withColumnRenamed("child", "id"), "id")
    resources = corpus.resources.select(
        F.col("id").alias("resource"), "project", F.col("name"), F.col("version").alias("resource_version")
    )
    return (
        documents.join(of_children, "id", "left")
        .withColumn("change_version", own)
        .join(F.broadcast(resources), "resource")
        .select("id", "project", F.col("name").alias("resource"), "resource_version", "change_version")
    )


def of_resource(corpus: Corpus, name: str) -> Column:
    """Return the condition that a derived version belongs to a resource; raise UnknownResource when there is none of
    that name.

    The name is `project/name` or `project/name/version`; a name alone matches every project and version.
    """
    if "/" in name:
        one = Resource.parse(name)
        wanted = {"project": one.project, "resource": one.name, "resource_version": one.version}
    else:
        wanted = {"resource": name}
    here = {"project": "project", "resource": "name", "resource_version": "version"}
    if corpus.resources.where(_equal({here[column]: value for column, value in wanted.items()})).isEmpty():
        raise UnknownResource(f"there is no resource {name[:60]!r} here", fix="declare it, or correct its name")
    return _equal(wanted)


def _equal(values: dict[str, str]) -> Column:
    return reduce(Column.__and__, (F.col(column) == F.lit(value) for column, value in values.items()))


def _closed(identities: DataFrame, references: DataFrame) -> DataFrame:
    """Return the stamps of identities, raised to the greatest stamp of everything that they contain.

    Each round goes from the identities whose stamp rose in the last round to those that contain them: the number of
    rounds is the greatest depth, and identities that contain each other end the loop too.
    """
    own = identities.select(F.col("child").alias("parent"), F.col("stamp").alias("own"))
    edges = references.where("in_identity").select("parent", "child").distinct().join(own, "parent").localCheckpoint()
    risen = _risen(edges, identities).localCheckpoint()
    reached = risen
    while not risen.isEmpty():
        raised = reached.select(F.col("child").alias("parent"), F.col("stamp").alias("reached"))
        through = _risen(edges, risen).withColumnRenamed("child", "parent").join(raised, "parent", "left")
        risen = through.where("reached IS NULL OR stamp > reached").select(F.col("parent").alias("child"), "stamp")
        risen = risen.localCheckpoint()
        reached = reached.unionByName(risen).groupBy("child").agg(F.max("stamp").alias("stamp")).localCheckpoint()
    return identities.join(reached.withColumnRenamed("stamp", "of"), "child", "left").select(
        "child", F.greatest("stamp", "of").alias("stamp")
    )


def _risen(edges: DataFrame, of: DataFrame) -> DataFrame:
    """Return the containers of these identities that have a smaller stamp, with the greatest contained stamp."""
    through = edges.join(of, "child").where("own IS NULL OR stamp > own")
    return through.groupBy(F.col("parent").alias("child")).agg(F.max("stamp").alias("stamp"))


def of_lake(spark: SparkSession, lake: Lake) -> Corpus:
    """Read the corpus from a lake that mirrors the tables of change versions."""
    names = [f"{SCHEMA}.{table}" for table in ("document", "reference", "resource")]
    for name in names:
        if not exists(spark, lake.current(name)):
            raise HistoryUnavailable(
                f"the lake has no table {name}",
                fix=f"forge enable {' '.join(names)}, then forge pipeline run; or read the database",
                oldest=None,
            )
    documents, references, resources = (load(spark, lake.current(name)) for name in names)
    return Corpus(documents, references, resources)


@contextmanager
def of_database(spark: SparkSession, url: str, tasks: int | None = None) -> Iterator[Corpus]:
    """Read the corpus from a database by PostgreSQL's JDBC driver, at one snapshot that is held for this block.

    The session needs the driver: in `spark.jars`, or in the class paths of driver and executors.
    """
    with connect(url, application_name="forge versions") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        require_installed(connection)
        ((snapshot,),) = connection.execute("SELECT pg_export_snapshot()").fetchall()
        reading = _Reading(spark, url, snapshot, tasks or spark.sparkContext.defaultParallelism)
        yield Corpus(
            reading.table(connection, "document", _DOCUMENTS, "id"),
            reading.table(connection, "reference", _REFERENCES, "parent"),
            reading.table(connection, "resource", _RESOURCES, "id"),
        )


# The JDBC driver itself sets what texts depend on; the timeouts of the role must not limit a read.
_TIMEOUTS: Final = tuple(name for name in session.OWN if name.endswith("_timeout"))


class _Reading:
    """Read tables of a database by JDBC, split by ranges of a column, all at one snapshot."""

    def __init__(self, spark: SparkSession, url: str, snapshot: str, tasks: int) -> None:
        self._spark = spark
        self._address, self._properties = jdbc(url)
        self._snapshot = snapshot
        self._tasks = tasks

    def table(self, connection: Connection, table: str, columns: tuple[str, ...], by: str) -> DataFrame:
        name = f"{SCHEMA}.{table}"
        row = connection.execute(f"SELECT min({by}), max({by}) FROM {name}".encode()).fetchone()
        first, last = row if row and row[0] is not None else (0, 0)
        known = connection.execute("SELECT name FROM pg_settings WHERE name = ANY (%s)", (list(_TIMEOUTS),)).fetchall()
        begin = "; ".join(
            [
                *(f"SET {setting} = 0" for (setting,) in known),
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
                f"SET TRANSACTION SNAPSHOT '{self._snapshot}'",
            ]
        )
        return (
            self._spark.read.format("jdbc")
            .options(**self._properties)
            .option("url", self._address)
            .option("driver", "org.postgresql.Driver")
            .option("dbtable", f"(SELECT {', '.join(columns)} FROM {name}) t")
            .option("sessionInitStatement", begin)
            .option("partitionColumn", by)
            .option("lowerBound", first)
            .option("upperBound", last + 1)
            .option("numPartitions", self._tasks)
            .option("fetchsize", 10_000)
            .load()
        )


def jdbc(url: str) -> tuple[str, dict[str, str]]:
    """Return a database's address as a JDBC URL, and its credentials; raise ServerError for an address that JDBC cannot
    reach.

    >>> jdbc("postgresql://ada:s3cret@db.example:5433/shop?sslmode=require")
    ('jdbc:postgresql://db.example:5433/shop?sslmode=require', {'user': 'ada', 'password': 's3cret'})
    """
    given = conninfo.conninfo_to_dict(url)
    host = str(given.get("hostaddr") or given.get("host") or "localhost")
    if host.startswith(("/", "@")) or "," in host:
        raise ServerError(
            "JDBC reaches a database by one host and port, and this is named by a socket or several hosts",
            fix="give a URL with a host, or read from the lake",
        )
    who = {name: str(given[name]) for name in ("user", "password") if given.get(name)}
    address = f"jdbc:postgresql://{host}:{given.get('port') or 5432}/{quote(str(given.get('dbname') or ''))}"
    return (address if "sslmode" not in given else f"{address}?sslmode={given['sslmode']}"), who
