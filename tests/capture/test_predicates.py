"""Conditions of SQL on a row, decided as PostgreSQL would, or not at all."""

from decimal import Decimal
from typing import Any

import pytest

from forge.change import UNAVAILABLE
from forge.conditions.untyped import predicate
from forge.errors import ConfigError
from forge.postgres.connection import Connection

ROWS: list[dict[str, Any]] = [
    {"n": 1, "d": Decimal("1.50"), "f": 0.1, "t": "a", "b": True, "z": None},
    {"n": -2, "d": Decimal("10"), "f": -1.5, "t": "it's", "b": False, "z": None},
    {"n": None, "d": None, "f": None, "t": None, "b": None, "z": None},
]
CONDITIONS = [
    "n = 1",
    "n <> 1",
    "n = -2 OR n = 1",
    "NOT n = 1",
    "NOT (n = 1 AND t = 'a')",
    "n > 0 AND d < 2",
    "d >= 1.5",
    "d = 1.5",
    "f = 0.1",
    "f < 0",
    "t = 'it''s'",
    "t IN ('a', 'b')",
    "t NOT IN ('a', 'b')",
    "n IN (1, NULL)",
    "n NOT IN (1, NULL)",
    "n BETWEEN 0 AND 5",
    "n NOT BETWEEN 0 AND 5",
    "z IS NULL",
    "t IS NOT NULL",
    "b",
    "NOT b",
    "b = true OR z IS NULL AND n = 7",
    "z = 1 OR n = 1",
    "z = 1 AND n = 1",
    "(n = 1) AND (t = 'a' OR d > 100)",
    "n < 1e3",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_it_decides_as_the_database_does(condition: str, connection: Connection) -> None:
    test = predicate(condition)
    for row in ROWS:
        wanted = connection.execute(
            f"SELECT ({condition}) IS TRUE FROM (SELECT %(n)s::int AS n, %(d)s::numeric AS d, %(f)s::float8 AS f,"
            " %(t)s::text AS t, %(b)s::boolean AS b, %(z)s::int AS z) r".encode(),
            row,
        ).fetchone()
        assert (test(row),) == wanted, (condition, row)


@pytest.mark.parametrize(
    ("condition", "row"),
    [
        ("missing = 1", {}),
        ("n = 1", {"n": UNAVAILABLE}),
        ("t > 'a'", {"t": "b"}),
        ("n = 'a'", {"n": 1}),
        ("b = 1", {"b": True}),
        ("f > 1", {"f": float("nan")}),
        ("d > 1", {"d": Decimal("NaN")}),
        ("n = 1 AND missing = 2", {"n": 1}),
        ("NOT missing = 1", {}),
    ],
)
def test_what_cannot_be_decided_is_neither(condition: str, row: dict[str, Any]) -> None:
    assert predicate(condition)(row) is None


def test_what_is_decided_in_spite_of_it() -> None:
    assert predicate("n = 1 OR missing = 2")({"n": 1}) is True
    assert predicate("n = 1 AND missing = 2")({"n": 2}) is False


def test_parts_of_documents_go_by_dots() -> None:
    test = predicate("address.city = 'Kraków' AND orders.total > 1")
    assert test({"address": {"city": "Kraków"}, "total": 2}) is True
    assert test({"address": {"city": "Łódź"}, "total": 2}) is False
    assert test({"address": {}, "total": 2}) is False
    assert test({"address": 7, "total": 2}) is None


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "n =",
        "n = 1; DROP TABLE t",
        "n = 1) OR (1 = 1",
        "n = 1 ORDER BY n",
        "n = (SELECT 1)",
        "n IN (SELECT 1)",
        "lower(t) = 'a'",
        "n + 1 = 2",
        "t LIKE 'a%'",
        "SELECT 1",
    ],
)
def test_what_is_no_condition_on_a_row_is_refused(condition: str) -> None:
    with pytest.raises(ConfigError) as caught:
        predicate(condition)
    assert "IN, BETWEEN" in caught.value.fix
