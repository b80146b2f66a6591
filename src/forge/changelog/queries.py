"""Named queries in `.sql` files: each starts at a line `-- name: its description`."""

import re
from functools import cache
from importlib.resources import files
from typing import Final, LiteralString, cast

_NAMED: Final = re.compile(r"^-- (\w+): .*\n((?:(?!-- \w+: ).*\n?)*)", re.MULTILINE)


@cache
def queries(package: str = "forge.changelog", path: str = "sql/queries.sql") -> dict[str, LiteralString]:
    """Every query of a file by its name."""
    text = files(package).joinpath(*path.split("/")).read_text("utf-8")
    return {name: cast(LiteralString, body.strip().rstrip(";")) for name, body in _NAMED.findall(text)}


def query(name: str) -> LiteralString:
    """The query of that name in the log's own file."""
    return queries()[name]
