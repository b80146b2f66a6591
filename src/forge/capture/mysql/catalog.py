"""Query a server about itself and its tables, with plain queries on one connection.

Everything here is current, while the binary log describes the past: it is used for what the log lacks. `MysqlServer`
identifies the server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from forge.capture.mysql.address import Connection
from forge.capture.mysql.cascades import ACTING, Cascade, Name
from forge.capture.mysql.codecs import Charset
from forge.capture.mysql.tables import KnownColumn, KnownTable
from forge.errors import SourceError

OWN = ("information_schema", "performance_schema", "mysql", "sys")
"""The server's own schemas, which are never followed."""


_SETTINGS = (
    "version", "version_comment", "server_id", "server_uid", "server_uuid", "gtid_mode", "log_bin", "binlog_checksum",
    "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options", "expire_logs_days",
    "binlog_transaction_compression", "binlog_annotate_row_events", "binlog_rows_query_log_events",
    "binlog_expire_logs_seconds",
)  # fmt: skip


class MysqlServer(msgspec.Struct, frozen=True):
    """The identity of a server, and its settings."""

    identity: str
    version: tuple[int, ...]
    mariadb: bool
    settings: Mapping[str, str]

    def setting(self, name: str) -> str:
        """Return a global setting, empty if the server has none of that name."""
        return self.settings.get(name, "")


class Log(NamedTuple):
    """A file of the binary log."""

    file: str
    size: int


def ask(connection: Connection, sql: str, values: Iterable[object] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of a query, each value as text (bytes if the column is binary)."""
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(values) or None)
        return list(cursor.fetchall())


def server(connection: Connection) -> MysqlServer:
    """Identify the server. On MariaDB the identity is `server_uid` if there is one, else only its `server_id`."""
    names = ", ".join(f"'{name}'" for name in _SETTINGS)
    rows = ask(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    settings = {str(name).lower(): str(value) for name, value in rows}
    words = settings["version"]
    numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", words)
    version = tuple(map(int, numbers.groups())) if numbers else (0, 0, 0)
    mariadb = "mariadb" in words.lower() or "mariadb" in settings.get("version_comment", "").lower()
    if uuid := settings.get("server_uuid"):
        identity = uuid
    else:
        seed = settings.get("server_uid", "")
        mark = hashlib.sha256(seed.encode()).hexdigest()[:12] if seed else "0"
        identity = f"{settings['server_id']}-{mark}"
    return MysqlServer(identity, version, mariadb, settings)


def logs(connection: Connection) -> list[Log]:
    """Return the retained files of the binary log, oldest first."""
    return [Log(str(row[0]), int(row[1])) for row in ask(connection, "SHOW BINARY LOGS")]


def end(connection: Connection, told: MysqlServer) -> tuple[str, int]:
    """Return the file and offset behind all that is committed."""
    new = told.version >= (8, 2, 0) and not told.mariadb
    found = ask(connection, "SHOW BINARY LOG STATUS" if new else "SHOW MASTER STATUS")
    if not found:
        raise SourceError("the server keeps no binary log", fix="set log_bin=mysql-bin and server_id, and restart it")
    return str(found[0][0]), int(found[0][1])


def gtid(connection: Connection, told: MysqlServer, file: str, offset: int) -> str:
    """Return MariaDB's position by global transaction ids at a place; empty on MySQL."""
    if not told.mariadb:
        return ""
    found = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))
    return str(found[0][0] or "")


def tables(connection: Connection, schema: str | None) -> dict[Name, str]:
    """Return the tables that are followed without a filter, with their engines."""
    where = "table_schema = %s" if schema else f"table_schema NOT IN ({', '.join(['%s'] * len(OWN))})"
    rows = ask(
        connection,
        "SELECT table_schema, table_name, engine FROM information_schema.tables"
        f" WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND {where} ORDER BY table_schema, table_name",
        (schema,) if schema else OWN,
    )
    return {(str(row[0]), str(row[1])): str(row[2] or "") for row in rows}


def columns(connection: Connection, schema: str | None) -> list[tuple[str, str, list[str]]]:
    """Return the columns of the tables that are followed without a filter: schema, table, names."""
    where = "table_schema = %s" if schema else f"table_schema NOT IN ({', '.join(['%s'] * len(OWN))})"
    rows = ask(
        connection,
        f"SELECT table_schema, table_name, column_name FROM information_schema.columns WHERE {where}"
        " ORDER BY table_schema, table_name, ordinal_position",
        (schema,) if schema else OWN,
    )
    found: dict[Name, list[str]] = {}
    for space, table, column in rows:
        found.setdefault((str(space), str(table)), []).append(str(column))
    return [(*name, found[name]) for name in tables(connection, schema) if name in found]


