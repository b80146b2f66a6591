"""SQL Server's files: T-SQL to a parser of that dialect, with the tables of PostgreSQL's. No server has run them."""

import logging
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
import sqlglot
from sqlglot import ErrorLevel, exp

from forge.changelog.queries import queries

FOLDER = files("forge.versions").joinpath("sql", "sqlserver")
FILES = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.endswith(".sql"))
SCRIPTS = [name for name in FILES if name != "queries.sql"]

# What sqlglot does not know, each with something of the same shape that it does.
UNKNOWN = (
    (re.compile(r"CREATE OR ALTER TRIGGER (\S+) ON \S+ AFTER (\w+)(, \w+)*\s+AS"), "trigger"),
    (re.compile(r";THROW 5\d{4}, N'[^']+', 1;"), "RETURN;"),
    (re.compile(r"CREATE PARTITION FUNCTION \w+ \(bigint\) AS RANGE RIGHT FOR VALUES \([\d, ]+\);"), "SELECT 1;"),
    (re.compile(r"CREATE PARTITION SCHEME (\w+) AS PARTITION \1 ALL TO \(\[PRIMARY\]\);"), "SELECT 1;"),
    (re.compile(r"ALTER PARTITION SCHEME \w+ NEXT USED \[PRIMARY\];"), "SELECT 1;"),
    (re.compile(r"ALTER PARTITION FUNCTION \w+\(\) (SPLIT|MERGE) RANGE \(@\w+\);"), "SELECT 1;"),
)


def batches(name: str) -> list[str]:
    """The batches of a script, as sqlcmd cuts them."""
    text = FOLDER.joinpath(name).read_text("utf-8")
    assert text.endswith("GO\n")
    return [batch.strip() for batch in re.split(r"^GO$", text, flags=re.MULTILINE) if batch.strip()]


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
    wanted = {"references": {"documents"}, "oldest": set[str]()}.get(name, pages)
    assert asked == wanted | ({"subject"} if name.endswith("_of_subject") else set())


def test_a_mistake_is_seen() -> None:
    with pytest.raises(sqlglot.ParseError):
        parsed("SELECT TOP (@limit a FROM forge_versions.document")


@pytest.mark.contract("V9")
def test_it_has_the_tables_of_postgresql() -> None:
    postgresql = FOLDER.joinpath("..", "postgresql", "schema.sql").read_text("utf-8")
    theirs = columns(sqlglot.parse(cut(postgresql), dialect="postgres"))
    ours = columns([expression for batch in batches("schema.sql") for expression in parsed(batch)])
    alone = {"document": {"identity_hash"}}
    without = {"setting": {"writes", "token_key"}, "document": {"content_hash"}}
    assert ours.keys() - {"stamping"} == theirs.keys()
    for table, names in theirs.items():
        assert ours[table] - alone.get(table, set()) == names - without.get(table, set()), table


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
