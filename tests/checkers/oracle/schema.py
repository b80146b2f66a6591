"""Random schemas: tables of many shapes, and what stands around them. Nothing here speaks to a server.

A column's name begins with the letter of its kind, so that columns of one name can be joined. Every relation has a name
that is a word of its own in all SQL, so that a plan without it is found by looking for the word.
"""

import random
import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from tests.checkers.oracle.values import BY_LETTER, KINDS, Kind, quoted

READER: Final = "forge_oracle_reader"
"""The role that row-level security is for."""
TICK: Final = "tick"
"""A tracked table that no query reads: its changes tell that all before them were read."""

PREAMBLE: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')",
    "CREATE DOMAIN small_number AS int CHECK (VALUE < 100)",
    "DO $$ BEGIN CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
    ' EXCEPTION WHEN OTHERS THEN CREATE COLLATION folded FROM "C"; END $$',
    f"DO $$ BEGIN CREATE ROLE {READER}; EXCEPTION WHEN OTHERS THEN NULL; END $$",
    "CREATE SCHEMA other",
    f"GRANT USAGE ON SCHEMA public, other TO {READER}",
    f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {READER}",
    f"CREATE TABLE {TICK} (n int)",
    f"SELECT forge_enable_reactivity('{TICK}')",
)


class Column(msgspec.Struct, frozen=True):
    """`name` is as it is written; `computed` columns cannot be written to."""

    name: str
    kind: str
    nullable: bool = True
    computed: bool = False


class Relation(msgspec.Struct, frozen=True):
    """Something to select from. `key` tells its rows apart; `within` is the table of a part."""

    name: str
    columns: tuple[Column, ...]
    ddl: tuple[str, ...]
    key: tuple[str, ...] = ()
    shape: Literal["table", "partition", "child", "view"] = "table"
    within: str | None = None
    partitioned: bool = False

    @property
    def writable(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not column.computed)


class Extra(msgspec.Struct, frozen=True):
    """A policy, a foreign key, a trigger, a function: taken away for itself, or with a relation that it names."""

    ddl: tuple[str, ...]


class Schema(msgspec.Struct, frozen=True):
    """What a plan's database has beside the preamble, in the order in which it is made."""

    relations: tuple[Relation, ...]
    extras: tuple[Extra, ...] = ()
    functions: tuple[str, ...] = ()
    """Expressions that call functions, each of type bigint."""
    hot: tuple[str, ...] = ()
    """Columns that are asked about and written to most."""

    @property
    def tables(self) -> tuple[Relation, ...]:
        return tuple(each for each in self.relations if each.shape == "table")

    def without(self, name: str) -> "Schema":
        """The schema without a relation and all that names it."""
        gone = {name}
        kept = []
        for relation in self.relations:
            if relation.name in gone or any(mentions(" ".join(relation.ddl), each) for each in gone):
                gone.add(relation.name)
            else:
                kept.append(relation)
        extras = tuple(e for e in self.extras if not any(mentions(" ".join(e.ddl), each) for each in gone))
        made = " ".join(text for extra in extras for text in extra.ddl)
        functions = tuple(call for call in self.functions if call.split("(")[0] in made)
        return Schema(tuple(kept), extras, functions, self.hot)

    def some_relation(self, chance: random.Random, among: Sequence[Relation]) -> Relation:
        """One of the relations, mostly of the first two, so that what is read is written."""
        return chance.choice(among[:2] if chance.random() < 0.5 else among)

    def some_column(self, chance: random.Random, among: Sequence[Column]) -> Column:
        """One of the columns, mostly a hot one."""
        hot = [column for column in among if column.name in self.hot]
        return chance.choice(hot if hot and chance.random() < 0.6 else among)


def mentions(sql: str, name: str) -> bool:
    """Whether a text has a relation's name as a word.

    >>> mentions("SELECT FROM t_a", "t_a"), mentions("SELECT FROM t_ab", "t_a")
    (True, False)
    """
    return re.search(rf"(?<![\w.\"]){re.escape(name)}(?![\w\"])", sql) is not None


