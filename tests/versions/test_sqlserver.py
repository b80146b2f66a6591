"""SQL Server's files: T-SQL to two parsers of that dialect, with the tables of PostgreSQL's.

What they do is tested by test_stores.py and test_sqlserver_triggers.py, where a server is named.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import ErrorLevel, exp

from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.postgres.queries import queries
from forge.versions.access import grant, revoke
from forge.versions.available import available
from forge.versions.documents import find
from forge.versions.nouns import Deletion, Event, KeyChange, Page, Resource, Upsert
from forge.versions.reading import changes, deletes, key_changes, stream
from forge.versions.resources import declare, resource_id
from forge.versions.strategies import Strategy, use_strategy
from tests.versions.mssql import batches as cut_batches
from tests.versions.school import PLANS, STUDENTS, changed, school_database
from tests.versions.tsql import tsql_parser

FOLDER = files("forge.versions").joinpath("sql", "sqlserver")
FILES = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".sql"))
SCRIPTS = [name for name in FILES if name != "queries.sql"]

PARAMETERS = (
    "DECLARE @resource integer, @min bigint, @max bigint, @after_version bigint, @after_document bigint,"
    " @after_kind integer, @limit integer, @subject nvarchar(256), @documents nvarchar(max);"
)
AFTER = ("after_version", "after_document", "after_kind")

# What sqlglot does not know, each with something of the same shape that it does.
UNKNOWN = (
    (re.compile(r"CREATE OR ALTER TRIGGER (\S+) ON \S+ AFTER (\w+)(, \w+)*\s+AS"), "trigger"),
    (re.compile(r";THROW( 5\d{4}, N'[^']+', 1)?;"), "RETURN;"),
    (re.compile(r"END TRY\s+BEGIN CATCH"), "END; IF 1 = 1 BEGIN"),
    (re.compile(r"BEGIN TRY"), "IF 1 = 1 BEGIN"),
    (re.compile(r"END CATCH"), "END"),
    (re.compile(r"CREATE PARTITION FUNCTION \w+ \(bigint\) AS RANGE RIGHT FOR VALUES \([\d, ]+\);"), "SELECT 1;"),
    (re.compile(r"CREATE PARTITION SCHEME (\w+) AS PARTITION \1 ALL TO \(\[PRIMARY\]\);"), "SELECT 1;"),
    (re.compile(r"ALTER PARTITION SCHEME \w+ NEXT USED \[PRIMARY\];"), "SELECT 1;"),
    (re.compile(r"ALTER PARTITION FUNCTION \w+\(\) (SPLIT|MERGE) RANGE \(@\w+\);"), "SELECT 1;"),
)


def batches(name: str) -> list[str]:
    """The batches of a script, as sqlcmd cuts them."""
    text = FOLDER.joinpath(name).read_text("utf-8")
    assert text.endswith("GO\n")
    return cut_batches(text)


def parsed(batch: str) -> list[exp.Expr]:
    for pattern, plain in UNKNOWN:
        batch = pattern.sub(r"CREATE OR ALTER PROCEDURE \1 AS" if plain == "trigger" else plain, batch)
    found = sqlglot.parse(batch, dialect="tsql", error_level=ErrorLevel.RAISE)
    return [expression for expression in found if expression is not None]


def inner(batch: str) -> Iterator[str]:
    """Every subquery of a batch: the parser does not look into the conditions of its IF and WHILE."""
    for start in re.finditer(r"\((?=\s*SELECT\b)", batch):
        depth = 0
        for at in range(start.start(), len(batch)):
            depth += {"(": 1, ")": -1}.get(batch[at], 0)
            if not depth:
                yield batch[start.end() : at]
                break
        assert not depth, batch[start.start() :]


def every_batch() -> Iterator[tuple[str, int, str]]:
    for name in SCRIPTS:
        yield from ((name, number, batch) for number, batch in enumerate(batches(name)))


@pytest.mark.contract("V9")
def test_every_batch_is_tsql(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sqlglot"):
        for name, number, batch in every_batch():
            expressions = [*parsed(batch), *(found for part in inner(batch) for found in parsed(part))]
            assert expressions, (name, number)
            for expression in expressions:
                assert not list(expression.find_all(exp.Command)), (name, number, expression.sql()[:100])
    assert not caplog.records  # a statement that it does not know, it says and passes on as text


@pytest.mark.contract("V9")
@pytest.mark.parametrize("name", sorted(queries("forge.versions", "sql/sqlserver/queries.sql")))
def test_every_page_query_is_one_statement_of_tsql(name: str) -> None:
    text = queries("forge.versions", "sql/sqlserver/queries.sql")[name]
    (expression,) = parsed(text)
    assert isinstance(expression, exp.Select)
    asked = {parameter.name for parameter in expression.find_all(exp.Parameter)}
    pages = {"resource", "min", "max", "after_version", "after_document", "limit"}
    wanted = {
        "references": {"documents"},
        "standing": {"resource"},
        "stream": pages | {"after_kind"},
        "everything": {"resource", "max", "after_document", "limit"},
    }.get(name.removesuffix("_of_subject"), pages)
    assert asked == wanted | ({"subject"} if name.endswith("_of_subject") else set())


def test_a_mistake_is_seen() -> None:
    with pytest.raises(sqlglot.ParseError):
        parsed("SELECT TOP (@limit a FROM forge_versions.document")


def test_microsofts_own_parser_takes_it(tmp_path: Path) -> None:
    program = os.environ.get("FORGE_TEST_TSQL")
    if program is None:
        pytest.skip("FORGE_TEST_TSQL names no MicrosoftSqlToolsServiceLayer: see tests/versions/tsql.py")
    with tsql_parser(Path(program), tmp_path) as parser:
        assert parser.problems("mistake.sql", "SELECT TOP (@limit a FROM forge_versions.document")
        for name in SCRIPTS:
            assert parser.problems(name, FOLDER.joinpath(name).read_text("utf-8")) == []
        for name, text in queries("forge.versions", "sql/sqlserver/queries.sql").items():
            assert parser.problems(f"{name}.sql", f"{PARAMETERS}\n{text};\n") == []


@pytest.mark.contract("V9")
def test_it_has_the_tables_of_postgresql() -> None:
    postgresql = FOLDER.joinpath("..", "postgresql", "schema.sql").read_text("utf-8")
    theirs = columns(sqlglot.parse(cut(postgresql), dialect="postgres"))
    ours = columns([expression for batch in batches("schema.sql") for expression in parsed(batch)])
    alone = {"document": {"identity_hash"}, "setting": {"switches", "keeps_dependency"}}
    without = {"setting": {"writes", "token_key"}, "document": {"content_hash"}}
    assert ours.keys() - {"stamping"} == theirs.keys()
    for table, names in theirs.items():
        assert ours[table] - alone.get(table, set()) == names - without.get(table, set()), table


@pytest.fixture
def school(server: PostgresServer) -> Iterator[Connection]:
    """Documents that changed in every way; of some plans ada has access, of others not any more."""
    with school_database(server) as url, connect(url) as connection:
        plans = {plan: find(connection, PLANS, {"plan": plan}) for plan in ("P1", "P2", "P4", "P5")}
        for name, plan in plans.items():
            assert plan is not None
            grant(connection, plan, "ada")
            grant(connection, plan, "bob")
            if name in ("P1", "P2"):
                revoke(connection, plan, "ada")
            if name in ("P1", "P5"):
                grant(connection, plan, "ada")
        changed(connection)
        yield connection


def whole(connection: Connection, resource: Resource, _: int, last: int, *, subject: str | None) -> Page[Upsert]:
    """A resource without a beginning of the window."""
    return changes(connection, resource, None, last, subject=subject)


def place(item: Event) -> tuple[int, int, int]:
    return item.version, item.id, (KeyChange, Deletion, Upsert).index(type(item))


@pytest.mark.contract("V4", "V8", "V9")
@pytest.mark.parametrize(
    ("name", "strategy", "subject", "reading"),
    [
        ("changes", "journal", None, changes),
        ("changes_denormalized", "denormalized", None, changes),
        ("changes_monotonic", "monotonic", None, changes),
        ("changes_of_subject", "journal", "ada", changes),
        ("deletes", "journal", None, deletes),
        ("deletes_of_subject", "journal", "ada", deletes),
        ("key_changes", "journal", None, key_changes),
        ("key_changes_of_subject", "journal", "ada", key_changes),
        ("stream", "journal", None, stream),
        ("stream_of_subject", "journal", "ada", stream),
        ("everything", "journal", None, whole),
        ("everything_of_subject", "journal", "ada", whole),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_queries_find_what_postgresqls_do(
    school: Connection, name: str, strategy: Strategy, subject: str | None, reading: Callable[..., Page[Any]]
) -> None:
    """Each query, written in PostgreSQL's SQL by the parser, asked of PostgreSQL's own tables."""
    declare(school, PLANS, by_access=subject is not None)
    use_strategy(school, strategy)
    (text,) = sqlglot.transpile(
        queries("forge.versions", "sql/sqlserver/queries.sql")[name], read="tsql", write="postgres"
    )
    statement = re.sub(r"\$(\w+)", r"%(\1)s", text)
    newest = available(school).newest
    told, width = 0, 3 if name.startswith("stream") else 2
    for resource in (PLANS, STUDENTS) if subject is None else (PLANS,):
        number = resource_id(school, resource)
        for first, last in ((1, newest), (6, newest), (11, newest - 2), (newest, newest)):
            wanted = [place(item)[:width] for item in reading(school, resource, first, last, subject=subject).items]
            asked = {"resource": number, "subject": subject, "min": first, "max": last, "limit": 2}
            found: list[tuple[int, ...]] = []
            after: tuple[int, ...] = (0, 0, 0)
            while rows := school.execute(
                statement.encode(), {**asked, **dict(zip(AFTER, after, strict=False))}
            ).fetchall():
                found += [row[:width] for row in rows]
                after = found[-1]
            assert found == wanted, (resource, first, last)
            told += len(found)
    assert told >= 2


def cut(text: str) -> str:
    """Only the tables of a PostgreSQL script: the rest is not asked here."""
    return "\n".join(re.findall(r"^CREATE TABLE \S+ \($.*?^\)", text, flags=re.MULTILINE | re.DOTALL)).replace(
        "\n)\nCREATE", "\n);\nCREATE"
    )


def columns(expressions: list[exp.Expr | None]) -> dict[str, set[str]]:
    found = {}
    for expression in expressions:
        if isinstance(expression, exp.Create) and expression.kind == "TABLE":
            table = expression.find(exp.Table)
            assert table is not None
            schema = expression.this
            found[table.name] = {column.name for column in schema.expressions if isinstance(column, exp.ColumnDef)}
    return found
