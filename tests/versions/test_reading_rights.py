"""What a role needs to read changes: what the how-to grants it, and no more."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from forge.errors import ServerError
from forge.postgres.connection import Connection, connect
from forge.versions import available, changes, deletes, grant, maintain, put, stream
from forge.versions.resources import declare
from forge.versions.sync import DatabaseSource, SqliteMirror, sync
from tests.versions.journals import PLANS, STUDENTS

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "change-versions.md"


def granted() -> list[str]:
    """The statements of the how-to that let `reader` read."""
    (block,) = re.findall(r"```sql\n(GRANT .*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    return [line.strip() for line in block.split(";") if line.strip()]


@pytest.fixture
def reader(versions: Connection) -> Iterator[str]:
    """A role that nothing was granted to."""
    name = f"reader_{uuid4().hex[:12]}"
    role = sql.Identifier(name)
    versions.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    yield name
    versions.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def test_a_role_reads_with_the_rights_of_the_how_to(
    versions: Connection, versions_url: str, reader: str, tmp_path: Path
) -> None:
    statements = granted()
    assert len(statements) == 4
    plan = put(versions, PLANS, {"year": 2027}, {"credits": 24}, {"s": put(versions, STUDENTS, {"n": 1}, {}).document})
    declare(versions, PLANS, by_access=True)
    grant(versions, plan.document, "ada")
    url = make_conninfo(versions_url, user=reader)
    with connect(url) as connection, pytest.raises(ServerError, match="permission denied"):
        available(connection)
    for statement in statements:
        versions.execute(re.sub(r"\breader\b", reader, statement).encode())
    versions.execute("SELECT setval('forge_versions.change_version', 10000000)")
    assert "document_change_30000000" in maintain(versions).made
    versions.execute("SELECT setval('forge_versions.change_version', 30000000)")  # what is made later is read as well
    with connect(url) as connection:
        for strategy in ("journal", "denormalized", "monotonic"):
            versions.execute("UPDATE forge_versions.setting SET strategy = %s", (strategy,))
            put(versions, PLANS, {"year": 2027}, {"credits": strategy})
            newest = available(connection).newest
            assert [item.version for item in changes(connection, PLANS, newest).items] == [newest]
            assert [item.id for item in stream(connection, PLANS, subject="ada").items] == [plan.document.id]
            assert deletes(connection, PLANS, 1).items == []
        with pytest.raises(ServerError, match="permission denied"):
            put(connection, PLANS, {"year": 2028}, {})
        with pytest.raises(ServerError, match="permission denied"):
            grant(connection, plan.document, "bob")
    with closing(DatabaseSource(url, PLANS)) as source, closing(SqliteMirror(tmp_path / "copy.db", PLANS)) as mirror:
        assert sync(source, mirror).upserts == 1


@pytest.mark.parametrize("left_out", range(4))
def test_each_of_these_rights_is_needed(versions: Connection, versions_url: str, reader: str, left_out: int) -> None:
    put(versions, PLANS, {"year": 2027}, {})
    for place, statement in enumerate(granted()):
        if place != left_out:
            versions.execute(re.sub(r"\breader\b", reader, statement).encode())
    url = make_conninfo(versions_url, user=reader)
    with connect(url) as connection, pytest.raises(ServerError, match="permission denied"):
        changes(connection, PLANS, 1)