def generate(chance: random.Random) -> Schema:
    """Two to five tables, with a view or two less often than not left to `queries.views`."""
    relations: list[Relation] = []
    extras: list[Extra] = []
    functions: list[str] = []
    shapes = [
        _plain,
        *chance.sample([_plain, _pair, _bare, _parted, _inherited, _odd, _twin, _masked], chance.randint(1, 4)),
    ]
    for number, shape in enumerate(shapes):
        relations += shape(f"t_{'abcdef'[number]}", chance)
    tables = [each for each in relations if each.shape == "table"]
    if chance.random() < 0.5:
        extras.append(_policy(chance, tables))
    if chance.random() < 0.3:
        extras.append(_trigger(chance, tables))
    if chance.random() < 0.3:
        extra, call = _function(chance, tables)
        extras.append(extra)
        functions.append(call)
    return Schema(tuple(relations), tuple(extras), tuple(functions), tuple(chance.sample(COMMON, 2)))


def kind_of(column: str) -> Kind:
    """The kind that a column's name tells."""
    return BY_LETTER[column.strip('"')[0].lower()]


COMMON: Final = ("i1", "i2", "t1", "o1")
"""Columns that every table has."""
_MORE: Final = (
    *(f"{kind.letter}1" for kind in KINDS.values() if kind.name not in ("int", "text", "bool")),
    *("i3", "t2"),
)


def _columns(chance: random.Random, *, more: int = 4) -> list[Column]:
    names = [*COMMON, *chance.sample(_MORE, chance.randint(1, more))]
    chance.shuffle(names)
    return [Column(name, kind_of(name).name, nullable=chance.random() < 0.75) for name in names]


def _defined(columns: list[Column]) -> str:
    return ", ".join(f"{each.name} {_type(each)}{'' if each.nullable else ' NOT NULL'}" for each in columns)


def _type(column: Column) -> str:
    return "text COLLATE folded" if column.kind == "fold" else KINDS[column.kind].sql


def _enable(name: str, exclude: str = "{}", mask: str = "{}") -> str:
    return f"SELECT forge_enable_reactivity({quoted(name)}, exclude => '{exclude}', mask => '{mask}')"


def _plain(name: str, chance: random.Random) -> list[Relation]:
    columns = _columns(chance)
    key = Column("i0", "int", nullable=False)
    computed = []
    if chance.random() < 0.4:
        computed.append((Column("i8", "int", computed=True), "i8 int GENERATED ALWAYS AS (coalesce(i1, 0) + 1) STORED"))
    if chance.random() < 0.4:
        computed.append((Column("i9", "int", computed=True), "i9 int GENERATED ALWAYS AS (i2 + 1) {virtual}"))
    defined = ", ".join([_defined([key, *columns]), *(text for _, text in computed)])
    found = (key, *columns, *(column for column, _ in computed))
    return [Relation(name, found, (f"CREATE TABLE {name} ({defined}, PRIMARY KEY (i0))", _enable(name)), ("i0",))]


def _pair(name: str, chance: random.Random) -> list[Relation]:
    keys = [Column("t0", "text", nullable=False), Column("i0", "int", nullable=False)]
    columns = [*_columns(chance), keys[0]]
    columns.insert(chance.randint(0, len(columns)), keys[1])
    ddl = f"CREATE TABLE {name} ({_defined(columns)}, PRIMARY KEY (i0, t0))"
    return [Relation(name, tuple(columns), (ddl, _enable(name)), ("i0", "t0"))]


def _bare(name: str, chance: random.Random) -> list[Relation]:
    columns = _columns(chance)
    return [Relation(name, tuple(columns), (f"CREATE TABLE {name} ({_defined(columns)})", _enable(name)))]


def _odd(name: str, chance: random.Random) -> list[Relation]:
    """Names that must be quoted, and two columns that differ in case alone."""
    quoted_name = f'"{name.upper()}"'
    columns = [*_columns(chance), Column('"I1"', "int"), Column('"t x"', "text")]
    ddl = f"CREATE TABLE {quoted_name} (i0 int PRIMARY KEY, {_defined(columns)})"
    key = Column("i0", "int", nullable=False)
    return [Relation(quoted_name, (key, *columns), (ddl, _enable(quoted_name)), ("i0",))]


def _twin(name: str, chance: random.Random) -> list[Relation]:
    """Two tables of one name in two schemas."""
    columns = [Column("i0", "int", nullable=False), *_columns(chance)]
    return [
        Relation(
            full,
            tuple(columns),
            (f"CREATE TABLE {full} ({_defined(columns)}, PRIMARY KEY (i0))", _enable(full)),
            ("i0",),
        )
        for full in (name, f"other.{name}")
    ]


