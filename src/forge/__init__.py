"""Forge makes a database's changes usable: captured once, with who and why, in order, without loss.

What is named here is imported when it is first asked for, so that `import forge`, and with it every command, is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge import debezium, wire
    from forge.app import Forge as Forge
    from forge.cache import Cache as Cache
    from forge.change import JSON_NULL, UNAVAILABLE, Change, Context, Op, Source
    from forge.changelog.follow import follow
    from forge.changelog.install import install
    from forge.changelog.maintenance import Policy, maintain, run_once
    from forge.changelog.reader import Batch, Reader
    from forge.client import connect as connect
    from forge.cursor import Cursor
    from forge.errors import (
        ConfigError,
        ContextError,
        CursorError,
        CursorExpired,
        CursorForeign,
        CursorInvalid,
        DecodeError,
        EncodeError,
        ForgeError,
        HistoryUnavailable,
        NotifyError,
        NotInstalled,
        OutboxError,
        RedactError,
        RevertRefused,
        RowMismatch,
        SchemaTooNew,
        ServerError,
        TrackingError,
    )
    from forge.history.asof import AsOf, as_of, at_instant, row_as_of, table_as_of
    from forge.observing import QueryEvent, observe, on
    from forge.tracking.context import transaction
    from forge.tracking.current import Current, context, current
    from forge.tracking.middleware import ContextMiddleware as ContextMiddleware
    from forge.tracking.middleware import WsgiContextMiddleware as WsgiContextMiddleware
    from forge.tracking.notify import Notification, listen, notify
    from forge.tracking.outbox import inbox, outbox
    from forge.tracking.paused import without_tracking
    from forge.tracking.sqlalchemy import on_change as on_change
    from forge.tracking.sqlalchemy import track as track

__all__ = [
    "JSON_NULL",
    "UNAVAILABLE",
    "AsOf",
    "Batch",
    "Change",
    "ConfigError",
    "Context",
    "ContextError",
    "Current",
    "Cursor",
    "CursorError",
    "CursorExpired",
    "CursorForeign",
    "CursorInvalid",
    "DecodeError",
    "EncodeError",
    "ForgeError",
    "HistoryUnavailable",
    "NotInstalled",
    "Notification",
    "NotifyError",
    "Op",
    "OutboxError",
    "Policy",
    "QueryEvent",
    "Reader",
    "RedactError",
    "RevertRefused",
    "RowMismatch",
    "SchemaTooNew",
    "ServerError",
    "Source",
    "TrackingError",
    "as_of",
    "at_instant",
    "context",
    "current",
    "debezium",
    "follow",
    "inbox",
    "install",
    "listen",
    "maintain",
    "notify",
    "observe",
    "on",
    "outbox",
    "row_as_of",
    "run_once",
    "table_as_of",
    "transaction",
    "wire",
    "without_tracking",
]

_HOMES = {
    "forge.app": "Forge",
    "forge.change": "Change Context JSON_NULL Op Source UNAVAILABLE",
    "forge.changelog.follow": "follow",
    "forge.changelog.install": "install",
    "forge.changelog.maintenance": "Policy maintain run_once",
    "forge.changelog.reader": "Batch Reader",
    "forge.client": "connect",
    "forge.cursor": "Cursor",
    "forge.errors": """
        ConfigError ContextError CursorError CursorExpired CursorForeign CursorInvalid DecodeError EncodeError
        ForgeError HistoryUnavailable NotInstalled NotifyError OutboxError RedactError RevertRefused
        RowMismatch SchemaTooNew ServerError TrackingError
    """,
    "forge.history.asof": "AsOf as_of at_instant row_as_of table_as_of",
    "forge.observing": "QueryEvent observe on",
    "forge.cache": "Cache",
    "forge.tracking.context": "transaction",
    "forge.tracking.current": "Current context current",
    "forge.tracking.middleware": "ContextMiddleware WsgiContextMiddleware",
    "forge.tracking.notify": "Notification listen notify",
    "forge.tracking.outbox": "inbox outbox",
    "forge.tracking.paused": "without_tracking",
    "forge.tracking": "on_change track",
}
_LATER = {name: module for module, names in _HOMES.items() for name in names.split()}
_PARTS = {"change", "changelog", "cursor", "debezium", "errors", "history", "values", "wire"}


def __getattr__(name: str) -> Any:
    """Where a name is at home."""
    if name in _LATER:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found
    if name in _PARTS:
        return import_module(f"forge.{name}")
    raise AttributeError(f"module 'forge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER, *_PARTS})
