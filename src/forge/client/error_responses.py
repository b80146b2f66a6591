"""Conversion of a server's error responses to exceptions, and whether a retry can help.

An error that the server sent has its `code` (one word, stable), its HTTP `status`, and the server's own `fix`.
"""

from typing import Final

from forge.errors import (
    CursorError,
    CursorExpired,
    CursorForeign,
    CursorInvalid,
    Failed,
    ForgeError,
    NotForge,
    Refused,
    TooMany,
    Unauthorized,
    Unreachable,
)


def passing(error: Exception, *, connected: bool) -> bool:
    """Whether to open a stream again.

    A refusal by the server is final. A refusal by something else is final at first; after a connection has succeeded,
    the URL is known to be right, so the refusal comes from a proxy in between and may pass.
    """
    if isinstance(error, (Failed, TooMany, Unreachable)):
        return True
    return connected and isinstance(error, NotForge)


NOT_FORGE: Final = "not_forge"
"""The code for a response that no Forge server sends."""
_CURSORS: Final[dict[str, type[CursorError]]] = {
    "cursor_invalid": CursorInvalid,
    "cursor_foreign": CursorForeign,
    "cursor_expired": CursorExpired,
}


def told(
    code: str, message: str, fix: str, *, status: int | None = None, retry_after_secs: float | None = None
) -> ForgeError:
    """Return the error that the server sent, by its status, or by its code if there is no status.

    >>> told("bad_arguments", "orders_of: …", "see its arguments", status=400)
    Refused('orders_of: …')
    >>> told("server_error", "cannot reach the database", "look at the server").code
    'server_error'
    """
    if code in _CURSORS:
        return _CURSORS[code](message, fix=fix)
    if status == 401 or code == "auth_failed":
        return Unauthorized(message, fix=fix, code=code, status=status)
    if status == 429 or code == "too_many":
        after = 1.0 if retry_after_secs is None else retry_after_secs
        return TooMany(message, fix=fix, code=code, status=status, retry_after_secs=after)
    if code in ("server_error", "failed", "unexpected") or (status is not None and status >= 500):
        return Failed(message, fix=fix, code=code, status=status)
    if code == NOT_FORGE:
        return NotForge(message, fix=fix, code=code, status=status)
    return Refused(message, fix=fix, code=code, status=status)
