"""A redaction in the log is one in the lake: the values are nowhere any more, and the lake is still the database."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forge.history.redact import redact
from forge.pipeline import bronze, redaction
from forge.pipeline.compare import compare
from forge.pipeline.gold.audit import audit
from forge.pipeline.lake import Lake
from forge.pipeline.maintain import paths
from forge.pipeline.run import LakeSettings, pipeline
from forge.pipeline.silver.replay import replay
from forge.pipeline.tables import load
from forge.postgres.connection import Connection

TABLE = "public.customers"
BY_EMAIL = """-- key: email
-- keys: SELECT DISTINCT email FROM customers_changed
SELECT email, count(*) AS versions FROM customers_history GROUP BY email
"""


def read(spark: SparkSession, path: str) -> str:
    """All that a table has, as one text."""
    return repr(load(spark, path).collect())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_redaction_takes_values_out_of_the_whole_lake(
    spark: SparkSession,
    database: str,
    lake: Lake,
    connection: Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "by_email.sql").write_text(BY_EMAIL)

    def once() -> None:
        with pipeline(spark, database, lake, LakeSettings(models=str(models))) as running:
            running.once()

    def history(of: Callable[[Any], object]) -> list[object]:
        return [of(row) for row in load(spark, lake.history(TABLE)).orderBy("_seq", "id").collect()]

    write = connection.execute
    write("select forge.current_identity()")
    write("create table customers (id int primary key, name text, email text, born int, score numeric(5,2))")
    write("insert into customers values (1, 'from before', 'secret@early', 1900)")
    write("select forge_enable_reactivity('customers')")
    write(
        "insert into customers values (5, 'Ada', 'secret@one', 180000815, 1), (8, 'Grace', 'secret@nan', 1906, 'NaN')"
    )
    write("update customers set id = 7 where id = 5")
    write("insert into customers values (5, 'Alan', 'kept@alan', 1912, 1)")
    write("update customers set email = 'secret@two', born = 180000816 where id = 7")
    write("update customers set email = 'secret@grace', score = 1 where id = 8")
    once()
    assert "secret@one" in read(spark, lake.gold("by_email"))
    assert "secret@nan" in read(spark, lake.quarantine)

    # Ada's row is emptied first; Grace's and the oldest still are in the database, and so in current
    write("update customers set email = null where id = 7")
    for key in (7, 8, 1):
        redact(connection, "customers", key, ["email", "born", "score"], reason="request 4711", by="dpo")
    noted = [version.version for version in bronze.definitions(spark, lake).values()]

    def killed(*_: object) -> None:
        raise RuntimeError("between bronze and silver")

    with monkeypatch.context() as patched:
        patched.setattr(redaction, "take_out_of_history", killed)
        with pytest.raises(RuntimeError):
            once()
    once()

    found = {place: read(spark, path) for place, path in paths(spark, lake).items()}
    holding = {place for place, text in found.items() if "secret@" in text}
    assert holding == {"silver/current/public.customers"}
    assert not any("180000815" in text or "NaN" in text for text in found.values())
    assert "kept@alan" in found["bronze/changes"], "another one has the key that Ada had"
    living = {row["id"]: row for row in load(spark, lake.current(TABLE)).collect()}
    assert {id: row["email"] for id, row in living.items()} == {
        1: "secret@early",
        5: "kept@alan",
        7: None,
        8: "secret@grace",
    }
    assert compare(spark, lake, database).equal
    gone = ["born", "email", "score"]
    assert {
        (row["id"], row["email"], tuple(row["_redacted"] or ())) for row in load(spark, lake.history(TABLE)).collect()
    } == {
        (1, None, tuple(gone)),
        (5, "kept@alan", ()),
        (5, None, tuple(gone)),
        (7, None, tuple(gone)),
        (8, None, tuple(gone)),
    }
    emails = {row["email"]: row["versions"] for row in load(spark, lake.gold("by_email")).collect()}
    assert emails.keys() == {None, "kept@alan"}
    audited = [
        (each["column"], each["old"], each["new"])
        for row in audit(spark, lake, table="customers", key=8).collect()
        for each in row["changed"]
        if each["column"] in gone
    ]
    assert set(audited) == {(column, None, None) for column in gone}

    # once more, and from bronze alone: all the same
    before, versions = history(repr), {path: _version(spark, path) for path in paths(spark, lake).values()}
    known = bronze.definitions(spark, lake)
    assert sorted(known) == sorted(noted)
    redaction.obey(spark, lake, known, load(spark, lake.changes))
    assert {path: _version(spark, path) for path in versions} == versions
    replay(spark, lake, TABLE)
    assert history(repr) == before
    assert {row["id"]: row for row in load(spark, lake.current(TABLE)).collect()} == living


def _version(spark: SparkSession, path: str) -> int:
    row = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()
    assert row is not None
    return int(row["version"])
