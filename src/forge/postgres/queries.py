"""Named queries in `.sql` files: each starts at a line `-- name: its description`.

A query may contain the name of a fragment of `fragments.sql` in braces, such as `{after_snapshot}`. The caller fills in
other words in braces.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, LiteralString

_NAMED: Final = re.compile(r"^-- (\w+): .*\n((?:(?!-- \w+: ).*\n?)*)", re.MULTILINE)
_WORD: Final = re.compile(r"\{(\w+)\}")
_COMMENT: Final = re.compile(r"\A(?:--.*\n)*")


def query_file(package: str, path: str = "queries.sql") -> Callable[[str], LiteralString]:
    """Return a function that returns the queries of a file by name. The file is read at the first call."""
    return lambda name: queries(package, path)[name]


@cache
def queries(package: str, path: str) -> dict[str, LiteralString]:
    """Return every query of a file by its name."""
    return {name: filled(body, _read("forge.postgres", "fragments.sql")) for name, body in _read(package, path).items()}


fragment: Final = query_file("forge.postgres", "fragments.sql")
"""Return a fragment by its name, for a statement that is not in a file."""


def filled(text: str, words: Mapping[str, str]) -> LiteralString:
    """Replace each `{name}` of the text; a name inside a replacement stays unchanged.

    >>> filled("SELECT {a} FROM {b} -- {c}", {"a": "x", "b": '"{a}"'})
    'SELECT x FROM "{a}" -- {c}'
    """
    return _WORD.sub(lambda match: words.get(match[1], match[0]), text)


@cache
def _read(package: str, path: str) -> dict[str, LiteralString]:
    text = files(package).joinpath(*path.split("/")).read_text("utf-8")
    return {name: _COMMENT.sub("", body.strip().rstrip(";"), count=1) for name, body in _NAMED.findall(text)}
