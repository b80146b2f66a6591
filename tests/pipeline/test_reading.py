"""Rows as COPY prints them become Arrow's, whatever is in them."""

import json

import psycopg
import pytest

from forge.pipeline.source.reading import _copied
from forge.postgres.connection import connect

TEXTS = [
    *("", "\\N", "\\", "\\.", ".", " ", "N", "null", "a\\tb", "\\\\n", "\\\\\\n", "\\\\\\\\"),
    *("a\tb", "a\nb", "a\rb", "a\r\nb", "\b\f\v", '"q",', "é😀", "\\" * 7 + "\n" + "\\" * 3 + "t"),
]
STATEMENT = (
    "SELECT '0001' || n, 'x', 'insert', 'p', 't', 1, t, NULL::json, to_json(t), NULL, now(), n::bigint, t, NULL, t,"
    " NULL, NULL, '' FROM unnest({}::text[]) WITH ORDINALITY v (t, n)"
)


def test_any_text_comes_through(database: str) -> None:
    with connect(database) as connection:
        statement = psycopg.ClientCursor(connection).mogrify(STATEMENT.format("%s"), (TEXTS,))
        rows = [row for batch in _copied(connection, statement) for row in batch.to_pylist()]
        assert [row["row_id"] for row in rows] == TEXTS
        assert [row["user_id"] for row in rows] == TEXTS
        assert [json.loads(row["after"]) for row in rows] == TEXTS
        assert [row["transaction"] for row in rows] == list(range(1, len(TEXTS) + 1))
        assert {row["before"] for row in rows} == {None}
        assert {row["application_name"] for row in rows} == {""}


@pytest.mark.parametrize("statement", ["SELECT 1/0", "SELECT 1/(5 - i) FROM generate_series(1, 10) i"])
def test_a_failure_is_raised_and_the_connection_can_be_used(database: str, statement: str) -> None:
    with connect(database) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(_copied(connection, statement))
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_lost_connection_is_raised(database: str) -> None:
    with connect(database) as connection, connect(database) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            list(_copied(connection, "SELECT 1"))
