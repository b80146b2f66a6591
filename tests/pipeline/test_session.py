"""Sessions: all of Delta from two jars, and what the caller sets holds. That they are quiet is in test_whole_lake."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from pyspark.sql import Row, SparkSession

from forge.pipeline.lake import Lake
from forge.pipeline.session import packed, session, settings, with_delta


def test_delta_has_all_that_the_pipeline_uses(spark: SparkSession, lake: Lake) -> None:
    table = f"delta.`{lake.changes}`"
    spark.sql(f"""
        CREATE TABLE {table} (id int, kept string, renamed string, data variant) USING delta
        TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true',
                       'delta.enableTypeWidening' = 'true', 'delta.checkpointInterval' = '2')
    """)
    spark.sql(f"""INSERT INTO {table} SELECT int(id), 'a', 'b', parse_json('{{"n": 1}}') FROM range(4)""")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    spark.sql(f"""
        MERGE INTO {table} t USING (SELECT int(id) AS id FROM range(2, 6)) s ON t.id = s.id
        WHEN MATCHED AND s.id = 2 THEN DELETE
        WHEN MATCHED THEN UPDATE SET kept = 'merged'
        WHEN NOT MATCHED THEN INSERT (id, kept) VALUES (s.id, 'new')
    """)
    changes = spark.sql(f"SELECT _change_type, count(*) FROM table_changes_by_path('{lake.changes}', 3) GROUP BY 1")
    assert dict(changes.collect()) == {"delete": 1, "insert": 2, "update_preimage": 1, "update_postimage": 1}
    detail = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]
    assert {"columnMapping", "deletionVectors", "typeWidening", "variantType"} <= set(detail["tableFeatures"])

    spark.sql(f"ALTER TABLE {table} ALTER COLUMN id TYPE bigint")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN renamed TO `new name`")
    spark.sql(f"INSERT INTO {table} (id, kept) VALUES ({2**40}, 'wide')")
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"VACUUM {table}")
    rows = spark.sql(
        f"SELECT id, kept, `new name` AS n, variant_get(data, '$.n', 'int') AS data FROM {table} ORDER BY id"
    )
    assert rows.collect() == [
        Row(id=0, kept="a", n="b", data=1),
        Row(id=1, kept="a", n="b", data=1),
        Row(id=3, kept="merged", n="b", data=1),
        Row(id=4, kept="new", n=None, data=None),
        Row(id=5, kept="new", n=None, data=None),
        Row(id=2**40, kept="wide", n=None, data=None),
    ]


def test_a_running_session_is_given_again(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert session(conf={"spark.sql.shuffle.partitions": "7"}).sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


def test_a_jvm_that_does_not_start_is_said() -> None:
    command = "from forge.pipeline.session import session; session(conf={'spark.driver.memory': '1k'})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=250)
    *_, error, fix = done.stderr.strip().splitlines()
    assert error.startswith("forge.errors.SparkUnavailable: Spark's JVM did not start: Error")
    assert fix.startswith("fix: ")


def test_the_cluster_decides_how_many_partitions() -> None:
    local, cluster = settings("local[3]"), settings("spark://head:7077")
    assert local["spark.databricks.delta.snapshotPartitions"] == "3"
    assert not {name for name in cluster if "artition" in name or "driver.host" in name or "bindAddress" in name}


def test_jars_of_the_caller_stay() -> None:
    assert with_delta({"spark.jars": "mine.jar"}).startswith("mine.jar,")
    assert "delta-spark" in with_delta({"spark.jars": "mine.jar"})
    assert with_delta({"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}) == ""


def test_forge_runs_from_its_zip(tmp_path: Path) -> None:
    path = packed(tmp_path / "forge.zip")
    command = """
import forge.pipeline.changes
from forge.changelog.queries import query
print(forge.__file__, query("head") != "")
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", command],
        env={"PYTHONPATH": f"{path}:{sysconfig.get_path('purelib')}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == f"{path}/forge/__init__.py True\n", done.stderr
