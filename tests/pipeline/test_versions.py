"""Spark derives the version of every document that PostgreSQL derives, from the database and from a lake."""

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from forge.changelog.install import install as install_log
from forge.cli import main
from forge.embedded import PostgresServer
from forge.errors import HistoryUnavailable, ServerError
from forge.pipeline import session
from forge.pipeline.lake import Lake
from forge.pipeline.run import LakeSettings, pipeline
from forge.pipeline.versions import Corpus, derived, jdbc, of_database, of_lake
from forge.postgres.connection import Connection, connect
from forge.testing import fresh_database
from forge.versions.documents import delete, put
from forge.versions.identity import change_identity
from forge.versions.install import install
from forge.versions.nouns import Resource
from forge.versions.resources import declare

SCHOOL, STUDENT, PLAN = (Resource("ed-fi", name) for name in ("schools", "students", "plans"))
DERIVED = """
SELECT d.id, r.project, r.name, r.version, greatest(d.content_version, d.identity_version, (
    SELECT max(c.identity_version) FROM forge_versions.reference e JOIN forge_versions.document c ON c.id = e.child
    WHERE e.parent = d.id)) FROM forge_versions.document d JOIN forge_versions.resource r ON r.id = d.resource"""
TRANSITIVE = """
WITH RECURSIVE inside (outer_id, id) AS (
    SELECT id, id FROM forge_versions.document
    UNION SELECT i.outer_id, e.child FROM inside i JOIN forge_versions.reference e ON e.parent = i.id AND e.in_identity
), stamp AS (
    SELECT i.outer_id AS id, max(d.identity_version) AS version FROM inside i JOIN forge_versions.document d USING (id)
    GROUP BY 1
)
SELECT d.id, r.project, r.name, r.version, greatest(d.content_version, s.version, (
    SELECT max(c.version) FROM forge_versions.reference e JOIN stamp c ON c.id = e.child WHERE e.parent = d.id))
FROM forge_versions.document d JOIN stamp s USING (id) JOIN forge_versions.resource r ON r.id = d.resource"""


@pytest.fixture(scope="module")
def corpus(servers: object) -> Iterator[tuple[str, Connection]]:
    """Documents that were put, renamed and deleted at random, in a database that is tracked."""
    server: PostgresServer = servers(18)  # type: ignore[operator]
    with fresh_database(server) as url, connect(url) as connection:
        install_log(connection)
        install(connection)
        for table in ("document", "reference", "resource"):
            connection.execute("SELECT forge_enable_reactivity(%s)", (f"forge_versions.{table}",))
        for resource in (SCHOOL, STUDENT, PLAN):
            declare(connection, resource)
        chance = random.Random(5)
        schools = [put(connection, SCHOOL, {"code": n}, {}).document.id for n in range(4)]
        students = [
            put(
                connection, STUDENT, {"n": n}, {}, {"school": chance.choice(schools)}, in_identity={"school"}
            ).document.id
            for n in range(20)
        ]
        plans = [
            put(connection, PLAN, {"p": n}, {"c": 1}, {"of": chance.choice(students), "at": chance.choice(schools)})
            for n in range(30)
        ]
        for n in range(6):
            change_identity(connection, chance.choice(schools), {"code": 100 + n})
        for made in plans[:3]:
            delete(connection, made.document.id)
        yield url, connection


