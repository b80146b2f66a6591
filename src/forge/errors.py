"""Every error that Forge raises deliberately.

All derive from `ForgeError`. `str(error)` is one line that says what is wrong; `error.fix` is one line that says how to
fix it. The command line prints both and nothing else.
"""

from collections.abc import Sequence
from datetime import datetime


class ForgeError(Exception):
    """A failure that Forge can name; `fix` says how to fix it."""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.fix = fix
        self.add_note(f"fix: {fix}")


class ConfigError(ForgeError):
    """A setting is unknown, malformed, or missing."""


class ServerError(ForgeError):
    """A PostgreSQL server cannot be started, reached, or used for the log."""


class NotInstalled(ForgeError):
    """The database has no Forge schema, or an incomplete one."""


class SchemaTooNew(ForgeError):
    """A newer Forge than this one created the database's Forge schema."""


class TrackingError(ForgeError):
    """A table cannot be tracked as requested; nothing was changed."""


class ContextError(ForgeError):
    """A transaction's context is malformed; nothing was written."""


class NotifyError(ForgeError):
    """A channel or payload cannot be notified; nothing was sent."""


class OutboxError(ForgeError):
    """A message cannot be put into the outbox, or taken out of it, as requested; nothing was written."""


class CursorError(ForgeError):
    """A cursor cannot be used."""


class CursorInvalid(CursorError):
    """The text is not a cursor."""


class CursorForeign(CursorError):
    """The cursor belongs to another log, or to this one before a failover or restore."""


class CursorExpired(CursorError):
    """Changes after the cursor were trimmed from the log."""


class EncodeError(ForgeError):
    """A change has a value that the requested form cannot hold."""


class DecodeError(ForgeError):
    """An encoded change is not in the form that it claims."""


class RowMismatch(ForgeError):
    """A change has no such row, or its row does not fit the requested type."""


class HistoryUnavailable(ForgeError):
    """The log cannot answer for that instant; no answer is given. `oldest` is the oldest instant that it can answer."""

    def __init__(self, message: str, *, fix: str, oldest: datetime | None = None) -> None:
        super().__init__(message, fix=fix)
        self.oldest = oldest


class RevertRefused(ForgeError):
    """Changes cannot be undone as requested; nothing was written. `conflicts` has a line for each reason."""

    def __init__(self, message: str, *, fix: str, conflicts: Sequence[str] = ()) -> None:
        super().__init__(message, fix=fix)
        self.conflicts = tuple(conflicts)


class RedactError(ForgeError):
    """Values cannot be redacted as requested; nothing was changed."""


class LakeError(ForgeError):
    """A lake cannot be used as requested; nothing in it was changed."""


class SourceError(ForgeError):
    """A database's feed cannot be read in its current setup; nothing was changed."""


class SlotInUse(SourceError):
    """Another process reads the replication slot."""


class SlotLost(CursorExpired):
    """The replication slot is gone, or the server has dropped WAL that it still needed."""


class CapabilityMissing(SourceError):
    """The source lacks a capability that its consumer needs."""


class TooLarge(ForgeError):
    """A request exceeds a size limit, or takes too long."""


def one_line(error: BaseException, *, named: bool = False) -> str:
    """Return the first line of an error's text, after its type's name if `named`; that name if the text is empty.

    >>> one_line(ValueError("no\\nfix: yes")), one_line(ValueError("no"), named=True), one_line(ValueError())
    ('no', 'ValueError: no', 'ValueError')
    """
    name, text = type(error).__name__, str(error).strip()
    if not text:
        return name
    return f"{name}: {text.splitlines()[0]}" if named else text.splitlines()[0]
