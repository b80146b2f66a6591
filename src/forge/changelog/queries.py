"""Named queries in `.sql` files: each starts at a line `-- name: its description`.

A query may contain the name of a fragment in braces, such as `{since}`: `sql/fragments.sql` has them. Other words in
braces are left for the caller to fill in.
"""

import re
from functools import cache
from importlib.resources import files
from typing import Final, LiteralString

_NAMED: Final = re.compile(r"^-- (\w+): .*\n((?:(?!-- \w+: ).*\n?)*)", re.MULTILINE)
_WORD: Final = re.compile(r"\{(\w+)\}")
_COMMENT: Final = re.compile(r"\A(?:--.*\n)*")


@cache
def queries(package: str = "forge.changelog", path: str = "sql/queries.sql") -> dict[str, LiteralString]:
    """Every query of a file by its name."""
    return {name: filled(body, _fragments()) for name, body in _read(package, path).items()}


def query(name: str) -> LiteralString:
    """The query of that name in the log's own file."""
    return queries()[name]


def fragment(name: str) -> LiteralString:
    """A fragment by its name, for a statement that is not in a file."""
    return _fragments()[name]


def filled(text: str, words: dict[str, str]) -> LiteralString:
    """The text with each `{name}` replaced; a name inside a word is not.

    >>> filled("SELECT {a} FROM {b} -- {c}", {"a": "x", "b": '"{a}"'})
    'SELECT x FROM "{a}" -- {c}'
    """
    return _WORD.sub(lambda match: words.get(match[1], match[0]), text)


@cache
def _fragments() -> dict[str, LiteralString]:
    return _read("forge.changelog", "sql/fragments.sql")


def _read(package: str, path: str) -> dict[str, LiteralString]:
    text = files(package).joinpath(*path.split("/")).read_text("utf-8")
    return {name: _COMMENT.sub("", body.strip().rstrip(";"), count=1) for name, body in _NAMED.findall(text)}