def told(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def asked(connection: Connection, statement: str) -> list[tuple[object, ...]]:
    return sorted(connection.execute(statement.encode()).fetchall())


@pytest.mark.contract("V10")
def test_the_database_by_jdbc(spark: SparkSession, corpus: tuple[str, Connection]) -> None:
    url, connection = corpus
    wanted = asked(connection, DERIVED)
    assert len({row[-1] for row in wanted}) > 10
    with of_database(spark, url) as found:
        put(connection, PLAN, {"p": 0}, {"c": "after the snapshot"})
        assert told(derived(found)) == wanted
    with of_database(spark, url) as found:
        assert told(derived(found)) == asked(connection, DERIVED) != wanted


@pytest.mark.contract("V10")
def test_a_lake(spark: SparkSession, corpus: tuple[str, Connection], lake: Lake, forge: "Forge") -> None:
    url, connection = corpus
    with pytest.raises(HistoryUnavailable, match=r"no table forge_versions\.document"):
        of_lake(spark, lake)
    with pipeline(spark, url, lake, LakeSettings(most=10_000)) as running:
        running.once()
    wanted = asked(connection, DERIVED)
    assert told(derived(of_lake(spark, lake))) == wanted
    said = forge("--lake", lake.path, "--json", "--resource", "ed-fi/plans", "--database-url", NOWHERE)
    assert said.versions == [row for row in in_order(wanted) if row[2] == "plans"], "a lake needs no database"


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def versions(self) -> list[tuple[object, ...]]:
        assert (self.code, self.err) == (0, "")
        return [tuple(json.loads(line).values()) for line in self.out.splitlines()]


Forge = Callable[..., Said]
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def forge(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Forge:
    """`forge pipeline versions` in this process, on the Spark that all tests use."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(session, "session", lambda **_: spark)

    def run(*words: str) -> Said:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", "versions", *words])
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, *capfd.readouterr())

    return run


def in_order(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=lambda row: (row[-1], row[0]))


def test_the_command(forge: Forge, corpus: tuple[str, Connection]) -> None:
    url, connection = corpus
    wanted = in_order(asked(connection, DERIVED))
    database = ("--from-database", "--database-url", url)
    assert forge(*database, "--json").versions == wanted
    middle = wanted[len(wanted) // 2][-1]
    students = [row for row in wanted if row[2] == "students"]
    late = [row for row in students if row[-1] > middle]  # type: ignore[operator]
    assert [] != late != students
    for name in ("students", "ed-fi/students", "ed-fi/students/1"):
        assert forge(*database, "--json", "--resource", name, "--since", str(middle)).versions == late
    shown = forge(*database, "--resource", "ed-fi/students", "--limit", "3")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split() == ["id", "project", "resource", "resource_version", "change_version"]
    assert [int(line.split()[0]) for line in shown.out.splitlines()[1:4]] == [row[0] for row in students[:3]]
    assert "--limit shows more" in shown.out
    for name in ("nothing", "ed-fi/nothing", "other/students", "ed-fi/students/2", "a/b/c/d"):
        said = forge(*database, "--json", "--resource", name)
        assert (said.code, said.out) == (1, "")
        assert "resource" in said.err.splitlines()[0]
        assert len(said.err.splitlines()) == 2


@pytest.mark.contract("V10")
def test_identities_that_contain_others(spark: SparkSession, corpus: tuple[str, Connection]) -> None:
    url, connection = corpus
    with of_database(spark, url) as found:  # where all were stamped it makes no difference
        assert told(derived(found, transitive=True)) == told(derived(found)) == asked(connection, TRANSITIVE)
    connection.execute(
        "UPDATE forge_versions.document SET identity_version = 1000 + id WHERE resource = 1 AND id % 2 = 0"
    )
    with of_database(spark, url) as found:
        closed = told(derived(found, transitive=True))
        assert closed == asked(connection, TRANSITIVE)
        assert closed != told(derived(found))


def test_identities_that_contain_each_other(spark: SparkSession) -> None:
    """Forge refuses them; another system's corpus may have them, and the derivation ends: 3 in 1 in 2 in 1."""
    stamps = [(1, 1, 10, 10), (2, 1, 20, 20), (3, 1, 30, 30), (4, 1, 40, 5)]
    corpus = Corpus(
        spark.createDataFrame(stamps, "id long, resource int, content_version long, identity_version long"),
        spark.createDataFrame(
            [(1, 2, True), (2, 1, True), (1, 3, True), (3, 4, True)], "parent long, child long, in_identity boolean"
        ),
        spark.createDataFrame([(1, "p", "r", "1")], "id int, project string, name string, version string"),
    )
    found = {row.id: row.change_version for row in derived(corpus, transitive=True).collect()}
    assert found == {1: 30, 2: 30, 3: 30, 4: 40}


def test_what_jdbc_cannot_reach_is_said() -> None:
    for url in ("postgresql:///shop?host=/run/postgresql", "postgresql://a,b/shop"):
        with pytest.raises(ServerError, match="JDBC reaches"):
            jdbc(url)
