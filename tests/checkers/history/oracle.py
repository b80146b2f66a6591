"""Asking the database itself: what is in the log, what is in the tables, what a cursor leads to.

The rows of tables are read with plain SQL and psycopg's own types, so that Forge's decoding is checked too.
"""

import json
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from forge.change import Change, Row
from forge.changelog.install import install
from forge.changelog.reader import Reader
from forge.cursor import Cursor
from forge.postgres.connection import Connection, connect
from tests.checkers.history.model import LogRow, Truth
from tests.checkers.history.tables import TABLES
from tests.checkers.session_settings import set_defaults

_LOG = """
    SELECT l.id, coalesce(l.rank, l.id), l.op::text, v.table_name, l.row_id, l.trace_id,
           CASE l.op WHEN 'U' THEN coalesce(l.before ->> 'm', l.after ->> 'm') ELSE l.before ->> 'm' END,
           l.after ->> 'm'
    FROM forge.forge_event_log l JOIN forge.table_version v ON v.id = l.version
    WHERE l.id >= (SELECT i.first_id FROM forge.current_identity() i) ORDER BY l.id
"""


def prepare(url: str, settings: Mapping[str, str]) -> None:
    """Give the database its settings, install the log, make the tables and track them."""
    with connect(url) as connection:
        set_defaults(connection, settings)
    with psycopg.connect(url, autocommit=True) as connection:
        install(connection)
        for table in TABLES.values():
            connection.execute(table.ddl.encode())
        for name in TABLES:
            connection.execute("SELECT forge_enable_reactivity(%s)", [name])


def truth(url: str, crashes: Sequence[float] = ()) -> Truth:
    """What the database says now."""
    with connect(url) as connection:
        log = [LogRow(*row) for row in connection.execute(_LOG).fetchall()]
        tables = {name: _rows(connection, name) for name in TABLES}
    return Truth(log, tables, crashes)


def _rows(connection: Connection, table: str) -> list[Row]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))).fetchall()
        if table == "plain":
            times = cursor.execute("SELECT k, to_json(at)::text AS at FROM plain").fetchall()
            printed = {row["k"]: json.loads(row["at"]) for row in times if row["at"] is not None}
            rows = [{**row, "at": printed.get(row["k"])} for row in rows]
    return list(rows)


async def beginning(url: str) -> str:
    """The cursor before the first change."""
    async with Reader.open(url) as reader:
        return str(reader.start())


async def read_from(url: str, cursor: str, tables: Sequence[str] | None) -> list[Change]:
    """All that is committed after a cursor; from one inside a batch the rest of that batch comes first."""
    found: list[Change] = []
    stands = Cursor.parse(cursor)
    async with Reader.open(url) as reader:
        inside = True
        while inside:
            inside = stands.until is not None
            async for batch in reader.read(stands, tables=tables):
                found += batch.changes
                stands = batch.cursor
    return found
