"""`ctx.db`: run the statements of queries and mutations, and record what queries read.

Every statement of a query is analysed before it runs. The read set of a run is the union of its statements' reads, with
the parameters they had. A statement whose reads cannot be determined is refused before it runs.
"""

import re
import sys
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec
from psycopg.rows import dict_row

from forge.conditions.bound import bind
from forge.errors import QueryFailed
from forge.observing.hub import Timed, hub
from forge.postgres.connection import AsyncConnection
from forge.react.index import BoundRead
from forge.react.readset import ReadAnalysis
from forge.react.registry import Auth
from forge.tracking.outbox import Key, outbox

Parameters = Mapping[str, Any] | Sequence[Any]
_PLACEHOLDER: Final = re.compile(r"%(?:\(([^)]+)\).|.)")


class Analyze(Protocol):
    """Return what a statement reads."""

    def __call__(self, statement: str, parameters: Parameters, /) -> Awaitable[ReadAnalysis]: ...


class QueryContext(msgspec.Struct, frozen=True):
    """The first argument of a query or mutation: its database, and the caller."""

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
        """Put a message into the outbox within the mutation's transaction; return its id. See `forge.outbox`."""
        return await outbox(self.db._connection, topic, payload, key=key, headers=headers, after=after)


class Db:
    """Run statements in the transaction of one run. Parameters default to the call's arguments."""

    def __init__(self, connection: AsyncConnection, arguments: Mapping[str, Any]) -> None:
        self._connection = connection
        self._rows = connection.cursor(row_factory=dict_row)
        self._arguments = arguments

    async def fetch(
        self, statement: Any, parameters: Parameters | None = None, /, **named: Any
    ) -> list[dict[str, Any]]:
        """Return all rows, as dicts."""
        text, values = self._statement(statement, parameters, named)
        await self._prepare(text, values)
        await self._execute(text, values)
        return await self._rows.fetchall() if self._rows.description else []

    async def fetch_one(
        self, statement: Any, parameters: Parameters | None = None, /, **named: Any
    ) -> dict[str, Any] | None:
        """Return the first row, or None."""
        rows = await self.fetch(statement, parameters, **named)
        return rows[0] if rows else None

    async def fetch_value(self, statement: Any, parameters: Parameters | None = None, /, **named: Any) -> Any:
        """Return the first column of the first row, or None."""
        row = await self.fetch_one(statement, parameters, **named)
        return next(iter(row.values()), None) if row else None

    async def execute(self, statement: Any, parameters: Parameters | None = None, /, **named: Any) -> int:
        """Run the statement; return the number of affected rows."""
        text, values = self._statement(statement, parameters, named)
        await self._prepare(text, values)
        await self._execute(text, values)
        return self._rows.rowcount

    async def _prepare(self, text: str, values: Parameters) -> None:
        """Hook that runs before the statement."""

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
    """The database of a query; it records the reads."""

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
    """Return the parameters that a statement names, by psycopg's rules.

    >>> sorted(named_in("SELECT %(b)s, %(a)s::int, '%%(c)s' WHERE x LIKE 'a%%' AND y = %(a)s"))
    ['a', 'b']
    """
    return set(filter(None, _PLACEHOLDER.findall(statement)))


def bound_reads(analysis: ReadAnalysis, values: Parameters) -> list[BoundRead]:
    """Return the reads of a statement with these parameters."""
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
    """Compile a SQLAlchemy statement to text with parameters."""
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
