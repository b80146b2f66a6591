"""Named queries in `.sql` files: each starts at a line `-- name: its description`.

A query may contain the name of a fragment in braces, such as `{after_snapshot}`: `fragments.sql` has them. Other words
in braces are left for the caller to fill in.
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
    """A function that returns the queries of a file by their names. The file is read at the first call."""
    return lambda name: queries(package, path)[name]


@cache
def queries(package: str, path: str) -> dict[str, LiteralString]:
    """Every query of a file by its name."""
    return {name: filled(body, _read("forge.postgres", "fragments.sql")) for name, body in _read(package, path).items()}


fragment: Final = query_file("forge.postgres", "fragments.sql")
"""A fragment by its name, for a statement that is not in a file."""


def filled(text: str, words: Mapping[str, str]) -> LiteralString:
    """The text with each `{name}` replaced; a name inside a word is not.

    >>> filled("SELECT {a} FROM {b} -- {c}", {"a": "x", "b": '"{a}"'})
    'SELECT x FROM "{a}" -- {c}'
    """
    return _WORD.sub(lambda match: words.get(match[1], match[0]), text)


@cache
def _read(package: str, path: str) -> dict[str, LiteralString]:
    text = files(package).joinpath(*path.split("/")).read_text("utf-8")
    return {name: _COMMENT.sub("", body.strip().rstrip(";"), count=1) for name, body in _NAMED.findall(text)}
