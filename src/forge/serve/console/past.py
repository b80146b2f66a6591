"""`forge.history`, `forge.as_of`, `forge.audit` and `forge.revert_plan`: the history of a row, an audit, and a preview
of an undo. None of them writes."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from decimal import Decimal
from threading import Lock
from typing import Any, Final

import msgspec

from forge.change import UNAVAILABLE, Op
from forge.errors import BadArguments
from forge.history.asof import row_as_of
from forge.history.audit import AuditFilter, audit
from forge.history.instants import instant, instant_or_now
from forge.history.revert import UNSEEN, RevertStep, plan_revert
from forge.history.revert import Choice as Undone
from forge.history.timeline import TimelineEntry, mark, timeline
from forge.history.tracked import key_of
from forge.postgres.connection import Connection
from forge.react.database import QueryContext
from forge.serve.console.console_context import Desk, given, shown, utc
from forge.values import too_deep

EVERY: Final = 2.0
KIND: Final = "console past"
MOST: Final = 200
"""Maximum number of entries per page, and of rows per plan."""
PAGES: Final = 8
"""Maximum number of cached history pages."""
KEPT: Final = 60.0
"""Lifetime of a page, in seconds: removal of entries under an earlier key of the row does not change the row's mark."""
_exact: Final = msgspec.json.Decoder(float_hook=Decimal)


class Pages:
    """Cache of the last answers, each valid while its mark is the same.

    >>> pages, answers = Pages(), iter("ab")
    >>> [pages.get("question", mark, lambda: next(answers)) for mark in (1, 1, 2)]
    ['a', 'a', 'b']
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[Hashable, tuple[Hashable, float, Any]] = OrderedDict()

    def get(self, question: Hashable, mark: Hashable, answer: Callable[[], Any]) -> Any:
        """Return the cached answer, otherwise call `answer`; the mark must be read before the answer."""
        now = self._clock()
        with self._lock:
            known = self._known.get(question)
            if known is not None and known[0] == mark and now - known[1] < KEPT:
                self._known.move_to_end(question)
                return known[2]
        found = answer()
        with self._lock:
            self._known[question] = mark, now, found
            self._known.move_to_end(question)
            if len(self._known) > PAGES:
                self._known.popitem(last=False)
        return found


def register(desk: Desk) -> None:
    pages = Pages()

    async def history(
        ctx: QueryContext, table: str, key: Any, before: str | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """Every change of one row, newest first, in pages."""
        _check(limit)

        def look(connection: Connection) -> dict[str, Any]:
            sought = _key(key)

            def answer() -> dict[str, Any]:
                page = timeline(connection, table, sought, limit=limit, before=before)
                return {
                    "table": page.table,
                    "key": page.key,
                    "entries": [_entry(entry) for entry in page.entries],
                    "next": page.next,
                }

            now = mark(connection, table, sought)
            found: dict[str, Any] = pages.get((table, repr(sought), before, limit), now, answer)
            return found

        return await desk.ask(look, KIND)

    async def as_of(ctx: QueryContext, table: str, key: Any, at: str) -> dict[str, Any]:
        """One row at an instant, and the distance of the answer from that instant."""

        def look(connection: Connection) -> dict[str, Any]:
            past = row_as_of(connection, table, _key(key), instant_or_now(at))
            row = None if past.row is None else {name: shown(value) for name, value in past.row.items()}
            return {"table": past.table, **past.gap.wire(), "row": row}

        return await desk.ask(look, KIND)

    async def audited(
        ctx: QueryContext,
        user: str | None = None,
        table: str | None = None,
        op: str | None = None,
        trace: str | None = None,
        since: str | None = None,
        until: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Actors and their changes, newest first, in pages; never the values."""
        _check(limit)
        ops = () if op is None else (_op(op),)
        begin, end = (None if at is None else instant(at) for at in (since, until))
        choice = AuditFilter(user, table, ops, trace, begin, end)
        page = await desk.ask(lambda connection: audit(connection, choice, limit=limit, before=before), KIND)
        entries = [{**msgspec.structs.asdict(entry), "op": entry.op.name} for entry in page.entries]
        return {"entries": entries, "next": page.next}

    async def revert_plan(
        ctx: QueryContext, trace: str | None = None, transaction: str | None = None
    ) -> dict[str, Any]:
        """The effects of undoing a request or a transaction; nothing is locked or written."""
        choice = Undone(trace=trace, transaction=transaction)

        def look(connection: Connection) -> dict[str, Any]:
            plan = plan_revert(connection, choice)
            return {
                "choice": str(plan.choice),
                "changes": plan.changes,
                "rows": len(plan.steps),
                "steps": [_step(step) for step in plan.steps[:MOST]],
                "conflicts": [str(conflict) for conflict in plan.conflicts[:MOST]],
            }

        return await desk.ask(look, KIND)

    desk.query(history, "forge.history", every=EVERY)
    desk.query(as_of, "forge.as_of", every=None)
    desk.query(audited, "forge.audit", every=EVERY)
    desk.query(revert_plan, "forge.revert_plan", every=None)


def _check(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise BadArguments(f"limit cannot be {limit}", fix=f"use 1 to {MOST}")


def _key(value: Any) -> object:
    """Parse a key argument: text in any form of the command line, or a value or an object, tagged as in results.

    >>> _key("a=1,b=2"), _key("4711"), _key({"id": {"$int": "9007199254740993"}})
    ({'a': '1', 'b': '2'}, '4711', {'id': 9007199254740993})
    """
    return key_of(value) if isinstance(value, str) else given(value)


def _op(word: str) -> Op:
    try:
        return Op(word.lower())
    except ValueError:
        raise BadArguments(f"op cannot be {word[:20]!r}", fix=f"use {', '.join(Op)}") from None


def _entry(entry: TimelineEntry) -> dict[str, Any]:
    change, context = entry.change, entry.change.context
    found: dict[str, Any] = {
        "op": entry.op,
        "at": utc(change.at),
        "key": change.key,
        "change_id": change.id,
        "transaction": change.source.transaction,
        "diff": [
            {"column": each.column, "hidden": True}
            if each.hidden
            else {
                "column": each.column,
                **{
                    side: shown(value)
                    for side, value in (("before", each.before), ("after", each.after))
                    if value is not msgspec.UNSET
                },
            }
            for each in entry.diff
        ],
        "context": {
            "user_id": context.user_id,
            "function_name": context.function_name,
            "trace_id": context.trace_id,
            "session_user": context.session_user,
            "application_name": context.application_name,
            "more": shown(dict(context.more)),
        },
    }
    for name, value in (("was", entry.was), ("became", entry.became)):
        if value is not None:
            found[name] = value
    if entry.redefined:
        found["redefined"] = list(entry.redefined)
    return found


def _decoded(raw: msgspec.Raw) -> Any:
    """Decode a value of the log; a value that is nested too deeply becomes its text.

    >>> _decoded(msgspec.Raw(b"[1.50]")), _decoded(msgspec.Raw(b"[" * 300 + b"]" * 300))[:3]
    ([Decimal('1.50')], '[[[')
    """
    try:
        value = _exact.decode(raw)
    except RecursionError:
        return bytes(raw).decode()
    return bytes(raw).decode() if too_deep({"": value}) else value


def _step(step: RevertStep) -> dict[str, Any]:
    def image(values: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
        return {name: UNAVAILABLE if raw == UNSEEN else shown(_decoded(raw)) for name, raw in values.items()}

    return {
        "op": step.op,
        "table": step.table,
        "key": step.key,
        "now": image(step.now),
        "then": image(step.then),
        "changes": step.changes,
    }
