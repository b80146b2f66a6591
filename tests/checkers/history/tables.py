"""The tables of a history and the statements that change them, as text; nothing here speaks to a server.

Every table has `m`, the mark of the operation that last wrote the row, and `n`, a number from which the other
values follow. A plan names rows by one number, whatever the key of their table is made of.
"""

from typing import Final

import msgspec

from tests.checkers.history.plan import Operation


class Table(msgspec.Struct, frozen=True):
    """One tracked table: `key` and `payload` are pairs of column and expression over `{k}` and the parameters."""

    name: str
    ddl: str
    key: tuple[tuple[str, str], ...] = (("k", "{k}"),)
    payload: tuple[tuple[str, str], ...] = ()
    unique: bool = True
    arbiter: bool = True
    """Whether ON CONFLICT can be used."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.key) if self.unique else ()


_NEST: Final = """
CREATE TABLE nested (k int PRIMARY KEY, m text NOT NULL, n bigint, touched int NOT NULL DEFAULT 0);
CREATE FUNCTION nest() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        UPDATE nested SET touched = touched + 1 WHERE k = NEW.k;
        IF NEW.n %% 5 = 0 THEN
            DELETE FROM nested WHERE k = NEW.k;
        END IF;
    ELSIF pg_trigger_depth() = 1 AND NEW.n %% 3 = 0 THEN
        UPDATE nested SET touched = touched + 1 WHERE k = NEW.k;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER nest AFTER INSERT OR UPDATE ON nested FOR EACH ROW EXECUTE FUNCTION nest();
