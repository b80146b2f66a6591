"""Forge makes a database's changes usable: captured once, with who and why, in order, without loss."""

from forge.change import JSON_NULL, UNAVAILABLE, Change, Context, Op, Source
from forge.changelog.follow import follow
from forge.changelog.reader import Batch, Reader
from forge.cursor import Cursor
from forge.errors import CursorExpired, CursorForeign, CursorInvalid, ForgeError
from forge.history.asof import AsOf, HistoryUnavailable, row_as_of, table_as_of
from forge.track.context import transaction
from forge.track.notify import Notification, listen, notify

__all__ = [
    "JSON_NULL",
    "UNAVAILABLE",
    "AsOf",
    "Batch",
    "Change",
    "Context",
    "Cursor",
    "CursorExpired",
    "CursorForeign",
    "CursorInvalid",
    "ForgeError",
    "HistoryUnavailable",
    "Notification",
    "Op",
    "Reader",
    "Source",
    "follow",
    "listen",
    "notify",
    "row_as_of",
    "table_as_of",
    "transaction",
]
