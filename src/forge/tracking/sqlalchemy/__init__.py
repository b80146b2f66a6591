"""SQLAlchemy tracking: unchanged use of SQLAlchemy, with every write recorded, announced, and attributed to its actor.

    engine = forge.track(create_engine(url))
    stop = forge.on_change(engine, "orders", print, where={"status": "paid"})

See `tracker` for the implementation, `forge.tracking.events` for the guarantees to subscribers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, MetaData, event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from forge.change import Change
from forge.errors import TrackingError
from forge.observing.engines import watch
from forge.tracking import record as log
from forge.tracking.sqlalchemy.subscribers import Callback, ChangeSubscriber, Where
from forge.tracking.sqlalchemy.tables import TrackedTables, table_name
from forge.tracking.sqlalchemy.tracker import Recording, Tracker

__all__ = ["create_log", "on_change", "recorded", "track"]

Target = TypeVar("Target")

_trackers: Final[WeakKeyDictionary[Engine, Tracker]] = WeakKeyDictionary()
_lock: Final = Lock()


def track(
    target: Target,
    *,
    tables: Iterable[Any] | MetaData | None = None,
    skip_tables: Collection[Any] = (),
    names: Mapping[str, str] | None = None,
    previous: bool = True,
    record: Recording = "auto",
    observe: bool = True,
) -> Target:
    """Track the writes of an Engine, AsyncEngine, sessionmaker or async_sessionmaker; return it unchanged.

    tables       only these: names, Table objects, mapped classes, or all of a MetaData; by default every table
    skip_tables  not these
    names        resource names of tables for subscribers: {"orders": "Order"}
    previous     whether changes carry the row as it was before
    record       "auto": into the log table unless Forge's triggers record the table; "always", or "never"
    observe      whether its statements also go to `forge.on("query", …)`, as with `forge.observe`

    An engine that is already tracked keeps its settings.
    """
    registry = TrackedTables(tables, skip_tables, names or {})
    if record not in ("auto", "always", "never"):
        raise TrackingError(f"record cannot be {record!r}", fix='pass "auto", "always" or "never"')

    def start(engine: Engine) -> None:
        root = _root(engine)
        with _lock:
            if root not in _trackers:
                _trackers[root] = Tracker(root, registry, previous=previous, recording=record)
                if observe:
                    watch(root, None)

    for engine in _engines(target):
        start(engine)
    if isinstance(target, sessionmaker) and not _binds(target.kw):
        # the engine is known only when a session uses it
        event.listen(target, "after_begin", lambda session, transaction, connection: start(connection.engine))
    return target


def create_log(target: Any) -> None:
    """Create the log table `forge_tracked_changes` if it is missing.

    `forge.track` creates it on first use; call this if the application's role may not create tables.
    """
    for engine in _engines(target):
        log.create(engine)


def recorded(target: Any, *, after: int = 0, limit: int | None = None) -> Iterator[Change]:
    """Yield the changes of the log table above an id, in order; from an engine, or from a Connection or Session in use.

    With an AsyncEngine: `await connection.run_sync(lambda connection: list(forge.tracking.recorded(connection)))`.
    """
    if isinstance(target, Engine):
        with target.connect() as connection:
            yield from log.recorded(connection, after=after, limit=limit)
    else:
        connection = target.connection() if isinstance(target, Session) else target
        yield from log.recorded(connection, after=after, limit=limit)


def on_change(target: Any, table: Any, callback: Callback, *, where: Where = None) -> Callable[[], None]:
    """Call back with an Event for each committed change of a table, in transaction order; return a function to stop.

    `table` is a name, a Table, a mapped class, or None for all. `where` selects rows: a dict of columns and values, a
    SQLAlchemy condition on the table, or a function of a row. With an AsyncEngine the callback may be async.
    """
    subscriber = ChangeSubscriber(None if table is None else table_name(table), callback, where)
    stops = []
    for engine in _engines(target):
        tracker = _trackers.get(_root(engine))
        if tracker is None:
            raise TrackingError(f"{engine!r} is not tracked", fix="call forge.track(engine) first")
        stops.append(tracker.subscribe(subscriber))

    def stop() -> None:
        for each in stops:
            each()

    return stop


def _root(engine: Engine) -> Engine:
    """Return the engine from which `engine.execution_options(…)` was created; both share its listeners."""
    while (inner := getattr(engine, "_proxied", None)) is not None:
        engine = inner
    return engine


def _engines(target: Any) -> list[Engine]:
    if isinstance(target, Engine):
        return [target]
    if isinstance(target, AsyncEngine):
        return [target.sync_engine]
    if isinstance(target, (sessionmaker, async_sessionmaker)):
        found = [engine for bind in _binds(target.kw) for engine in _engines(bind)]
        if not found and isinstance(target, async_sessionmaker):
            raise TrackingError("the async_sessionmaker has no engine", fix="pass the AsyncEngine to forge.track")
        return list(dict.fromkeys(found))
    raise TrackingError(
        f"a {type(target).__name__} cannot be tracked",
        fix="pass an Engine, an AsyncEngine, a sessionmaker or an async_sessionmaker",
    )


def _binds(options: Mapping[str, Any]) -> list[Any]:
    return [bind for bind in (options.get("bind"), *(options.get("binds") or {}).values()) if bind is not None]
