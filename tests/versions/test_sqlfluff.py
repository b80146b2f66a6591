"""A second parser of T-SQL reads the scripts for SQL Server: sqlfluff, beside sqlglot."""

from importlib.resources import files

import pytest
from sqlfluff.core import Linter

SCRIPTS = sorted(
    (script for script in files("forge.versions").joinpath("sql/sqlserver").iterdir() if script.name.endswith(".sql")),
    key=lambda script: script.name,
)
UNKNOWN = " WITH (PARTITIONS (1))"
"""What sqlfluff's grammar lacks: TRUNCATE TABLE of one partition, which SQL Server has since 2016."""


def wrong(text: str) -> list[str]:
    return [str(violation) for violation in Linter(dialect="tsql").parse_string(text.replace(UNKNOWN, "")).violations]


@pytest.mark.long
@pytest.mark.contract("V9")
@pytest.mark.parametrize("name", [script.name for script in SCRIPTS])
def test_it_is_t_sql(name: str) -> None:
    text = next(script.read_text() for script in SCRIPTS if script.name == name)
    assert wrong(text) == []


def test_what_is_none_is_found() -> None:
    assert wrong("CREATE TABEL forge_versions.document (id bigint);")
