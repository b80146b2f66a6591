"""Looking at the log from a test."""

import json
from typing import Any, NamedTuple

from psycopg import sql

from forge.postgres.connection import Connection

ROWS = (
    "SELECT l.op::text, l.row_id, l.before::text, l.after::text, l.hidden, v.schema_name, v.table_name,"
    " v.key_columns, l.context::text"
    " FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version"
    " ORDER BY coalesce(l.rank, l.id), l.id"
)


class Logged(NamedTuple):
    """One row of the log."""

    op: str
    row_id: str | None
    before: str | None
    after: str | None
    hidden: list[str] | None
    schema: str
    table: str
    key: list[str]
    context: str | None

    @property
    def new(self) -> dict[str, Any]:
        return dict(json.loads(self.after or "{}"))

    @property
    def old(self) -> dict[str, Any]:
        return dict(json.loads(self.before or "{}"))

    @property
    def changed(self) -> dict[str, Any]:
        """What an update changed, by column: the old and the new value."""
        new = self.new
        return {name: (value, new[name]) for name, value in self.old.items() if value != new[name]}


def logged(connection: Connection, table: str | None = None) -> list[Logged]:
    """Every change of rows in the log, in order: of one table, or of all."""
    return [row for row in everything(connection, table) if row.op in "IUDT"]


def everything(connection: Connection, table: str | None = None) -> list[Logged]:
    """Every row of the log, in order: of one table, or of all."""
    rows = [Logged(*row) for row in connection.execute(ROWS).fetchall()]
    return [row for row in rows if table in (None, row.table)]


def ops(connection: Connection, table: str | None = None) -> list[tuple[str, str | None]]:
    """What was logged, as (op, row id)."""
    return [(row.op, row.row_id) for row in logged(connection, table)]


def enable(connection: Connection, table: str, **options: Any) -> None:
    """Track a table."""
    named = "".join(f", {name} => %({name})s" for name in options)
    connection.execute(f"SELECT forge_enable_reactivity(%(table)s{named})", {"table": table, **options})


def replay(connection: Connection, table: str) -> list[str]:
    """The rows that the log of a table leads to, as sorted JSON: each step must fit the one before."""
    state: dict[str, dict[str, Any]] = {}
    for row in logged(connection, table):
        key = row.row_id if row.row_id is not None else json.dumps(row.new if row.op == "I" else row.old)
        if row.op == "I":
            assert key not in state, f"{key} is inserted but there"
            state[key] = row.new
        elif row.op == "U":
            assert {**row.new, **row.old} == state[key], f"{key} is updated from what it was not"
            state[key] = row.new
        elif row.op == "D":
            assert state.pop(key) == row.old, f"{key} is deleted as what it was not"
        else:
            state.clear()
    return sorted(json.dumps(row, sort_keys=True) for row in state.values())


def stored(connection: Connection, table: str) -> list[str]:
    """The rows of a table of plain types, in the form of `replay`."""
    query = sql.SQL("SELECT row_to_json(t)::text FROM {} t").format(sql.Identifier(*table.split(".")))
    return sorted(json.dumps(json.loads(text), sort_keys=True) for (text,) in connection.execute(query))
