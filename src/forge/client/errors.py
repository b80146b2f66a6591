"""What can go wrong for a client of a Forge server.

An error that the server told has its `code` (one word, stable) and HTTP `status`, and the server's own `fix`.
"""

from typing import Final

from forge.errors import CursorError, CursorExpired, CursorForeign, CursorInvalid, ForgeError


class ClientError(ForgeError):
    """Something between this client and the server went wrong."""


class Unreachable(ClientError):
    """The server cannot be reached, or does not answer in time."""


class ProtocolError(ClientError):
    """What answers does not speak as a Forge server does."""


class ResultMismatch(ClientError):
    """A result does not have the hash that the server says it has."""


class Closed(ClientError):
    """The client was closed."""


class _Told(ClientError):
    """An error that the server told."""

    def __init__(self, message: str, *, fix: str, code: str, status: int | None = None) -> None:
        super().__init__(message, fix=fix)
        self.code = code
        self.status = status
        """The HTTP status; None when it was told over an open stream."""


class Refused(_Told):
    """The server does not do what was asked, and would not do it later either."""


class NotForge(Refused):
    """What answers is not a Forge server, or stands before it."""


class Unauthorized(Refused):
    """The token is missing, expired, revoked or not valid here."""


class TooMany(Refused):
    """A limit is reached; `retry_after_secs` says when to try again."""

    def __init__(self, message: str, *, fix: str, code: str, status: int | None, retry_after_secs: float) -> None:
        super().__init__(message, fix=fix, code=code, status=status)
        self.retry_after_secs = retry_after_secs


class Failed(_Told):
    """The server could not do it this time."""


def passing(error: Exception, *, connected: bool) -> bool:
    """Whether it is worth opening a stream again.

    What the server refuses is final. What something else refuses is so at first; later, when the way to the server is
    known to be right, it comes from what stands in between.
    """
    if isinstance(error, (Failed, TooMany, Unreachable)):
        return True
    return connected and isinstance(error, NotForge)


NOT_FORGE: Final = "not_forge"
"""The code of an answer that no Forge server gives."""
_CURSORS: Final[dict[str, type[CursorError]]] = {
    "cursor_invalid": CursorInvalid,
    "cursor_foreign": CursorForeign,
    "cursor_expired": CursorExpired,
}


def told(
    code: str, message: str, fix: str, *, status: int | None = None, retry_after_secs: float | None = None
) -> ForgeError:
    """The error that the server told, by its status, or by its code where it has none.

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
