"""Parse the effect of a statement in the binary log on tables; without a server.

In: the text of a query event and its default database. Out: a `StatementEffect`: its kind and the tables that it names.
Only the start of a statement is read, so that no body, comment or text inside can be mistaken for it.

>>> effect("ALTER TABLE `shop`.`orders` ADD COLUMN note text", "shop")
StatementEffect(kind='schema', tables=(('shop', 'orders'),))
>>> effect("/* by cron */ truncate orders", "shop")
StatementEffect(kind='truncate', tables=(('shop', 'orders'),))
>>> effect("RENAME TABLE a TO b, x.c TO x.d", "shop").tables
(('shop', 'a'), ('shop', 'b'), ('x', 'c'), ('x', 'd'))
>>> effect("SAVEPOINT `one`", "shop").kind, effect("DELETE FROM t", "shop").kind, effect("FLUSH HOSTS", "").kind
('none', 'rows', 'none')
"""

import re
from typing import Literal, NamedTuple

Name = tuple[str, str]
Kind = Literal["begin", "commit", "rollback", "rollback to", "xa", "schema", "truncate", "database", "rows", "none"]


class StatementEffect(NamedTuple):
    """The effect. `rows` is a statement that changed unknown rows; it may affect more tables than those named."""

    kind: Kind
    tables: tuple[Name, ...] = ()


_TOKEN = re.compile(
    r"""(?P<skip>\s+|/\*(?!!|M!).*?\*/|--[ \t][^\n]*|\#[^\n]*|/\*M?!\d*|\*/)"""
    r"""|`(?P<back>(?:[^`]|``)*)`|"(?P<double>(?:[^"]|"")*)"|(?P<word>[\w$\x80-\U0010ffff]+)|(?P<mark>.)""",
    re.S,
)
_READ = 200_000
_BEGINNINGS = {"begin", "commit", "rollback", "xa", "savepoint", "release"}


class _Words:
    """The tokens at the start of a statement; a quoted name equals no keyword."""

    def __init__(self, text: str) -> None:
        self._found: list[tuple[str, bool]] = []
        for match in _TOKEN.finditer(text[:_READ]):
            if match["skip"] is not None:
                continue
            if match["back"] is not None:
                self._found.append((match["back"].replace("``", "`"), True))
            elif match["double"] is not None:
                self._found.append((match["double"].replace('""', '"'), True))
            else:
                self._found.append((match[0], False))
        self._at = 0

    def peek(self) -> str:
        """Return the next word in lower case; empty for a quoted name and at the end."""
        if self._at >= len(self._found):
            return ""
        word, quoted = self._found[self._at]
        return "" if quoted else word.lower()

    def take(self, *words: str) -> bool:
        """Skip the words if they come next."""
        start = self._at
        for word in words:
            if self.peek() != word:
                self._at = start
                return False
            self._at += 1
        return True

    def any(self, *words: str) -> bool:
        return any(self.take(word) for word in words)

    def step(self) -> bool:
        self._at += 1
        return self._at < len(self._found)

    def name(self, schema: str) -> Name | None:
        """Parse a table's name, with or without its schema."""
        if self._at >= len(self._found):
            return None
        first = self._found[self._at][0]
        self._at += 1
        if self.take("."):
            if self._at >= len(self._found):
                return None
            self._at += 1
            return first, self._found[self._at - 1][0]
        return schema, first


def effect(sql: str, schema: str) -> StatementEffect:
    """Return the statement's effect."""
    words = _Words(sql)
    first = words.peek()
    if first in _BEGINNINGS:
        return _transactional(words)
    if first in ("create", "alter", "drop", "rename", "truncate", "optimize", "repair", "analyze"):
        return _definition(words, schema)
    if first in ("insert", "update", "delete", "replace", "load", "with", "call", "do", "import", "merge"):
        return StatementEffect("rows")
    return StatementEffect("none")


def _transactional(words: _Words) -> StatementEffect:
    if words.take("begin"):
        return StatementEffect("begin")
    if words.take("commit"):
        return StatementEffect("commit")
    if words.take("xa"):
        return StatementEffect("xa")
    if words.take("rollback"):
        words.take("work")
        return StatementEffect("rollback to" if words.take("to") else "rollback")
    return StatementEffect("none")


def _definition(words: _Words, schema: str) -> StatementEffect:
    if words.take("truncate"):
        words.take("table")
        return _one("truncate", words, schema)
    if words.take("rename"):
        if words.take("table") or words.take("tables"):
            words.take("if", "exists")
            return StatementEffect("schema", _renamed(words, schema))
        return StatementEffect("none")
    if words.take("optimize") or words.take("repair") or words.take("analyze"):
        return StatementEffect("none")
    verb = words.peek()
    words.step()
    while words.any("or", "replace", "online", "offline", "ignore", "unique", "fulltext", "spatial"):
        pass
    if words.take("temporary"):
        return StatementEffect("none")
    if words.any("database", "schema"):
        if verb == "drop":
            words.take("if", "exists")
            name = words.name("")
            return StatementEffect("database", ((name[1], "*"),)) if name else StatementEffect("none")
        return StatementEffect("none")
    if words.any("table", "tables"):
        words.take("if", "not", "exists")
        words.take("if", "exists")
        if verb == "drop":
            return StatementEffect("schema", _listed(words, schema))
        if verb == "alter":
            return _altered(words, schema)
        return _one("schema", words, schema)
    if words.take("index"):
        while words.peek() != "on":
            if not words.step():
                return StatementEffect("none")
        words.step()
        return _one("schema", words, schema)
    return StatementEffect("none")


def _one(kind: Kind, words: _Words, schema: str) -> StatementEffect:
    name = words.name(schema)
    return StatementEffect(kind, (name,)) if name else StatementEffect("none")


def _listed(words: _Words, schema: str) -> tuple[Name, ...]:
    found = []
    while name := words.name(schema):
        found.append(name)
        if not words.take(","):
            break
    return tuple(found)


def _renamed(words: _Words, schema: str) -> tuple[Name, ...]:
    found: list[Name] = []
    while name := words.name(schema):
        found.append(name)
        while not words.take("to"):
            if not words.step():
                return tuple(found)
        if new := words.name(schema):
            found.append(new)
        if not words.take(","):
            break
    return tuple(found)


def _altered(words: _Words, schema: str) -> StatementEffect:
    """Parse ALTER TABLE: its table, and with RENAME or EXCHANGE PARTITION a second one.

    >>> effect("ALTER TABLE a RENAME TO b", "s").tables
    (('s', 'a'), ('s', 'b'))
    >>> effect("ALTER TABLE a RENAME COLUMN x TO y", "s").tables
    (('s', 'a'),)
    >>> effect("ALTER TABLE a EXCHANGE PARTITION p WITH TABLE x.b", "s").tables
    (('s', 'a'), ('x', 'b'))
    """
    name = words.name(schema)
    if name is None:
        return StatementEffect("none")
    found = [name]
    depth = 0
    while words.peek() or words.step():
        if words.take("("):
            depth += 1
        elif words.take(")"):
            depth -= 1
        elif depth == 0 and words.take("rename"):
            if words.any("column", "index", "key"):
                continue
            words.any("to", "as")
            if new := words.name(schema):
                found.append(new)
        elif depth == 0 and words.take("exchange", "partition"):
            while words.peek() != "table" and words.step():
                pass
            words.step()
            if other := words.name(schema):
                found.append(other)
        elif not words.step():
            break
    return StatementEffect("schema", tuple(found))
