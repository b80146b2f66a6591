"""Report SQLAlchemy's statements to the bus: Core and ORM, synchronous and asynchronous engines.

Reads and writes of `forge.tracking` around a statement are not reported, and their time is not part of the statement's.
"""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection, ExceptionContext, ExecutionContext
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from forge.observing.hub import hub
from forge.tracking.record import MARK


def watch(what: Any, name: str | None) -> bool:
    """Report the statements of an engine, or of an object that has one; return False if it is neither."""
    if isinstance(what, (sessionmaker, async_sessionmaker)):
        what = what.kw.get("bind")
    if isinstance(what, AsyncEngine):
        what = what.sync_engine
    if not isinstance(what, Engine):
        return False
    known = _watched(what)
    if known is not None:
        known.name = name or known.name
        return True
    watching = _Watching(name or f"{what.dialect.name}/{what.url.database or ''}")
    event.listen(what, "before_cursor_execute", watching.before)
    event.listen(what, "after_cursor_execute", watching.after)
    event.listen(what, "handle_error", watching.failed)
    setattr(what, _MARK, watching)
    return True


_MARK = "_forge_watching"


def _watched(engine: Engine) -> "_Watching | None":
    """Return its listeners, or those of the engine that `execution_options(…)` was called on: they serve both."""
    found: _Watching | None = getattr(engine, _MARK, None)
    inner: Engine | None = getattr(engine, "_proxied", None)
    return found if found is not None or inner is None else _watched(inner)


def began(context: Any) -> None:
    """Record the start of a statement."""
    context.forge_began, context.forge_seconds = perf_counter(), None


def ended(context: Any) -> None:
    """Record the end of a statement, unless it is already recorded."""
    if getattr(context, "forge_began", None) is not None and context.forge_seconds is None:
        context.forge_seconds = perf_counter() - context.forge_began


class _Watching:
    """The listeners of one engine. They are never removed: SQLAlchemy's lists must not change while statements run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def before(
        self, connection: Connection, cursor: Any, statement: str, params: Any, context: Any, executemany: bool
    ) -> None:
        if hub.listening and context is not None and not context.execution_options.get(MARK):
            began(context)

    def after(
        self, connection: Connection, cursor: Any, statement: str, params: Any, context: Any, executemany: bool
    ) -> None:
        if hub.listening and getattr(context, "forge_began", None) is not None:
            ended(context)
            seconds, context.forge_began = context.forge_seconds, None
            many, first = _first(params, executemany)
            hub.tell(
                statement,
                _named(context, first),
                seconds,
                source="sqlalchemy",
                engine=self.name,
                row_count=_count(connection, cursor),
                many=many,
            )

    def failed(self, failure: ExceptionContext) -> None:
        context: Any = failure.execution_context
        if not hub.listening or (context is not None and context.execution_options.get(MARK)):
            return
        start = getattr(context, "forge_began", None)
        many, first = _first(failure.parameters, bool(getattr(context, "executemany", False)))
        hub.tell(
            failure.statement or "",
            _named(context, first),
            0.0 if start is None else perf_counter() - start,
            source="sqlalchemy",
            engine=self.name,
            many=many,
            error=failure.original_exception,
        )


def _count(connection: Connection, cursor: Any) -> int | None:
    """Return the row count; None for sqlite3 while rows remain to be read, because it counts them afterwards."""
    if connection.dialect.name == "sqlite" and cursor.description is not None:
        return None
    count: int = cursor.rowcount
    return count


def _first(params: Any, executemany: bool) -> tuple[int, Any]:
    """Return the number of parameter sets, and the first one."""
    if executemany and isinstance(params, (list, tuple)) and params and isinstance(params[0], (list, tuple, Mapping)):
        return len(params), params[0]
    return 1, params


def _named(context: ExecutionContext | None, params: Any) -> Any:
    """Return parameters by name, even if the driver takes them by position, so that secrets can be recognized."""
    compiled: Any = getattr(context, "compiled", None)
    names = getattr(compiled, "positiontup", None)
    if names and isinstance(params, (list, tuple)) and len(names) == len(params):
        return dict(zip(names, params, strict=True))
    return params
