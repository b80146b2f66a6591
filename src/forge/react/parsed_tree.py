"""Parser of PostgreSQL's notation of a parsed query: the relations, columns and functions that it names."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec


class ParsedTree(msgspec.Struct):
    """Relations, columns and functions in one parsed query or expression. `columns`: column numbers by relation oid."""

    relations: Counter[int]
    columns: dict[int, set[int]]
    functions: set[int]
    operators: set[int]
    clocks: set[str]
    whole_rows: bool
    times: bool
    locks: bool
    writes: bool


_RELATION: Final = re.compile(r":rtekind 0 :relid (\d+)")
_FUNCTION: Final = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) ([1-9]\d*)")
_TIME: Final = re.compile(r"\{CONST :consttype (?:1082|1083|1114|1184|1266) ")
_COMMAND: Final = re.compile(r":commandType ([02-9])")
_CLOCK: Final = re.compile(r"\{SQLVALUEFUNCTION :op ([0-8]) ")
_CLOCKS: Final = (
    *("current_date", "current_time", "current_time", "current_timestamp", "current_timestamp"),
    *("localtime", "localtime", "localtimestamp", "localtimestamp"),
)


def parse_tree(text: str, depends: Iterable[tuple[str, int, int]]) -> ParsedTree:
    """Parse PostgreSQL's own tree notation, in which names and values cannot be confused with fields."""
    relations = Counter(map(int, _RELATION.findall(text)))
    functions = set(map(int, _FUNCTION.findall(text)))
    clocks = {_CLOCKS[int(number)] for number in _CLOCK.findall(text)}
    if ":tablesample {" in text:
        clocks.add("TABLESAMPLE")
    columns: dict[int, set[int]] = {}
    operators: set[int] = set()
    for kind, oid, number in depends:
        if kind == "relation":
            columns.setdefault(oid, set()).add(number)
        elif kind == "function":
            functions.add(oid)
        else:
            operators.add(oid)
    return ParsedTree(
        relations=relations,
        columns=columns,
        functions=functions,
        operators=operators,
        clocks=clocks,
        whole_rows=":varattno 0 " in text,
        times=_TIME.search(text) is not None,
        locks=":rowMarks (" in text,
        writes=_COMMAND.search(text) is not None,
    )
