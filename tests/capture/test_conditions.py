"""Conditions of any length are decided; those that are nested beyond reason are refused, with a line and a fix."""

import pytest

from forge.capture import Filter
from forge.conditions.untyped import predicate
from forge.errors import ConfigError

pytestmark = pytest.mark.contract("W9")

MANY = 1_500
"""More than Python calls deep."""


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        (f"id IN ({', '.join(map(str, range(MANY)))})", MANY - 1, True),
        (f"id IN ({', '.join(map(str, range(MANY)))})", MANY, False),
        (f"id NOT IN ({', '.join(map(str, range(MANY)))})", MANY, True),
        (" OR ".join(f"id = {number}" for number in range(MANY)), MANY - 1, True),
        (" OR ".join(f"id = {number}" for number in range(MANY)), MANY, False),
        (" AND ".join(f"id <> {number}" for number in range(MANY)), MANY, True),
        (" AND ".join(f"id <> {number}" for number in range(MANY)), 7, False),
    ],
)
def test_thousands_of_parts(condition: str, value: int, holds: bool) -> None:
    test = predicate(condition)
    assert test({"id": value}) is holds
    assert test({}) is None


@pytest.mark.parametrize("opening", ["(", "NOT ("])
def test_nested_beyond_reason(opening: str) -> None:
    condition = opening * MANY + "id = 1" + ")" * MANY
    with pytest.raises(ConfigError, match="nested too deeply") as raised:
        Filter(where=condition).check()
    assert raised.value.fix
    assert "\n" not in str(raised.value.args[0])
    assert len(str(raised.value)) < 300
