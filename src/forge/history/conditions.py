"""Evaluate a condition on past rows in PostgreSQL.

Rows are sent to the server as values of the types that their columns had, and the server evaluates the condition on
them, in the read-only transaction in which the past is read. A condition refers to one row: a subquery would read the
current tables, so it is refused, and so is anything that is not one expression.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import psycopg
import sqlglot
from psycopg import Cursor as Rows
from psycopg import sql
from sqlglot import exp

from forge.errors import HistoryUnavailable
from forge.history.definitions import UNSEEN, DefinitionVersion
from forge.postgres.text import check_storable

_EXAMPLE: Final = "write what could stand behind WHERE and speaks of one row: customer_id = 7 AND status <> 'done'"
_FORBIDDEN: Final = (exp.Query, exp.Subquery, exp.DML, exp.Command, exp.Window, exp.AggFunc)


class Condition:
    """A condition on rows of one version of a table; `names` are the columns that it uses.

    For the condition, a row has no columns that are not logged and no `veiled` ones.
    """

    def __init__(self, where: str, version: DefinitionVersion, table: str, veiled: Collection[str] = ()) -> None:
        check_storable("the condition", where)
        self._where = where
        self._table = table
        parsed = _parsed(where)
        fields = [field for field in version.fields if field.kind not in UNSEEN and field.name not in veiled]
        named = {column.name for column in parsed.find_all(exp.Column)}
        lowered = {name.lower() for name in named}
        secret = {field.name for field in version.fields if field not in fields}
        if refused := {name for name in secret if name in named or name in lowered}:
            raise HistoryUnavailable(
                f"the log does not have {', '.join(sorted(refused))} of {table}", fix="leave it out of the condition"
            )
        self.names = frozenset(field.name for field in fields if field.name in named or field.name in lowered)
        record = sql.SQL(", ").join(
            sql.SQL("{} {}").format(
                sql.Identifier(field.name), sql.SQL("json" if field.kind == "jsonb" else field.type)
            )
            for field in fields
        )
        values = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(_value(field.kind, field.name), sql.Identifier(field.name)) for field in fields
        )
        self._query = sql.SQL(
            "SELECT forge_given.forge_place FROM json_array_elements(%s::text::json) WITH ORDINALITY"
            " forge_given (forge_row, forge_place) CROSS JOIN LATERAL (SELECT {values} FROM"
            " json_to_record(forge_given.forge_row) AS forge_typed ({record})) {table}"
            " WHERE (\n{where}\n)"
        ).format(
            values=values,
            record=record,
            table=sql.Identifier(version.table),
            where=sql.SQL(where.replace("%", "%%")),
        )

    def satisfied(self, rows: Rows[Any], images: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the images of the rows for which it is true, in their order."""
        try:
            places = {place for (place,) in rows.execute(self._query, (f"[{b','.join(images).decode()}]",))}
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError, psycopg.InternalError) as error:
            line = error.diag.message_primary or "not a condition"
            raise HistoryUnavailable(f"the condition on {self._table} cannot be asked: {line}", fix=_EXAMPLE) from None
        return (image for place, image in enumerate(images, 1) if place in places)


def _parsed(where: str) -> exp.Expression:
    try:
        statements = sqlglot.parse(f"SELECT 1 WHERE (\n{where}\n)", dialect="postgres")
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise HistoryUnavailable("the condition is not understood", fix=_EXAMPLE) from None
    found = statements[0]
    condition = found.find(exp.Where) if found is not None else None
    if (
        len(statements) != 1
        or not isinstance(found, exp.Select)
        or condition is None
        or not isinstance(condition.this, exp.Paren)
        or any(value for name, value in found.args.items() if name not in ("expressions", "where", "kind"))
    ):
        raise HistoryUnavailable("the condition is not one expression", fix=_EXAMPLE)
    if condition.this.find(*_FORBIDDEN) is not None:
        raise HistoryUnavailable("the condition speaks of more than one row", fix=_EXAMPLE)
    return condition.this


def _value(kind: str, name: str) -> sql.Composable:
    """Return a column's value as the table had it: some jsonb values are wrapped in the log."""
    column = sql.Identifier("forge_typed", name)
    if kind != "jsonb":
        return column
    return sql.SQL(
        "CASE WHEN json_typeof({0}) = 'object' AND {0}::jsonb ? '$json' THEN {0}::jsonb -> '$json' ELSE {0}::jsonb END"
    ).format(column)
