"""Forge makes a database's changes usable: captured once, with who and why, in order, without loss."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from forge import debezium, wire
from forge.change import JSON_NULL, UNAVAILABLE, Change, Context, Op, Source
from forge.changelog.follow import follow
from forge.changelog.install import install
from forge.changelog.maintenance import Policy, maintain, run_once
from forge.changelog.reader import Batch, Reader
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
from forge.track.bus import QueryEvent, observe, on
from forge.track.context import transaction
from forge.track.current import Current, context, current
from forge.track.notify import Notification, listen, notify
from forge.track.outbox import inbox, outbox
from forge.track.paused import without_tracking

if TYPE_CHECKING:
    from forge.app import Forge as Forge
    from forge.client import connect as connect
    from forge.track.cache import Cache as Cache
    from forge.track.middleware import ContextMiddleware as ContextMiddleware
    from forge.track.middleware import WsgiContextMiddleware as WsgiContextMiddleware
    from forge.track.sqlalchemy import on_change as on_change
    from forge.track.sqlalchemy import track as track

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

_LATER = {
    "Cache": "forge.track.cache",
    "ContextMiddleware": "forge.track.middleware",
    "Forge": "forge.app",
    "WsgiContextMiddleware": "forge.track.middleware",
    "connect": "forge.client",
    "on_change": "forge.track.sqlalchemy",
}


def __getattr__(name: str) -> Any:
    """What needs more than the base installation is imported when it is first asked for."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'forge' has no attribute {name!r}")
