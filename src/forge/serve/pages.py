"""Pages of the log as each client may see them: only rows of its tenant, each form encoded once for all.

The actor of a change is shown by the rule of `forge.changelog.tenancy`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from forge.change import NO_CONTEXT, Change, Op
from forge.changelog.reader import Batch
from forge.changelog.tenancy import Tenant, owns, readable, sole_tenants
from forge.cursor import Cursor, Position, Snapshot
from forge.serve.messages import sse
from forge.values import Column
from forge.wire import encode

_ROWS: Final = frozenset({Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ})

Form = Literal["whole", "unsigned", "out", "in", "bare"]
"""The full change; without its actor; as seen by the tenant that a row leaves or enters; without any row."""


class ClientView(msgspec.Struct, frozen=True):
    """The view of one client; without a `tenant`, the rows of all tenants."""

    tables: frozenset[str] = frozenset()
    ops: frozenset[Op] = frozenset()
    tenant: Tenant | None = None

    def form(self, change: Change, columns: Iterable[Column]) -> Form | None:
        """Return the form in which a change is shown; None if it is not shown."""
        if self.tables and not (change.table in self.tables or f"{change.schema}.{change.table}" in self.tables):
            return None
        form: Form | None = "whole" if self.tenant is None else _authorized(self.tenant, change, columns)
        op = Op.DELETE if form == "out" else Op.INSERT if form == "in" else change.op
        return form if not self.ops or op in self.ops else None


def _authorized(tenant: Tenant, change: Change, columns: Iterable[Column]) -> Form | None:
    if not readable(columns, tenant.column):
        return None
    if change.op not in _ROWS:
        return "bare"
    old, new = owns(tenant, change.before), owns(tenant, change.after)
    if change.op is not Op.UPDATE or old == new:
        return "whole" if old or new else None
    return "out" if old else "in"


def shown(change: Change, form: Form) -> Change:
    """Reduce a change to a form: it contains nothing that the form does not show."""
    if form == "whole":
        return change
    if form == "unsigned":
        return msgspec.structs.replace(change, context=NO_CONTEXT)
    bare = msgspec.structs.replace(change, before=None, after=None, context=NO_CONTEXT, hidden=())
    if form == "out":
        return msgspec.structs.replace(bare, op=Op.DELETE, before=change.before)
    if form == "in":
        return msgspec.structs.replace(bare, op=Op.INSERT, after=change.after)
    return msgspec.structs.replace(bare, key=None)


class EncodedChange(NamedTuple):
    """A change ready to be sent, and the cursor after it."""

    data: bytes
    id: str


class LogPage:
    """A batch of the log and its events for clients, each encoded once.

    `signed` are the transactions whose actor may be shown. Without it, they are determined here for a complete batch;
    for a partial batch they are unknown, and its changes are shown without the actor.
    """

    def __init__(self, batch: Batch, before: Cursor, signed: Collection[str] | None = None) -> None:
        self.batch = batch
        self._whole = before.last is None and batch.cursor.last is None
        self._signed = signed
        self._tenants: dict[str, Mapping[str, str]] = {}
        self.until: Snapshot = batch.cursor.until or batch.cursor.snapshot
        self._bodies: dict[tuple[int, Form], bytes] = {}
        self._events: dict[tuple[ClientView, Snapshot], list[EncodedChange]] = {}

    def after(self, since: Snapshot) -> Cursor | None:
        """Return the cursor after this page for a client that has read a snapshot; None if that contains the page."""
        if since.covers(self.until):
            return None
        cursor = self.batch.cursor
        return cursor if cursor.last is None else Cursor(cursor.log, since, self.until, cursor.last)

    def events(self, view: ClientView, since: Snapshot) -> list[EncodedChange]:
        """Return the page's events in a view, for a client that has read a snapshot."""
        found = self._events.get((view, since))
        if found is None:
            found = self._events[view, since] = list(self._write(view, since))
        return found

    def _write(self, view: ClientView, since: Snapshot) -> Iterable[EncodedChange]:
        batch, after = self.batch, self.after(since)
        if after is None:
            return
        prefix = str(Cursor(after.log, since, self.until, Position(0, 0))).removesuffix("0.0")
        last = len(batch.changes) - 1
        for number, (change, columns) in enumerate(zip(batch.changes, batch.columns, strict=True)):
            if since.sees(int(change.source.transaction or 0)):
                continue
            form = view.form(change, columns)
            if form == "whole" and view.tenant is not None and not self._signs(change, view.tenant):
                form = "unsigned"
            if form is not None:
                id = str(after) if number == last else prefix + change.source.position
                yield EncodedChange(sse("change", self._body(number, form), id), id)

    def _signs(self, change: Change, tenant: Tenant) -> bool:
        """Whether the tenant may see the actor of a change."""
        transaction = change.source.transaction or ""
        if self._signed is not None:
            return transaction in self._signed
        if not self._whole:
            return False
        tenants = self._tenants.get(tenant.column)
        if tenants is None:
            found = sole_tenants(self.batch.changes, self.batch.columns, tenant.column)
            tenants = self._tenants[tenant.column] = found
        return tenants.get(transaction) == tenant.name

    def _body(self, number: int, form: Form) -> bytes:
        body = self._bodies.get((number, form))
        if body is None:
            body = self._bodies[number, form] = encode(shown(self.batch.changes[number], form))
        return body
