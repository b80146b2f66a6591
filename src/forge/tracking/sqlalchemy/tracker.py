"""Tracker of one engine: every write in; its record in the same transaction, and its events after the commit, out.

SQLAlchemy announces each statement before and after it runs; this includes ORM flushes, bulk operations and Core
statements. For each write to a tracked table:

- Before an UPDATE or DELETE, the affected rows are read, with locks if the database supports them (the same WHERE with
  the same parameters; by key if the WHERE lists the keys). Before an INSERT with a conflict clause, the rows that it
  could collide with are read.
- After it, the rows are read by their keys. The difference is the change; no difference means no change.
- A change that cannot be described per row (raw SQL, a table without a key, more rows touched than were read, rows that
  the database changes on its own) is recorded and delivered as `invalidate`, for the table. No write is silent.

If Forge's triggers record a table's changes, only the context is sent, once per transaction; rows are read only for
subscribers.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Delete,
    Engine,
    ExceptionContext,
    ForeignKey,
    Insert,
    Select,
    Table,
    TextClause,
    Update,
    event,
    text,
)
from sqlalchemy.exc import NoReferencedTableError
from sqlalchemy.util import await_only

from forge.change import Context, Op
from forge.observing.engines import began, ended
from forge.observing.hub import hub
from forge.tracking import record
from forge.tracking.context import SET, parameters
from forge.tracking.current import Current, current
from forge.tracking.events import LOGGER, Event, heard, listeners, rows_wanted, tell
from forge.tracking.paused import paused
from forge.tracking.sqlalchemy import differences
from forge.tracking.sqlalchemy.images import TableImages
from forge.tracking.sqlalchemy.plan import ExecutionPlan, placed
from forge.tracking.sqlalchemy.returning import returned_keys, telling
from forge.tracking.sqlalchemy.statement import StatementAnalysis, given_parameters
from forge.tracking.sqlalchemy.subscribers import ChangeSubscriber, CommittedChange
from forge.tracking.sqlalchemy.tables import TrackedTables, Triggers, written_table
from forge.tracking.sqlalchemy.transaction import TrackedTransaction, on_end, still_open, taken, transaction
from forge.tracking.statements import NOTHING, Write, WrittenTables, verb, written

Recording = Literal["auto", "always", "never"]

_SET: Final = text(SET.replace("%(", ":").replace(")s", " "))
NO_OPTIONS: Final[Mapping[str, Any]] = {}
_PLAN: Final = "_forge_plan"
_OPS: Final = {"truncate": Op.TRUNCATE, "schema": Op.SCHEMA}


class Tracker:
    """The tracking of one engine."""

    def __init__(self, engine: Engine, registry: TrackedTables, *, previous: bool, recording: Recording) -> None:
        self._engine, self._registry, self._previous, self._recording = engine, registry, previous, recording
        self._triggers = Triggers()
        self._shapes: dict[Table, TableImages] = {}
        self._analyses: WeakKeyDictionary[Any, StatementAnalysis | None] = WeakKeyDictionary()
        self._cascades: dict[tuple[Table, bool, int], list[Table]] = {}
        self._subscribers: tuple[ChangeSubscriber, ...] = ()
        self._lock = Lock()
        self._log_made = False
        self._wait: Callable[[Any], object] | None = await_only if engine.dialect.is_async else None
        event.listen(engine, "before_execute", self._before_execute, retval=True)
        event.listen(engine, "before_cursor_execute", self._before_cursor)
        event.listen(engine, "after_cursor_execute", self._after_cursor)
        event.listen(engine, "after_execute", self._after_execute)
        self._ddl_commits = engine.dialect.name in ("mysql", "mariadb")
        if self._ddl_commits:
            event.listen(engine, "handle_error", self._failed)
        on_end(engine, self._committed)

    def subscribe(self, subscriber: ChangeSubscriber) -> Callable[[], None]:
        """Add a subscriber; return a function to remove it."""
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

        def stop() -> None:
            with self._lock:
                self._subscribers = tuple(kept for kept in self._subscribers if kept is not subscriber)

        return stop

    # Events of SQLAlchemy

    def _before_execute(
        self, connection: Connection, element: Any, many: Any, one: Any, options: Any
    ) -> tuple[Any, Any, Any]:
        """Make an INSERT return its keys if it would not."""
        if isinstance(element, Insert) and not options.get(record.MARK) and not paused():
            table = written_table(element)
            if table is not None and table.primary_key.columns and self._tracked(table):
                self._triggers.refresh(connection)
                if self._records(placed(table.schema, options), table.name) or self._wants_rows(table):
                    element = telling(element, table, many, connection.dialect)
        return element, many, one

    def _before_cursor(
        self, connection: Connection, cursor: Any, sql: str, given: Any, context: Any, executemany: bool
    ) -> None:
        if context.execution_options.get(record.MARK):
            return
        if _PLAN not in context.__dict__:
            context.__dict__[_PLAN] = None
            self._prepare(connection, sql, context)
        if hub.listening:
            began(context)  # the statement's time excludes the reads here, for every observer

    def _prepare(self, connection: Connection, sql: str, context: Any) -> None:
        if not _is_dml(context):
            found = self._text(sql, context)
            if found.writes or found.everything:
                self._say_who(connection)
            return
        self._say_who(connection)
        statement = context.compiled.compile_state.statement
        table = written_table(statement)
        if table is None or paused() or not self._tracked(table):
            return
        options = context.execution_options
        records = self._records(placed(table.schema, options), table.name)
        if not table.primary_key.columns or not (records or self._wants_rows(table)):
            return
        if records:
            self._ensure_log(connection)
        filters = tuple(
            one for one in self._subscribers if one.clause is not None and one.hears(table.schema, table.name)
        )
        analysis = self._analysis(context.compiled, statement, table)
        if analysis is None:
            return
        plan = ExecutionPlan(
            connection, analysis, given_parameters(context), records=records, filters=filters, options=options
        )
        plan.prepare()
        context.__dict__[_PLAN] = plan

    def _after_cursor(
        self, connection: Connection, cursor: Any, sql: str, given: Any, context: Any, executemany: bool
    ) -> None:
        """Handle raw SQL, and a SELECT that contains writes, by their text."""
        if hub.listening:
            ended(context)
        if context.execution_options.get(record.MARK) or _is_dml(context):
            return
        alone = self._ddl_commits and self._ended_by(connection, sql)
        if paused():
            return
        found = self._text(sql, context)
        if found.everything:
            self._invalidate(connection, None, None, "unknown")
        elif found.writes and not (found.countable and cursor.rowcount == 0):
            for write in found.writes:
                self._invalidate(connection, write.schema, write.table, write.verb)
        if alone and (found.everything or found.writes):
            # the statement has committed, so its record must be committed too; nothing else is open
            connection.connection.commit()
            self._told(connection)

    def _failed(self, failure: ExceptionContext) -> None:
        """Handle failed DDL: it has committed the work before it, unless its syntax was not understood."""
        connection, context = failure.connection, failure.execution_context
        if connection is None or context is None or failure.is_disconnect or _is_dml(context):
            return
        if not connection.invalidated and transaction(connection).done:
            cursor = connection.connection.cursor()
            cursor.execute("DO 0")  # an error does not report the transaction status, any other answer does
            cursor.close()
            self._ended_by(connection, failure.statement or "")

    def _ended_by(self, connection: Connection, sql: str) -> bool:
        """Whether a statement ended the transaction implicitly; its earlier changes are then delivered, or dropped."""
        if still_open(connection) or connection._is_autocommit_isolation():
            return False
        if verb(sql) == "rollback":
            taken(connection)
        else:
            self._told(connection)
        return True

    def _told(self, connection: Connection) -> None:
        if (done := taken(connection)) is not None:
            self._committed(done)

    def _after_execute(
        self, connection: Connection, element: Any, many: Any, one: Any, options: Any, result: Any
    ) -> None:
        context = getattr(result, "context", None)
        if context is None or options.get(record.MARK) or paused() or not _is_dml(context):
            return
        for write in _written_within(context.compiled).writes:
            self._invalidate(connection, write.schema, write.table, write.verb, options)
        table = written_table(context.compiled.compile_state.statement)
        plan: ExecutionPlan | None = context.__dict__.get(_PLAN)
        if plan is not None:
            touched = self._differences(connection, plan, element, result)
        else:
            touched = table is not None and self._tracked(table) and differences.counted(result) != 0
            if touched and table is not None:
                self._invalidate(connection, table.schema, table.name, _verb(context), options)
        if touched and table is not None and not context.isinsert:
            for other in self._cascaded(context, table):
                self._invalidate(connection, other.schema, other.name, "cascade", options)

    def _differences(self, connection: Connection, plan: ExecutionPlan, element: Any, result: Any) -> bool:
        """Record the effects of a statement with a plan; return whether there are any."""
        context = result.context
        if context.isinsert:
            keys, count = returned_keys(element, result, plan.shape)
            found = differences.collided(plan) if plan.collisions else differences.inserted(plan, keys, count)
        elif context.isupdate:
            found = differences.updated(plan, differences.counted(result))
        else:
            found = differences.deleted(plan, differences.counted(result))
        if found.rows:
            self._record(connection, plan, found.rows)
        if found.beyond:
            self._invalidate(connection, plan.table.schema, plan.table.name, _verb(context), context.execution_options)
        return bool(found.rows) or found.beyond

    def _cascaded(self, context: Any, table: Table) -> list[Table]:
        """Return the tables whose rows the database itself may have changed because of a DELETE or a changed key."""
        place = (table, context.isdelete, len(table.metadata.tables))
        found = self._cascades.get(place)
        if found is None:
            found = self._cascades[place] = cascades(table, deleted=context.isdelete)
        if not found or context.isdelete:
            return found
        analysis = self._analysis(context.compiled, context.compiled.compile_state.statement, table)
        return found if analysis is None or analysis.moves else []

    # Recording

    def _record(self, connection: Connection, plan: ExecutionPlan, rows: list[differences.RowChange]) -> None:
        table, shape, previous = plan.table, plan.shape, self._previous
        schema, name = table.schema, table.name
        if plan.records:
            entries = record.Entries()
            for op, bound, before, after, part in rows:
                image = after or (before if previous else None) or shape.unread(bound)
                old = new = None
                if before is not None and previous:
                    old = record.encoded(before.row if part is None else part)
                if op is not Op.DELETE:
                    new = record.encoded((after or shape.unread(bound)).row)
                elif old is None:
                    old = record.encoded(image.row)
                entries.add(op.name, record.row_id(shape.key_of(image)), old, new)
            self._write(connection, entries, plan.schema, name, key=shape.key_text)
        if not self._heard(schema, name):
            return
        resource, context = self._registry.resource(schema, name), _context(current())
        changes = []
        for op, bound, before, after, _ in rows:
            image = after or before or shape.unread(bound)
            changes.append(
                CommittedChange(
                    op,
                    schema,
                    name,
                    resource,
                    context,
                    key=dict(zip(shape.key_names, shape.key_of(image), strict=True)),
                    before=before.row if before is not None and previous else None,
                    after=after.row if after is not None else None,
                    filters=plan.filters,
                    before_flags=before.flags if before is not None else (),
                    after_flags=after.flags if after is not None else (),
                )
            )
        self._tell_later(connection, changes)

    def _invalidate(
        self,
        connection: Connection,
        schema: str | None,
        table: str | None,
        verb: str,
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> None:
        """Record that unknown rows changed."""
        place = placed(schema, options)
        if table is not None and not self._registry.tracked(schema, table):
            return
        op = _OPS.get(verb, Op.INVALIDATE)
        if self._records(place, table):
            self._ensure_log(connection)
            entries = record.Entries()
            entries.add(op.name, "*")
            self._write(connection, entries, place, table, verb=verb)
        if self._heard(schema, table):
            name = None if table is None else self._registry.resource(schema, table)
            self._tell_later(connection, [CommittedChange(op, schema, table, name, _context(current()))])

    def _write(
        self,
        connection: Connection,
        entries: record.Entries,
        schema: str | None,
        table: str | None,
        *,
        key: str | None = None,
        verb: str | None = None,
    ) -> None:
        now = current()
        more = {**now.more, "statement": verb} if verb is not None else now.more
        shared = record.Shared(
            transaction(connection).id,
            datetime.now(UTC),
            schema,
            table or record.EVERY_TABLE,
            key,
            now.user_id,
            now.function_name,
            now.trace_id,
            record.encoded(more) if more else None,
        )
        record.write(connection, entries, shared)

    def _ensure_log(self, connection: Connection) -> None:
        if self._log_made:
            return
        if not record.exists(connection):
            if connection.dialect.name == "sqlite":
                record.create_within(connection)  # another connection would wait for this one's lock
                return
            record.create(self._engine)
        self._log_made = True

    # Delivery

    def _heard(self, schema: str | None, table: str | None) -> bool:
        return heard() or any(one.hears(schema, table) for one in self._subscribers)

    def _tell_later(self, connection: Connection, changes: list[CommittedChange]) -> None:
        doing = transaction(connection)
        doing.done.extend(changes)
        if connection._is_autocommit_isolation():
            self._committed(doing)
            doing.done.clear()

    def _committed(self, done: TrackedTransaction) -> None:
        changes: list[CommittedChange] = done.done
        for subscriber in self._subscribers:
            for change in changes:
                if (told := subscriber.told(change, done.id)) is not None:
                    tell(subscriber.callback, told, wait=self._wait)
        if heard():
            events: list[Event] = [change.event(done.id) for change in changes]
            for listener in listeners():
                tell(listener, self._engine, list(events), wait=self._wait)

    def _say_who(self, connection: Connection) -> None:
        """Before the first write of a transaction, and after a context change: send the context to the triggers."""
        self._triggers.refresh(connection)
        if not self._triggers.installed:
            return
        doing, now = transaction(connection), current()
        if doing.told is None or doing.told != now:
            connection.execute(_SET, parameters(now), execution_options=record.OWN)
            doing.told = now

    # Tracked tables

    def _tracked(self, table: Table) -> bool:
        return self._registry.tracked(table.schema, table.name)

    def _wants_rows(self, table: Table) -> bool:
        return rows_wanted() or any(one.hears(table.schema, table.name) for one in self._subscribers)

    def _records(self, schema: str | None, table: str | None) -> bool:
        """Whether the changes of a table are written to the log table; None is any table."""
        if self._recording == "auto":
            return (schema, table) not in self._triggers if table is not None else not self._triggers.installed
        return self._recording == "always"

    def _analysis(self, compiled: Any, statement: Any, table: Table) -> StatementAnalysis | None:
        """Return the analysis of a statement; None if its kind is not supported."""
        if compiled in self._analyses:
            return self._analyses[compiled]
        found = None
        try:
            shape = self._shapes.get(table)
            if shape is None:
                shape = self._shapes[table] = TableImages(table, self._engine.dialect)
            found = StatementAnalysis(compiled, statement, shape)
        except Exception:  # after any error, the application's write continues, and invalidates its table
            LOGGER.exception("a write of %s is not understood; its rows are not recorded one by one", table.fullname)
        self._analyses[compiled] = found
        return found

    def _text(self, sql: str, context: Any) -> WrittenTables:
        """Return the writes of a statement that is not an INSERT, UPDATE or DELETE of SQLAlchemy."""
        element = None if context.compiled is None or context.isddl else context.compiled.statement
        if isinstance(element, (Select, CompoundSelect)):
            return _written_within(context.compiled)
        return written(element.text if isinstance(element, TextClause) else sql, self._engine.dialect.name)


def _written_within(compiled: Any) -> WrittenTables:
    """Return the tables that a statement writes in its WITH."""
    found = [cte.element for cte in compiled.ctes or ()]
    tables = [(one, written_table(one)) for one in found if isinstance(one, (Insert, Update, Delete))]
    if not tables:
        return NOTHING
    return WrittenTables(
        tuple(Write(type(one).__name__.lower(), table.name, table.schema) for one, table in tables if table is not None)
    )


def cascades(table: Table, *, deleted: bool) -> list[Table]:
    """Return the tables whose rows the database itself may change when rows of a table are deleted or change keys."""
    found: dict[Table, None] = {}
    todo = [table]
    while todo:
        parent = todo.pop()
        for child in table.metadata.tables.values():
            for key in child.foreign_keys:
                action = (key.ondelete if deleted else key.onupdate) or ""
                if action.upper() in _ACTIONS and child not in found and _refers(key, parent):
                    found[child] = None
                    if action.upper() == "CASCADE":
                        todo.append(child)
    return list(found)


def _refers(key: ForeignKey, parent: Table) -> bool:
    try:
        return key.references(parent)
    except NoReferencedTableError:  # the MetaData does not know that table, so it is not the parent
        return False


_ACTIONS: Final = ("CASCADE", "SET NULL", "SET DEFAULT")


def _is_dml(context: Any) -> bool:
    return context.compiled is not None and (context.isinsert or context.isupdate or context.isdelete)


def _verb(context: Any) -> str:
    return "insert" if context.isinsert else "update" if context.isupdate else "delete"


def _context(now: Current) -> Context:
    return Context(now.user_id, now.function_name, now.trace_id, now.more)
