"""`ctx.db`: what a query or mutation asks the database, and what it read by it.

Every statement of a query is analysed before it runs; the read set of a run is that of all its statements with the
parameters that they had. A statement whose reads cannot be known is refused before it runs.
"""

import re
import sys
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec
from psycopg.rows import dict_row

from forge.conditions.bound import bind
from forge.errors import ForgeError
from forge.observing.hub import Timed, hub
from forge.postgres.connection import AsyncConnection
from forge.react.index import BoundRead
from forge.react.readset import Analysis
from forge.react.registry import Auth
from forge.tracking.outbox import Key, outbox

Parameters = Mapping[str, Any] | Sequence[Any]
_PLACEHOLDER: Final = re.compile(r"%(?:\(([^)]+)\).|.)")


class QueryFailed(ForgeError):
    """A statement of a query or mutation failed."""


class Analyze(Protocol):
    """Says what a statement reads."""

    def __call__(self, statement: str, parameters: Parameters, /) -> Awaitable[Analysis]: ...


class Context(msgspec.Struct, frozen=True):
    """What a function is given: its database, and who asks."""

    db: "Db"
    auth: Auth

    async def outbox(
        self,
        topic: str,
        payload: object,
        *,
        key: Key | None = None,
        headers: Mapping[str, str] | None = None,
        after: datetime | timedelta | None = None,
    ) -> str:
        """Put a message into the outbox within the mutation's transaction; its id. See `forge.outbox`."""
        return await outbox(self.db._connection, topic, payload, key=key, headers=headers, after=after)


class Db:
    """Statements in the transaction of one run; parameters are the call's arguments unless others are given."""

    def __init__(self, connection: AsyncConnection, arguments: Mapping[str, Any]) -> None:
        self._connection = connection
        self._rows = connection.cursor(row_factory=dict_row)
        self._arguments = arguments

    async def fetch(
        self, statement: Any, parameters: Parameters | None = None, /, **named: Any
    ) -> list[dict[str, Any]]:
        """All rows, as dicts."""
        text, values = self._statement(statement, parameters, named)
        await self._prepare(text, values)
        await self._execute(text, values)
        return await self._rows.fetchall() if self._rows.description else []

    async def fetch_one(
        self, statement: Any, parameters: Parameters | None = None, /, **named: Any
    ) -> dict[str, Any] | None:
        """The first row, or None."""
        rows = await self.fetch(statement, parameters, **named)
        return rows[0] if rows else None

    async def fetch_value(self, statement: Any, parameters: Parameters | None = None, /, **named: Any) -> Any:
        """The first column of the first row, or None."""
        row = await self.fetch_one(statement, parameters, **named)
        return next(iter(row.values()), None) if row else None

    async def execute(self, statement: Any, parameters: Parameters | None = None, /, **named: Any) -> int:
        """Run it; returns how many rows it concerned."""
        text, values = self._statement(statement, parameters, named)
        await self._prepare(text, values)
        await self._execute(text, values)
        return self._rows.rowcount

    async def _prepare(self, text: str, values: Parameters) -> None:
        """Whatever must be known before the statement runs."""

    async def _execute(self, text: str, values: Parameters) -> None:
        if not hub.listening:
            await self._rows.execute(text.encode(), values)
            return
        name = self._rows.connection.info.dbname
        with Timed(text, values, source="ctx.db", engine=f"postgresql/{name}") as timed:
            await self._rows.execute(text.encode(), values)
            timed.row_count = self._rows.rowcount

    def _statement(
        self, statement: Any, parameters: Parameters | None, named: dict[str, Any]
    ) -> tuple[str, Parameters]:
        if isinstance(statement, str):
            if isinstance(parameters, Sequence) and not named:
                return statement, parameters
            values = {**self._arguments, **(dict(parameters) if parameters else {}), **named}
            return statement, {name: values[name] for name in named_in(statement) if name in values}
        if parameters is not None and not isinstance(parameters, Mapping):
            raise QueryFailed("a SQLAlchemy statement takes its parameters by name", fix="pass a mapping")
        return _compiled(statement, {**self._arguments, **(parameters or {}), **named})


class WatchedDb(Db):
    """A query's database: it remembers what was read."""

    def __init__(
        self, connection: AsyncConnection, arguments: Mapping[str, Any], analyze: Analyze, reads: list[BoundRead]
    ) -> None:
        super().__init__(connection, arguments)
        self._analyze = analyze
        self.reads = reads
        self.volatile: set[str] = set()

    async def _prepare(self, text: str, values: Parameters) -> None:
        analysis = await self._analyze(text, values)
        self.reads += bound_reads(analysis, values)
        self.volatile.update(analysis.volatile)


def named_in(statement: str) -> set[str]:
    """The parameters that a statement names, as psycopg reads it.

    >>> sorted(named_in("SELECT %(b)s, %(a)s::int, '%%(c)s' WHERE x LIKE 'a%%' AND y = %(a)s"))
    ['a', 'b']
    """
    return set(filter(None, _PLACEHOLDER.findall(statement)))


def bound_reads(analysis: Analysis, values: Parameters) -> list[BoundRead]:
    """The reads of a statement with these parameters."""
    named = values if isinstance(values, Mapping) else {str(place): value for place, value in enumerate(values)}
    return [
        BoundRead(
            read.schema,
            read.table,
            read.columns,
            bind(read.condition, analysis.types.get((read.schema, read.table), {}), named),
        )
        for read in analysis.reads
    ]


def _compiled(statement: Any, named: dict[str, Any]) -> tuple[str, Parameters]:
    """A SQLAlchemy statement as text with parameters."""
    if "sqlalchemy" not in sys.modules or not hasattr(statement, "compile"):
        raise QueryFailed(
            f"a {type(statement).__name__} is not a statement", fix="pass SQL text or a SQLAlchemy select"
        )
    from sqlalchemy.dialects.postgresql.psycopg import dialect

    known = statement.compile().params
    named = {name: value for name, value in named.items() if name in known}
    compiled = statement.params(named).compile(
        dialect=dialect(),  # type: ignore[no-untyped-call]
        compile_kwargs={"render_postcompile": True},
    )
    processors = compiled._bind_processors
    values = {name: processors[name](value) if name in processors else value for name, value in compiled.params.items()}
    return str(compiled), values
