"""Users' own SQL models: read a folder of `.sql` files, return models in build order. No Spark.

A file is one SELECT; its name is the name of its table in gold. A header of comments configures the build:

    -- key: customer_id
    -- keys: SELECT DISTINCT customer_id FROM orders_changed
    SELECT customer_id, count(*) AS orders, sum(total) AS spent FROM orders GROUP BY customer_id

With a key, only the keys that `keys` yields are computed after a batch; without one the whole model is written with
every batch that touches a table it reads, or with every n-th batch (`-- every: 10 batches`). A `keys` query may
continue over further comment lines.

A model names the tables that it reads (`TableReference`), and Forge replaces these names in place, so line numbers in
Spark's errors match the file. Names that a WITH defines belong to the model.

ModelError, one line with file and line, is raised for errors that can be found without the lake: names, headers,
cycles, and SQL that is not one query.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.optimizer.scope import traverse_scope

from forge.errors import ModelError
from forge.pipeline.silver.rows import quoted

OWN: Final = ("who", "activity", "churn", "models")
"""Names of Forge's own tables in gold."""

CHANGES: Final = "changes"
"""The name of bronze in a model, unless the lake has a table of that name."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_HEADER: Final = re.compile(r"--\s*(?P<name>key|keys|every)\s*:\s*(?P<value>.*)", re.IGNORECASE)
_EVERY: Final = re.compile(r"([1-9][0-9]{0,5})(?:\s+batch(?:es)?)?", re.IGNORECASE)
_SUFFIXES: Final = {"_history": "history", "_changed": "changed"}


class TableReference(msgspec.Struct, frozen=True):
    """A table named in a text, from `start` up to `end`; `alias` is its name in the text, unless the text gives an
    alias."""

    schema: str | None
    name: str
    start: int
    end: int
    line: int
    alias: str | None


class ModelQuery(msgspec.Struct, frozen=True):
    """A text of Spark SQL and the tables that it reads."""

    text: str
    reads: tuple[TableReference, ...]

    def with_names(self, names: Mapping[TableReference, str]) -> str:
        """Return the text with the tables that it reads replaced by these names.

        >>> query = parse("SELECT orders.id FROM orders JOIN sales.items i ON true", "m.sql")
        >>> query.with_names({each: f"view_{each.name}" for each in query.reads})
        'SELECT orders.id FROM `view_orders` AS `orders` JOIN `view_items` i ON true'
        """
        text = self.text
        for each in sorted(names, key=lambda each: -each.start):
            named = quoted(names[each]) + (f" AS {quoted(each.alias)}" if each.alias else "")
            text = text[: each.start] + named + text[each.end :]
        return text


class Model(msgspec.Struct, frozen=True):
    """One file. `after` are the models that it reads."""

    name: str
    file: str
    query: ModelQuery
    key: tuple[str, ...] = ()
    keys: ModelQuery | None = None
    key_line: int = 1
    every: int = 1
    after: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash of the text, so that an edited model is built again."""
        return sha256(self.query.text.encode()).hexdigest()[:16]


def load(folder: str | Path) -> list[Model]:
    """Return the models of a folder, each after those that it reads."""
    path = Path(folder)
    if not path.is_dir():
        raise ModelError("there is no such folder", file=str(folder), line=1, fix="make it, or leave the setting out")
    models = [read(file.name, file.read_text("utf-8")) for file in sorted(path.glob("*.sql"))]
    return ordered(models)


def read(file: str, text: str) -> Model:
    """Parse a model from the text of its file.

    >>> read("spent.sql", "-- key: id\\n-- keys: SELECT id\\n--   FROM orders_changed\\nSELECT id FROM orders").key
    ('id',)
    """
    name = file.removesuffix(".sql")
    if not _NAME.fullmatch(name) or name in OWN:
        why = "that name is taken" if name in OWN else "a model's name has small letters, digits and _, a letter first"
        raise ModelError(why, file=file, line=1, fix="rename the file")
    headers = dict(_headers(file, text))
    query = parse(text, file)
    key_line, key = headers.get("key", (1, ""))
    columns = tuple(part.strip().strip("`") for part in key.split(",")) if key.strip() else ()
    keys = parse("\n" * (headers["keys"][0] - 1) + headers["keys"][1], file) if "keys" in headers else None
    if bool(columns) != (keys is not None):
        raise ModelError(
            "an incremental model says both key and keys",
            file=file,
            line=key_line,
            fix="-- key: customer_id, and -- keys: SELECT DISTINCT customer_id FROM orders_changed",
        )
    every = 1
    if "every" in headers:
        line, value = headers["every"]
        match = _EVERY.fullmatch(value.strip())
        if match is None or columns:
            why = (
                "an incremental model is computed with every batch" if columns else f"every cannot be {value.strip()!r}"
            )
            raise ModelError(why, file=file, line=line, fix="-- every: 10 batches, in a model without a key")
        every = int(match[1])
    return Model(name, file, query, columns, keys, key_line, every)


