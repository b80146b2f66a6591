"""The named queries of `sql/queries.sql`: each starts at a line `-- name: its description`."""

import re
from functools import cache
from importlib.resources import files
from typing import Final, LiteralString, cast

_NAMED: Final = re.compile(r"^-- (\w+): .*\n((?:(?!-- \w+: ).*\n?)*)", re.MULTILINE)


@cache
def queries() -> dict[str, LiteralString]:
    """Every query by its name."""
    text = (files("forge.changelog") / "sql" / "queries.sql").read_text("utf-8")
    return {name: cast(LiteralString, body.strip().rstrip(";")) for name, body in _NAMED.findall(text)}


def query(name: str) -> LiteralString:
    """The query of that name."""
    return queries()[name]