""".replace("%%", "%")

_PARENT: Final = "(SELECT max(p.k) FROM parent p WHERE p.k <= (%(n)s::bigint + {shift}) %% 30)"

TABLES: Final = {
    table.name: table
    for table in (
        Table(
            "plain",
            "CREATE TABLE plain (k int PRIMARY KEY, m text NOT NULL, n bigint, amount numeric, ratio float8,"
            " raw bytea, at timestamptz, flag boolean)",
            payload=(
                ("amount", "(%(n)s::bigint / 7.0)::numeric(20,6)"),
                ("ratio", "%(n)s::bigint / 3::float8"),
                ("raw", "decode(md5(%(n)s::bigint::text), 'hex')"),
                ("at", "timestamptz '2026-01-01 00:00:00+00' + %(n)s::bigint * interval '1.001 second'"),
                ("flag", "nullif(%(n)s::bigint %% 3, 2) = 1"),
            ),
        ),
        Table(
            "pair",
            "CREATE TABLE pair (b text, m text NOT NULL, n bigint, a int, PRIMARY KEY (a, b))",
            key=(("a", "{k} %% 7"), ("b", "({k} / 7)::text")),
        ),
        Table(
            "parted",
            "CREATE TABLE parted (k int PRIMARY KEY, m text NOT NULL, n bigint) PARTITION BY RANGE (k);"
            "CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (20);"
            "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (20) TO (40)",
        ),
        Table("bare", "CREATE TABLE bare (k int, m text NOT NULL, n bigint)", unique=False, arbiter=False),
        Table(
            "queue",
            "CREATE TABLE queue (k int PRIMARY KEY DEFERRABLE, m text NOT NULL, n bigint)",
            arbiter=False,
        ),
        Table("nested", _NEST),
        Table("parent", "CREATE TABLE parent (k int PRIMARY KEY, m text NOT NULL, n bigint)"),
        Table(
            "child",
            "CREATE TABLE child (k int PRIMARY KEY, m text NOT NULL, n bigint,"
            " owner int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE)",
            payload=(("owner", _PARENT.format(shift=0)),),
        ),
        Table(
            "ward",
            "CREATE TABLE ward (k int PRIMARY KEY, m text NOT NULL, n bigint,"
            " first int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE,"
            " second int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE)",
            payload=(("first", _PARENT.format(shift=1)), ("second", _PARENT.format(shift=2))),
        ),
        Table(
            "heir",
            "CREATE TABLE heir (k int PRIMARY KEY, m text NOT NULL, n bigint,"
            " owner int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE,"
            " first int REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE)",
            payload=(("owner", _PARENT.format(shift=0)), ("first", _PARENT.format(shift=1))),
        ),
    )
}
KEYS: Final = {name: table.key_columns for name, table in TABLES.items()}
"""The key columns of every table; none for a table whose rows are known as a whole only."""


def added_column(number: int) -> str:
    """The name of a column that a plan adds; its default is in its name, so that a replay knows it.

    >>> added_column(3)
    'added_3'
    """
    return f"added_{number}"


def added_default(column: str) -> int | None:
    """
    >>> added_default("added_3"), added_default("k")
    (3, None)
    """
    prefix, _, number = column.partition("_")
    return int(number) if prefix == "added" and number.isdigit() else None


def statement(operation: Operation) -> str:
    """The SQL of one operation, with the parameters k, to, span, m and n. Not for savepoints and copies."""
    table = TABLES[operation.table]
    target = leaf(operation) if operation.leaf else table.name
    return _WRITERS[operation.kind](table, target, operation)


def leaf(operation: Operation) -> str:
    """The partition of the row that an operation names."""
    return f"parted_{operation.k // 20}"


def _keys(table: Table, k: str) -> str:
    return ", ".join(expression.format(k=k) for _, expression in table.key)


def _names(table: Table) -> str:
    return ", ".join(name for name, _ in table.key)


def _assignments(table: Table) -> str:
    own = "m = %(m)s::text, n = %(n)s::bigint"
    return ", ".join([own, *(f"{name} = {expression}" for name, expression in table.payload)])


def _rows() -> str:
    return "generate_series(%(k)s::int, %(k)s::int + %(span)s::int) g"


def _where(table: Table) -> str:
    return f"({_names(table)}) IN (SELECT {_keys(table, 'g')} FROM {_rows()})"


def _selection(table: Table) -> str:
    payload = "".join(f", {expression}" for _, expression in table.payload)
    return f"SELECT {_keys(table, 'g')}, %(m)s::text, %(n)s::bigint{payload} FROM {_rows()}"


def _columns(table: Table) -> str:
    return ", ".join([_names(table), "m", "n", *(name for name, _ in table.payload)])


def _insert(table: Table, target: str, operation: Operation) -> str:
    insert = f"INSERT INTO {target} ({_columns(table)}) {_selection(table)}"
    if table.arbiter:
        return insert + " ON CONFLICT DO NOTHING"
    return f"{insert} WHERE NOT EXISTS (SELECT FROM {table.name} t WHERE t.k = g)" if table.unique else insert


def _insert_strictly(table: Table, target: str, operation: Operation) -> str:
    return f"INSERT INTO {target} ({_columns(table)}) {_selection(table)}"


def _upsert(table: Table, target: str, operation: Operation) -> str:
    if not table.arbiter:
        return _merge(table, target, operation)
    return (
        f"INSERT INTO {target} AS t ({_columns(table)}) {_selection(table)}"
        f" ON CONFLICT ({_names(table)}) DO UPDATE SET {_assignments(table)}"
    )


def _merge(table: Table, target: str, operation: Operation) -> str:
    aliased = ", ".join(f"{expression.format(k='g')} AS {name}" for name, expression in table.key)
    joined = " AND ".join(f"t.{name} = s.{name}" for name, _ in table.key)
    values = ", ".join(
        [
            *(f"s.{name}" for name, _ in table.key),
            "%(m)s::text",
            "%(n)s::bigint",
            *(expression for _, expression in table.payload),
        ]
    )
    return (
        f"MERGE INTO {target} t USING (SELECT {aliased} FROM {_rows()}) s ON {joined}"
        f" WHEN MATCHED THEN UPDATE SET {_assignments(table)}"
        f" WHEN NOT MATCHED THEN INSERT ({_columns(table)}) VALUES ({values})"
    )


def _update(table: Table, target: str, operation: Operation) -> str:
    return f"UPDATE {target} SET {_assignments(table)} WHERE {_where(table)}"


def _rekey(table: Table, target: str, operation: Operation) -> str:
    keys = ", ".join(f"{name} = {expression.format(k='%(to)s::int')}" for name, expression in table.key)
    return f"UPDATE {target} SET {keys}, {_assignments(table)} WHERE {_where(table)}"


def _shift(table: Table, target: str, operation: Operation) -> str:
    return f"UPDATE {target} SET k = k + %(to)s::int - %(k)s::int, {_assignments(table)} WHERE {_where(table)}"


def _delete(table: Table, target: str, operation: Operation) -> str:
    return f"DELETE FROM {target} WHERE {_where(table)}"


def _truncate(table: Table, target: str, operation: Operation) -> str:
    return f"TRUNCATE {target} CASCADE"


def _add_column(table: Table, target: str, operation: Operation) -> str:
    number = operation.n
    return f"ALTER TABLE {target} ADD COLUMN IF NOT EXISTS {added_column(number)} int NOT NULL DEFAULT {number}"


def _attach(table: Table, target: str, operation: Operation) -> str:
    return (
        "CREATE TABLE IF NOT EXISTS parted_2 (LIKE parted INCLUDING ALL);"
        "ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES FROM (40) TO (60)"
    )


def _retype(table: Table, target: str, operation: Operation) -> str:
    return f"ALTER TABLE {target} ALTER COLUMN n TYPE {'int' if operation.n % 2 else 'bigint'}"


_WRITERS: Final = {
    "insert": _insert,
    "insert strictly": _insert_strictly,
    "upsert": _upsert,
    "merge": _merge,
    "update": _update,
    "rekey": _rekey,
    "shift": _shift,
    "delete": _delete,
    "truncate": _truncate,
    "add column": _add_column,
    "attach": _attach,
    "retype": _retype,
}
