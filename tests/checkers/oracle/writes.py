"""Random transactions over a schema. Nothing here speaks to a server.

Statements may fail, by a key that is there already or by each other's locks: their transaction is then as if it had
never been. Tables stay small, so that most conditions are met by a few rows.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from tests.checkers.oracle.plan import Statement, Transaction
from tests.checkers.oracle.queries import Maker, Source
from tests.checkers.oracle.schema import Column, Relation, Schema
from tests.checkers.oracle.values import KINDS, quoted, some_text, stored

_Choice = TypeVar("_Choice")
MOST_ROWS: Final = 14
_KEYS: Final = 7
_SETTINGS: Final = (
    "SET LOCAL TimeZone = 'Asia/Tokyo'",
    "SET LOCAL DateStyle = 'SQL, DMY'",
    "SET LOCAL IntervalStyle = 'iso_8601'",
    "SET LOCAL bytea_output = 'escape'",
    "SET LOCAL extra_float_digits = 0",
    "SET LOCAL synchronous_commit = off",
    "SET LOCAL search_path = other, public",
    "SET LOCAL row_security = off",
)


class Writer:
    """Makes transactions; without `ddl` they change no definitions."""

    def __init__(self, schema: Schema, chance: random.Random, *, ddl: bool = True) -> None:
        self._schema = schema
        self._chance = chance
        self._targets = [each for each in schema.relations if each.shape != "view"]
        self._maker = Maker(schema, chance, constants=True)
        self._ddl = ddl
        self._added: list[tuple[str, str]] = []
        self._number = 0

    def filling(self) -> Iterator[str]:
        """The first rows of every table."""
        for table in self._targets:
            for _ in range(self._chance.randint(2, 6)):
                yield self._insert(table)

    def round(self) -> tuple[tuple[Transaction, ...], ...]:
        """Mostly one small transaction, so that nothing else can hide what it was not seen to touch."""
        size = self._chance.random()
        if size < 0.55:
            return ((Transaction((Statement(self._statement()),)),),)
        writers = 1 if size < 0.7 else self._chance.randint(2, 3)
        return tuple(tuple(self._transaction() for _ in range(self._chance.randint(1, 3))) for _ in range(writers))

    def _transaction(self) -> Transaction:
        statements = [
            Statement(self._statement(), undone=self._chance.random() < 0.12)
            for _ in range(self._pick((1, 1, 2, 3, 5)))
        ]
        if self._chance.random() < 0.15:
            statements.insert(0, Statement(self._pick(_SETTINGS)))
        isolation = self._pick(("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"))
        return Transaction(tuple(statements), commit=self._chance.random() > 0.12, isolation=isolation)

    def _statement(self) -> str:
        form = self._chance.random()
        if form < 0.03 and self._ddl:
            return self._definition()
        table = self._schema.some_relation(self._chance, self._targets)
        for share, make in self._MADE:
            if form < share:
                return make(self, table).replace("%%", "%")
        raise AssertionError

    # One method for each kind of statement

    def _insert(self, table: Relation) -> str:
        columns = table.writable
        rows = ", ".join(f"({self._row(table, columns)})" for _ in range(self._pick((1, 1, 2, 3))))
        names = ", ".join(column.name for column in columns)
        small = f"(SELECT count(*) FROM {table.name}) < {MOST_ROWS}"
        conflict = " ON CONFLICT DO NOTHING" if self._chance.random() < 0.7 else ""
        return f"INSERT INTO {table.name} ({names}) SELECT * FROM (VALUES {rows}) AS new WHERE {small}{conflict}"

    def _upsert(self, table: Relation) -> str:
        if not table.key:
            return self._insert(table)
        columns = table.writable
        names = ", ".join(column.name for column in columns)
        changed = self._assigned([column for column in columns if column.name not in table.key], table.name)
        return (
            f"INSERT INTO {table.name} ({names}) VALUES ({self._row(table, columns)})"
            f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {changed}"
        )

    def _update(self, table: Relation) -> str:
        columns = [column for column in table.writable if column.name not in table.key]
        return f"UPDATE {table.name} SET {self._assigned(columns, table.name)} WHERE {self._where(table)}"

    def _update_one(self, table: Relation) -> str:
        column = self._column(table)
        where = f"i0 = {self._chance.randrange(_KEYS)}" if _has(table, "i0") else self._where(table)
        return f"UPDATE {table.name} SET {column.name} = {self._value(column)} WHERE {where}"

    def _leave(self, table: Relation) -> str:
        """Rows leave what asks for one value and come to what asks for another."""
        column = self._column(table)
        kind = KINDS[column.kind]
        text = quoted(some_text(kind, self._chance)).replace("%", "%%")
        where = f"{column.name} = {text}::{kind.sql}" if self._chance.random() < 0.9 else f"{column.name} IS NULL"
        return f"UPDATE {table.name} SET {column.name} = {self._value(column)} WHERE {where}"

    def _update_all(self, table: Relation) -> str:
        return f"UPDATE {table.name} SET i2 = coalesce(i2, 0) %% 4 + 1"

    def _rekey(self, table: Relation) -> str:
        if not _has(table, "i0"):
            return self._update(table)
        old, new = self._chance.randrange(_KEYS), self._chance.randrange(_KEYS)
        return f"UPDATE {table.name} SET i0 = {new} WHERE i0 = {old}"

    def _delete(self, table: Relation) -> str:
        if _has(table, "i0") and self._chance.random() < 0.6:
            return f"DELETE FROM {table.name} WHERE i0 = {self._chance.randrange(_KEYS)}"
        return f"DELETE FROM {table.name} WHERE {self._where(table)}"

    def _move(self, table: Relation) -> str:
        """Rows of one table go to another in one statement."""
        other = self._pick(self._schema.tables)
        names = [c.name for c in table.writable if _has(other, c.name) and c.name in {w.name for w in other.writable}]
        if other.name == table.name or not names:
            return self._update(table)
        needed = [column for column in other.writable if column.name not in names]
        listed = ", ".join([*names, *(column.name for column in needed)])
        values = ", ".join([*names, *(self._value(column) for column in needed)])
        return (
            f"WITH gone AS (DELETE FROM {table.name} WHERE {self._where(table)} RETURNING *)"
            f" INSERT INTO {other.name} ({listed}) SELECT {values} FROM gone ON CONFLICT DO NOTHING"
        )

    def _merge(self, table: Relation) -> str:
        if not table.key:
            return self._update(table)
        columns = table.writable
        names = ", ".join(column.name for column in columns)
        matched = " AND ".join(f"old.{name} = new.{name}" for name in table.key)
        changed = self._assigned([column for column in columns if column.name not in table.key], "old")
        otherwise = self._pick((f"UPDATE SET {changed}", "DELETE", "DO NOTHING"))
        values = ", ".join(f"new.{column.name}" for column in columns)
        return (
            f"MERGE INTO {table.name} old USING (VALUES ({self._row(table, columns)})) AS new ({names}) ON {matched}"
            f" WHEN MATCHED THEN {otherwise} WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        )

    def _truncate(self, table: Relation) -> str:
        return f"TRUNCATE {table.name}"

    def _swap(self, table: Relation) -> str:
        """Two columns change places."""
        return f"UPDATE {table.name} SET i1 = i2, i2 = i1 WHERE {self._where(table)}"

    _MADE: Final[Sequence[tuple[float, Callable[["Writer", Relation], str]]]] = (
        (0.23, _insert),
        (0.29, _upsert),
        (0.47, _update_one),
        (0.62, _leave),
        (0.72, _update),
        (0.74, _update_all),
        (0.78, _swap),
        (0.83, _rekey),
        (0.92, _delete),
        (0.95, _move),
        (0.99, _merge),
        (1.0, _truncate),
    )

    # Definitions

    def _definition(self) -> str:
        self._number += 1
        number = self._number
        table = self._pick(self._schema.tables)
        forms = [
            f"ALTER TABLE {table.name} ADD COLUMN added_{number} int",
            f"ALTER TABLE {table.name} ADD COLUMN added_{number} int NOT NULL DEFAULT 7",
            f"ALTER TABLE {table.name} ALTER COLUMN i2 TYPE {self._pick(('bigint', 'int', 'numeric'))}",
            f"ALTER TABLE {table.name} ALTER COLUMN t1 TYPE {self._pick(('varchar(30)', 'text'))}",
            f"ALTER TABLE {table.name} ALTER COLUMN i1 SET DEFAULT 1",
            f"CREATE VIEW aside_{number} AS SELECT i1 FROM {table.name}",
            f"CREATE INDEX ON {table.name} (i1)",
            f"CREATE TABLE aside_{number} (LIKE {table.name} INCLUDING ALL)",
            f"ANALYZE {table.name}",
            f"LOCK TABLE {table.name}",
            f"LOCK TABLE {table.name}",
            f"ALTER TABLE {table.name} {self._pick(('ENABLE', 'DISABLE'))} ROW LEVEL SECURITY",
            f"CREATE POLICY added_{number} ON {table.name} FOR SELECT USING (i1 = {self._chance.randint(0, 3)})",
        ]
        forms += [
            f"CREATE OR REPLACE VIEW {view.name} AS SELECT * FROM ({_body(view)}) AS old WHERE {self._where(view)}"
            for view in self._schema.relations
            if view.shape == "view"
        ]
        parted = [each for each in self._schema.tables if each.partitioned]
        if parted:
            name = self._pick(parted).name
            forms += [
                f"ALTER TABLE {name} DETACH PARTITION {name}_1",
                f"ALTER TABLE {name} ATTACH PARTITION {name}_1 FOR VALUES FROM (2) TO (4)",
            ] * 2
        return self._pick(forms).replace("%%", "%")

    # Parts of statements

    def _column(self, table: Relation) -> Column:
        columns = [column for column in table.writable if column.name not in table.key]
        return self._schema.some_column(self._chance, columns)

    def _row(self, table: Relation, columns: Sequence[Column]) -> str:
        return ", ".join(self._value(column) for column in columns)

    def _value(self, column: Column) -> str:
        if column.name == "i0":
            return str(self._chance.randrange(_KEYS))
        return stored(KINDS[column.kind], self._chance, nullable=column.nullable)

    def _assigned(self, columns: Sequence[Column], table: str) -> str:
        chosen = self._chance.sample(list(columns), self._chance.randint(1, min(3, len(columns))))
        return ", ".join(f"{column.name} = {self._changed(column, table)}" for column in chosen)

    def _changed(self, column: Column, table: str) -> str:
        if column.kind == "int" and self._chance.random() < 0.3:
            return f"coalesce({table.rpartition('.')[2]}.{column.name}, 0) %% 4 + 1"
        return self._value(column)

    def _where(self, table: Relation) -> str:
        plain = [column for column in table.columns if column.kind not in ("list", "json")]
        if plain and self._chance.random() < 0.6:
            column = self._pick(plain)
            text = quoted(self._pick(KINDS[column.kind].texts))
            return f"{column.name} = {text}::{KINDS[column.kind].sql}".replace("%", "%%")
        alias = "old" if table.shape == "view" else table.name.rpartition(".")[2]
        return self._maker.condition((Source(alias, table.columns, table.key),), 2)

    def _pick(self, among: Sequence[_Choice]) -> _Choice:
        return self._chance.choice(among)


def _body(view: Relation) -> str:
    """What a view selects, under the names that it has for it."""
    names = ", ".join(f"c{n} AS {column.name}" for n, column in enumerate(view.columns))
    return f"SELECT {names} FROM ({view.ddl[0].partition(' AS ')[2]}) AS inner_{view.name}".replace("%", "%%")


def _has(table: Relation, name: str) -> bool:
    return any(column.name == name for column in table.columns)