def _masked(name: str, chance: random.Random) -> list[Relation]:
    (relation,) = _plain(name, chance)
    names = [column.name for column in relation.writable if column.name != "i0"]
    hidden = chance.sample(names, 2)
    if any(column.computed for column in relation.columns):  # what is computed of a hidden one would tell it
        hidden = [each for each in hidden if each not in ("i1", "i2")]
    exclude, mask = hidden[:1], hidden[1:]
    enable = _enable(name, "{" + ",".join(exclude) + "}", "{" + ",".join(mask) + "}")
    return [msgspec.structs.replace(relation, ddl=(relation.ddl[0], enable))]


def _parted(name: str, chance: random.Random) -> list[Relation]:
    """By i0, in three parts of which the last takes all the rest; a part may have its columns in another order."""
    columns = [Column("i0", "int", nullable=False), *_columns(chance)]
    keyed = chance.random() < 0.7
    key = ", PRIMARY KEY (i0)" if keyed else ""
    moved = list(columns)
    chance.shuffle(moved)
    ddl = (
        f"CREATE TABLE {name} ({_defined(columns)}{key}) PARTITION BY RANGE (i0)",
        f"CREATE TABLE {name}_0 PARTITION OF {name} FOR VALUES FROM (MINVALUE) TO (2)",
        f"CREATE TABLE {name}_1 ({_defined(moved)}{key})",
        f"ALTER TABLE {name} ATTACH PARTITION {name}_1 FOR VALUES FROM (2) TO (4)",
        f"CREATE TABLE {name}_2 PARTITION OF {name} DEFAULT",
        _enable(name),
    )
    keys = ("i0",) if keyed else ()
    whole = Relation(name, tuple(columns), ddl, keys, partitioned=True)
    parts = [
        Relation(f"{name}_{n}", tuple(moved if n == 1 else columns), (f"-- in {name}",), keys, "partition", name)
        for n in range(2)
    ]
    return [whole, *parts]


def _inherited(name: str, chance: random.Random) -> list[Relation]:
    columns = [Column("i0", "int", nullable=False), *_columns(chance)]
    more = (
        [Column("i7", "int")] if chance.random() < 0.3 else []
    )  # the log does not have it, so Forge refuses to read it
    ddl = (
        f"CREATE TABLE {name} ({_defined(columns)})",
        f"CREATE TABLE {name}_heir ({_defined(more)}) INHERITS ({name})",
        _enable(name),
    )
    whole = Relation(name, tuple(columns), ddl)
    heir = Relation(f"{name}_heir", (*columns, *more), (f"-- in {name}",), (), "child", name)
    return [whole, heir]


def _policy(chance: random.Random, tables: list[Relation]) -> Extra:
    guarded, read = chance.choice(tables), chance.choice(tables)
    if guarded is read:
        told = f"{guarded.name}.t1 = current_setting('forge.user', true) OR {guarded.name}.o1"
    else:
        told = f"EXISTS (SELECT FROM {read.name} r WHERE r.i1 = {guarded.name}.i1 AND r.o1 IS NOT FALSE)"
    return Extra(
        (
            f"ALTER TABLE {guarded.name} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY guard ON {guarded.name} FOR SELECT TO {READER} USING ({told})",
        )
    )


def _trigger(chance: random.Random, tables: list[Relation]) -> Extra:
    """Whoever writes one table writes another."""
    written, other = chance.choice(tables), chance.choice(tables)
    return Extra(
        (
            "CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF pg_trigger_depth() = 1 THEN"
            f" UPDATE {other.name} SET i2 = coalesce(i2, 0) % 4 + 1 WHERE i1 = NEW.i1; END IF; RETURN NULL; END $$",
            f"CREATE TRIGGER also AFTER INSERT OR UPDATE ON {written.name} FOR EACH ROW EXECUTE FUNCTION also()",
        )
    )


def _function(chance: random.Random, tables: list[Relation]) -> tuple[Extra, str]:
    table = chance.choice(tables)
    body = f"SELECT count(*) FROM {table.name} WHERE i1 = limit_to"
    ddl = f"CREATE FUNCTION counted(limit_to int) RETURNS bigint LANGUAGE sql STABLE BEGIN ATOMIC {body}; END"
    return Extra((ddl,)), f"counted({chance.randint(0, 3)})"