def keyed(connection: Connection) -> set[Name]:
    """Return the tables that have a primary key."""
    rows = ask(
        connection,
        "SELECT table_schema, table_name FROM information_schema.statistics"
        " WHERE index_name = 'PRIMARY' AND seq_in_index = 1",
    )
    return {(str(row[0]), str(row[1])) for row in rows}


def known(connection: Connection, schema: str, table: str) -> KnownTable | None:
    """Return a table's columns and key, or None if it does not exist (or is hidden from this user)."""
    rows = ask(
        connection,
        "SELECT column_name, column_type, character_set_name, collation_name, extra, generation_expression"
        " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (schema, table),
    )
    if not rows:
        return None
    columns = tuple(
        KnownColumn(
            str(name), _kind(str(type)), charset and str(charset), _words(str(type)), collation, str(how or "").upper()
        )
        for name, type, charset, collation, _, how in rows
    )
    key = ask(
        connection,
        "SELECT column_name FROM information_schema.statistics"
        " WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index",
        (schema, table),
    )
    ((kind,),) = ask(
        connection,
        "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (schema, table),
    ) or [("",)]
    ends = next((each.name for each in columns if each.generated == "ROW END"), "row_end")
    names = tuple(str(row[0]) for row in key)
    return KnownTable(columns, names, ends if kind == "SYSTEM VERSIONED" else None, kind == "SEQUENCE")


def _kind(type: str) -> str:
    """Convert to lower case, except the words of enums and sets."""
    head, mark, rest = type.partition("(")
    return head.lower() + mark + (rest if head.lower() in ("enum", "set") else rest.lower())


def _words(type: str) -> tuple[str, ...]:
    """
    >>> _words("enum('a','it''s')"), _words("varchar(3)")
    (('a', "it's"), ())
    """
    if not re.match(r"(enum|set)\(", type, re.I):
        return ()
    return tuple(word.replace("''", "'") for word in re.findall(r"'((?:[^']|'')*)'", type))


def cascades(connection: Connection) -> dict[Name, list[Cascade]]:
    """Return, by parent, the foreign keys whose actions change other tables' rows."""
    rows = ask(
        connection,
        "SELECT r.constraint_name, k.referenced_table_schema, k.referenced_table_name, r.constraint_schema,"
        " r.table_name, r.delete_rule, r.update_rule, k.referenced_column_name, k.column_name"
        " FROM information_schema.referential_constraints r JOIN information_schema.key_column_usage k"
        " ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name"
        " AND k.table_name = r.table_name"
        f" WHERE r.delete_rule IN {ACTING} OR r.update_rule IN {ACTING}"
        " ORDER BY r.constraint_schema, r.table_name, r.constraint_name, k.ordinal_position",
    )
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for row in rows:
        texts = tuple(map(str, row))
        found.setdefault(texts[:7], []).append((texts[7], texts[8]))
    by_parent: dict[Name, list[Cascade]] = {}
    for (constraint, schema, table, child_schema, child, on_delete, on_update), columns in found.items():
        cascade = Cascade(constraint, (schema, table), (child_schema, child), tuple(columns), on_delete, on_update)
        by_parent.setdefault(cascade.parent, []).append(cascade)
    return by_parent


class Charsets:
    """The server's character sets: the one of a collation, and how its texts are decoded.

    Single-byte sets are decoded as the server itself converts them, the others as Python does.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.by_collation: dict[int, str] = {
            int(row[0]): str(row[1])
            for row in ask(
                connection, "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL"
            )
            if row[1]
        }
        columns = {str(row[0]).lower() for row in ask(connection, _APPLICABLE)}
        if "id" in columns:
            rows = ask(
                connection,
                "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability",
            )
            self.by_collation |= {int(row[0]): str(row[1]) for row in rows if row[0] and row[1]}
        self._single = {
            str(row[0])
            for row in ask(
                connection, "SELECT character_set_name FROM information_schema.character_sets WHERE maxlen = 1"
            )
        }
        self._made: dict[str, Charset] = {}

    def __call__(self, name: str) -> Charset:
        found = self._made.get(name)
        if found is None:
            table = None
            if name in self._single and name not in ("ascii", "binary"):
                every = bytes(range(256)).hex()
                ((table,),) = ask(self._connection, f"SELECT CONVERT(_{name} x'{every}' USING utf8mb4)")
                table = str(table) if len(str(table)) == 256 else None
            found = self._made[name] = Charset(name, table)
        return found


_APPLICABLE = (
    "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = 'information_schema' AND table_name = 'COLLATION_CHARACTER_SET_APPLICABILITY'"
)
