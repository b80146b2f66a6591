"""Select what to observe: SQLAlchemy engines and sessionmakers, psycopg connections. `ctx.db` is always observed.

    engine = forge.observe(create_engine(url))                   # an AsyncEngine or sessionmaker too
    connection = forge.observe(psycopg.connect(url))             # an AsyncConnection too
    pool = ConnectionPool(url, kwargs={"cursor_factory": ObservedCursor})

`observe` returns its argument, which works as before; a second call for the same object has no effect.
"""

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from forge.errors import ConfigError
from forge.observing.hub import Timed, hub

T = TypeVar("T")
Row = TypeVar("Row", covariant=True)


def observe(what: T, /, *, name: str | None = None) -> T:
    """Report its statements, under this name; without a name, under the kind and name of its database."""
    if isinstance(what, psycopg.Connection):
        what.cursor_factory = ObservedCursor
    elif isinstance(what, psycopg.AsyncConnection):
        what.cursor_factory = AsyncObservedCursor
    elif "sqlalchemy" not in sys.modules or not import_module("forge.observing.engines").watch(what, name):
        raise ConfigError(
            f"a {type(what).__name__} cannot be observed",
            fix="pass a SQLAlchemy engine or sessionmaker, or a psycopg connection",
        )
    return what


class ObservedCursor(psycopg.Cursor[Row]):
    """A psycopg cursor whose statements are reported: for `cursor_factory` of a connection or a pool."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> "ObservedCursor[Row]":
        if not hub.listening:
            return super().execute(query, params, **options)
        with _timed(self, query, params) as timed:
            super().execute(query, params, **options)
            timed.row_count = self.rowcount
        return self

    def executemany(self, query: Any, params_seq: Iterable[Any], **options: Any) -> None:
        if not hub.listening:
            super().executemany(query, params_seq, **options)
            return
        counted = list(params_seq)
        with _timed(self, query, counted[0] if counted else None, len(counted)) as timed:
            super().executemany(query, counted, **options)
            timed.row_count = self.rowcount


class AsyncObservedCursor(psycopg.AsyncCursor[Row]):
    """The same for asynchronous connections."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> "AsyncObservedCursor[Row]":
        if not hub.listening:
            return await super().execute(query, params, **options)
        with _timed(self, query, params) as timed:
            await super().execute(query, params, **options)
            timed.row_count = self.rowcount
        return self

    async def executemany(self, query: Any, params_seq: Iterable[Any], **options: Any) -> None:
        if not hub.listening:
            await super().executemany(query, params_seq, **options)
            return
        counted = list(params_seq)
        with _timed(self, query, counted[0] if counted else None, len(counted)) as timed:
            await super().executemany(query, counted, **options)
            timed.row_count = self.rowcount


def _timed(cursor: "psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]", query: Any, params: Any, many: int = 1) -> Timed:
    if isinstance(query, bytes):
        text = query.decode(errors="replace")
    elif isinstance(query, sql.Composable):
        text = query.as_string(cursor)
    else:
        text = query if isinstance(query, str) else str(query)
    connection = cursor.connection
    name = "" if connection.closed else connection.info.dbname
    return Timed(text, params, source="psycopg", engine=f"postgresql/{name}", many=many)