def parse(text: str, file: str) -> ModelQuery:
    """Return the text with the tables that it reads; raise ModelError unless it is one query."""
    try:
        trees = [tree for tree in sqlglot.parse(text, dialect="spark") if tree is not None]
    except (ParseError, TokenError) as error:
        told = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        reason = told.get("description") or str(error).splitlines()[0]
        raise ModelError(
            f"this is not SQL: {reason}", file=file, line=told.get("line") or 1, fix="see the SQL reference of Spark"
        ) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise ModelError("a model is one SELECT", file=file, line=1, fix="one query in a file")
    return ModelQuery(text, tuple(_references(trees[0])))


def ordered(models: Iterable[Model]) -> list[Model]:
    """Sort the models so that each follows those that it reads; ties by name."""
    by_name = {model.name: model for model in models}
    graph = {}
    for model in by_name.values():
        queries = [model.query] + ([model.keys] if model.keys else [])
        names = {each.name.lower() for query in queries for each in query.reads if each.schema is None}
        graph[model.name] = sorted(names & by_name.keys())
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = error.args[1]
        model = by_name[circle[0]]
        line = next((each.line for each in model.query.reads if each.name.lower() in circle), 1)
        raise ModelError(
            f"models read each other in a circle: {' → '.join(reversed(circle))}",
            file=model.file,
            line=line,
            fix="take what they share into a model of its own",
        ) from None
    found: list[Model] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        found += [msgspec.structs.replace(by_name[name], after=tuple(graph[name])) for name in ready]
        sorter.done(*ready)
    return found


class NameTarget(msgspec.Struct, frozen=True):
    """The target of a name: the kind is `current`, `history`, `changed`, `changes`, `gold` or `model`."""

    kind: str
    name: str


def resolve(reference: TableReference, tables: Sequence[str], models: Iterable[str]) -> NameTarget | None:
    """Resolve a reference in a lake with these tables (named with schema) and models; None when it is not Forge's.

    >>> tables, models = ["public.orders", "s.items"], ["spent"]
    >>> def of(name): return resolve(parse(f"SELECT * FROM {name}", "m.sql").reads[0], tables, models)
    >>> of("orders"), of("Items_History")
    (NameTarget(kind='current', name='public.orders'), NameTarget(kind='history', name='s.items'))
    >>> [of(name).kind for name in ("public.orders_changed", "spent", "changes", "who")]
    ['changed', 'model', 'changes', 'gold']
    >>> of("spark_catalog.other"), of("delta.`/some/path`")
    (None, None)
    """
    name = reference.name.lower()
    if reference.schema is None and name in models:
        return NameTarget("model", name)
    for suffix, kind in (("", "current"), *_SUFFIXES.items()):
        if name.endswith(suffix):
            found = _table(reference, reference.name[: len(name) - len(suffix)], tables)
            if found is not None:
                return NameTarget(kind, found)
    if reference.schema is None:
        if name == CHANGES:
            return NameTarget("changes", name)
        if name in OWN:
            return NameTarget("gold", name)
    return None


def _table(reference: TableReference, name: str, tables: Sequence[str]) -> str | None:
    """Return the table of that name: as written, else in lower case; without a schema, in public, or the only match."""
    for wanted in (name, name.lower()):
        if reference.schema is not None:
            for full in (f"{reference.schema}.{wanted}", f"{reference.schema.lower()}.{wanted}"):
                if full in tables:
                    return full
            continue
        if f"public.{wanted}" in tables:
            return f"public.{wanted}"
        elsewhere = [table for table in tables if table.partition(".")[2] == wanted]
        if len(elsewhere) == 1:
            return elsewhere[0]
    return None


def _headers(file: str, text: str) -> Iterable[tuple[str, tuple[int, str]]]:
    """Return the comment lines before the query that configure Forge, each with its line number."""
    name, line, value = "", 0, ""
    for number, row in enumerate(text.splitlines(), 1):
        stripped = row.strip()
        if stripped and not stripped.startswith("--"):
            break
        if match := _HEADER.match(stripped):
            if name:
                yield name, (line, value)
            name, line, value = match["name"].lower(), number, match["value"]
        elif name == "keys" and stripped:
            value += "\n" + stripped.removeprefix("--")
    if name:
        yield name, (line, value)


def _references(tree: exp.Query) -> Iterable[TableReference]:
    for scope in traverse_scope(tree):
        for table in scope.tables:
            identifier = table.this
            own = not table.db and table.name in scope.cte_sources
            if own or not isinstance(identifier, exp.Identifier) or table.catalog:
                continue
            first = table.args.get("db") or identifier
            start, end = first.meta["start"], identifier.meta["end"] + 1
            alias = None if table.alias else table.name
            yield TableReference(table.db or None, table.name, start, end, identifier.meta["line"], alias)
