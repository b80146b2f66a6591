"""Random statements on tables of every kind; a seed makes them again."""

import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import apsw

SCHEMA = """
CREATE TABLE a (
    id INTEGER PRIMARY KEY, email TEXT COLLATE NOCASE UNIQUE, n, tag TEXT,
    twice GENERATED ALWAYS AS (n * 2) VIRTUAL, kept AS (tag || '!') STORED
);
CREATE UNIQUE INDEX a_n ON a (n, tag) WHERE n > 2;
CREATE TABLE b (k TEXT COLLATE NOCASE, m, v, PRIMARY KEY (k, m)) WITHOUT ROWID;
CREATE UNIQUE INDEX b_v ON b (v DESC) WHERE v IS NOT NULL;
CREATE TABLE c (x, y);
CREATE UNIQUE INDEX c_x ON c (lower(x)) WHERE y > 1;
CREATE TABLE d (
    id INTEGER PRIMARY KEY AUTOINCREMENT, a REFERENCES a (id) ON DELETE CASCADE ON UPDATE CASCADE,
    other REFERENCES a (id) ON DELETE SET NULL, w
);
CREATE TABLE e (id TEXT PRIMARY KEY, q INTEGER UNIQUE ON CONFLICT REPLACE, r REAL) STRICT;
CREATE TABLE g (id INTEGER PRIMARY KEY, double AS (n + 1) UNIQUE, n);
"""
TRIGGERS = """
CREATE TRIGGER a_more AFTER INSERT ON a WHEN NEW.n = 1 BEGIN INSERT OR IGNORE INTO c VALUES (NEW.tag, NEW.n); END;
CREATE TRIGGER c_less BEFORE INSERT ON c WHEN NEW.y = 3 BEGIN DELETE FROM c WHERE x = NEW.x; END;
CREATE TRIGGER b_again AFTER INSERT ON b WHEN NEW.m < 2 BEGIN
    INSERT OR REPLACE INTO b VALUES (NEW.k, NEW.m + 2, NEW.v);
END;
CREATE TRIGGER e_first BEFORE INSERT ON e WHEN NEW.q = 5 BEGIN
    INSERT OR REPLACE INTO e VALUES (NEW.id || 'x', NEW.q, 0.5);
END;
"""
TABLES = ("a", "b", "c", "d", "e", "g")
COLUMNS = {
    "a": ("id", "email", "n", "tag"),
    "b": ("k", "m", "v"),
    "c": ("x", "y"),
    "d": ("id", "a", "other", "w"),
    "e": ("id", "q", "r"),
    "g": ("id", "n"),
}
CLAUSES = ("", "OR ABORT", "OR FAIL", "OR IGNORE", "OR REPLACE", "OR REPLACE", "OR ROLLBACK")


class Fuzz:
    """Writes on one connection."""

    def __init__(self, connection: Any, seed: int, tables: Sequence[str] = TABLES) -> None:
        self.random = random.Random(seed)
        self._tables = tables
        self._connection = connection
        self.refused = 0

    def step(self) -> str:
        """One statement; one that SQLite refuses is a case as well."""
        make: Callable[[], str] = self.random.choices(
            (self._insert, self._upsert, self._update, self._delete, self._border), (10, 4, 8, 3, 5)
        )[0]
        statement = make()
        try:
            self._connection.execute(statement)
        except (sqlite3.Error, apsw.Error) as error:
            if not isinstance(error, sqlite3.IntegrityError | apsw.ConstraintError) and not _expected(error):
                raise AssertionError(f"{statement}: {error}") from error
            self.refused += 1
        return statement

    def end(self) -> None:
        """Commit what is open."""
        if self._connection.in_transaction:
            self._connection.execute(self.random.choice(("COMMIT", "COMMIT", "ROLLBACK")))

    def _value(self, table: str, column: str) -> str:
        pick = self.random
        if column in ("email", "k", "x", "tag") or (table == "e" and column == "id"):
            return pick.choice(("'a'", "'A'", "'b'", "'B'", "'c'", "'d'", "''", "NULL"))
        if table == "e":
            return pick.choice(("1", "2", "5", "NULL")) if column == "q" else pick.choice(("1.5", "2", "NULL"))
        if column == "id":
            return pick.choice(("1", "2", "3", "4", "5", "6", "-1", "NULL"))
        return pick.choice(("0", "1", "2", "3", "4", "1.5", "'t'", "x'00ff'", "NULL"))

    def _table(self) -> str:
        return self.random.choice(self._tables)

    def _insert(self) -> str:
        table = self._table()
        columns = COLUMNS[table]
        rows = ", ".join(
            "(" + ", ".join(self._value(table, column) for column in columns) + ")"
            for _ in range(self.random.randint(1, 3))
        )
        clause = self.random.choice(CLAUSES)
        if table == "c" and self.random.random() < 0.3:
            return f"INSERT {clause} INTO c (rowid, x, y) VALUES ({self.random.randint(1, 4)}, 'r', 0)"
        return f"INSERT {clause} INTO {table} ({', '.join(columns)}) VALUES {rows}"

    def _upsert(self) -> str:
        table = self._table()
        columns = COLUMNS[table]
        values = ", ".join(self._value(table, column) for column in columns)
        column = self.random.choice(columns)
        action = self.random.choice((f"UPDATE SET {column} = {self._value(table, column)}", "NOTHING"))
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) ON CONFLICT DO {action}"

    def _where(self, table: str) -> str:
        column = self.random.choice(COLUMNS[table])
        return self.random.choice(("", f" WHERE {column} = {self._value(table, column)}", f" WHERE {column} > 1"))

    def _update(self) -> str:
        table = self._table()
        sets = []
        for column in self.random.sample(COLUMNS[table], self.random.randint(1, 2)):
            moved = column in ("id", "n", "m") and table != "e" and self.random.random() < 0.4
            sets.append(f"{column} = " + (f"{column} + 1" if moved else self._value(table, column)))
        if table == "c" and self.random.random() < 0.3:
            sets.append("oid = oid + 1")
        return f"UPDATE {self.random.choice(CLAUSES)} {table} SET {', '.join(sets)}{self._where(table)}"

    def _delete(self) -> str:
        table = self._table()
        return f"DELETE FROM {table}{self._where(table)}"

    def _border(self) -> str:
        if not self._connection.in_transaction:
            return self.random.choice(("BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT s"))
        return self.random.choice(
            (
                "COMMIT",
                "COMMIT",
                "ROLLBACK",
                "SAVEPOINT s",
                "SAVEPOINT s",
                "RELEASE s",
                "ROLLBACK TO s",
                "ROLLBACK TO s",
            )
        )


def _expected(error: Exception) -> bool:
    words = ("no such savepoint", "cannot", "ON CONFLICT clause", "too many levels of trigger", "nested too deep")
    return any(word in str(error) for word in words)
