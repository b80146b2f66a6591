"""Forge makes a database's changes usable: captured once, with who and why, in order, without loss.

`__all__` has what most programs use. Errors are in `forge.errors`. Names are imported when they are first used, so that
`import forge`, and with it every command, starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge import debezium as debezium
    from forge import wire as wire
    from forge.app import Forge as Forge
    from forge.cache import Cache as Cache
    from forge.change import JSON_NULL as JSON_NULL
    from forge.change import UNAVAILABLE as UNAVAILABLE
    from forge.change import Change as Change
    from forge.change import ChangeSource as ChangeSource
    from forge.change import Context as Context
    from forge.change import Op as Op
    from forge.changelog.follow import follow as follow
    from forge.changelog.install import install as install
    from forge.changelog.maintenance import Policy as Policy
    from forge.changelog.maintenance import maintain as maintain
    from forge.changelog.maintenance import run_once as run_once
    from forge.changelog.reader import Batch as Batch
    from forge.changelog.reader import Reader as Reader
    from forge.client import connect as connect
    from forge.cursor import Cursor as Cursor
    from forge.errors import ConfigError as ConfigError
    from forge.errors import ContextError as ContextError
    from forge.errors import CursorError as CursorError
    from forge.errors import CursorExpired as CursorExpired
    from forge.errors import CursorForeign as CursorForeign
    from forge.errors import CursorInvalid as CursorInvalid
    from forge.errors import DecodeError as DecodeError
    from forge.errors import EncodeError as EncodeError
    from forge.errors import ForgeError as ForgeError
    from forge.errors import HistoryUnavailable as HistoryUnavailable
    from forge.errors import NotifyError as NotifyError
    from forge.errors import NotInstalled as NotInstalled
    from forge.errors import OutboxError as OutboxError
    from forge.errors import RedactError as RedactError
    from forge.errors import RevertRefused as RevertRefused
    from forge.errors import RowMismatch as RowMismatch
    from forge.errors import SchemaTooNew as SchemaTooNew
    from forge.errors import ServerError as ServerError
    from forge.errors import TrackingError as TrackingError
    from forge.history.asof import AsOf as AsOf
    from forge.history.asof import as_of as as_of
    from forge.history.asof import at_instant as at_instant
    from forge.history.asof import row_as_of as row_as_of
    from forge.history.asof import table_as_of as table_as_of
    from forge.observing import QueryEvent as QueryEvent
    from forge.observing import observe as observe
    from forge.observing import on as on
    from forge.tracking.context import transaction as transaction
    from forge.tracking.current import Current as Current
    from forge.tracking.current import context as context
    from forge.tracking.current import current as current
    from forge.tracking.middleware import ContextMiddleware as ContextMiddleware
    from forge.tracking.middleware import WsgiContextMiddleware as WsgiContextMiddleware
    from forge.tracking.notify import Notification as Notification
    from forge.tracking.notify import listen as listen
    from forge.tracking.notify import notify as notify
    from forge.tracking.outbox import inbox as inbox
    from forge.tracking.outbox import outbox as outbox
    from forge.tracking.paused import without_tracking as without_tracking
    from forge.tracking.sqlalchemy import on_change as on_change
    from forge.tracking.sqlalchemy import track as track

__all__ = [
    "UNAVAILABLE",
    "Cache",
    "Change",
    "Cursor",
    "Forge",
    "ForgeError",
    "Op",
    "as_of",
    "connect",
    "context",
    "current",
    "follow",
    "inbox",
    "install",
    "listen",
    "maintain",
    "notify",
    "observe",
    "on",
    "on_change",
    "outbox",
    "track",
    "transaction",
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
