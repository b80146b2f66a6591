"""What the benchmarks of the pipeline share: a Spark of two cores, and changes to read."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from forge.changelog.install import install
from forge.pipeline.jars import jdbc_driver
from forge.pipeline.session import session
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database, temporary_postgres

CORES = 2
HEAP = "4g"
ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL,"
    " total numeric(12, 2) NOT NULL, placed_at timestamptz NOT NULL DEFAULT now(), paid boolean, note text)"
)


@contextmanager
def shop() -> Iterator[tuple[str, Connection]]:
    """A database with a tracked table of orders, on a server that JDBC can reach too."""
    settings = {"fsync": "on", "max_wal_size": "4GB"}
    with (
        temporary_postgres(settings=settings) as server,
        fresh_database(server) as url,
        connect(url) as connection,
    ):
        install(connection)
        connection.execute("SELECT forge.current_identity()")
        connection.execute(ORDERS.encode())
        connection.execute("SELECT forge_enable_reactivity('orders')")
        yield url, connection


@contextmanager
def sparked() -> Iterator[tuple[SparkSession, Path]]:
    """A session of Spark's on two cores, and a folder for lakes, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        conf = {"spark.driver.memory": HEAP, "spark.driver.extraClassPath": str(jdbc_driver())}
        spark = session(master=f"local[{CORES}]", conf=conf, app="forge benchmarks")
        try:
            yield spark, Path(folder)
        finally:
            spark.stop()


def place_orders(connection: Connection, first: int, count: int) -> None:
    """Insert orders, in one statement for each 100,000."""
    for start in range(first, first + count, 100_000):
        end = min(start + 100_000, first + count) - 1
        connection.execute(
            "INSERT INTO orders SELECT i, i %% 5000, 'placed', (i %% 10000) / 100.0, now(), false, 'order number ' || i"
            " FROM generate_series(%s::bigint, %s::bigint) i",
            (start, end),
        )


def pay_orders(connection: Connection, first: int, count: int) -> None:
    """Update orders, in one statement for each 100,000."""
    for start in range(first, first + count, 100_000):
        end = min(start + 100_000, first + count) - 1
        connection.execute("UPDATE orders SET status = 'paid', paid = true WHERE id BETWEEN %s AND %s", (start, end))
