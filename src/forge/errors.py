"""Every exception of Forge.

All that a caller may see derive from `ForgeError`. `str(error)` is one line that says what is wrong; `error.fix` is one
line that says how to fix it; `error.code` names the error in one word for clients. The command line prints the first
two and nothing else. Control flow between two modules of Forge derives from `Signal` and reaches no caller.
"""

from collections.abc import Sequence
from datetime import datetime


class ForgeError(Exception):
    """A failure that Forge can name; `fix` says how to fix it.

    >>> ServerError("x", fix="y").code
    'server_error'
    """

    code: str = "forge_error"
    """The class's name in snake case, unless the class sets another."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            name = cls.__name__.lstrip("_")
            cls.code = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")

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


class SourceUnreachable(SourceError):
    """The server of a source does not answer, which may be transient."""


# Delivery


class NotDelivered(ForgeError):
    """The receiver did not accept a message, and may later: it is retried, not before `after` seconds if given.

    `delivered` is the number of messages, from the first on, that it has certainly accepted. `tried` is False where the
    first of the others was not sent at all: then that does not count as a try.
    """

    def __init__(
        self,
        message: str,
        *,
        fix: str = "see to the receiver",
        after: float | None = None,
        delivered: int = 0,
        tried: bool = True,
    ) -> None:
        super().__init__(message, fix=fix)
        self.after = after
        self.delivered = delivered
        self.tried = tried


class DeliveryRefused(ForgeError):
    """The receiver will never accept the message at `place`: it is parked. Those before it were accepted."""

    def __init__(self, message: str, *, fix: str = "see the dead letters", place: int = 0) -> None:
        super().__init__(message, fix=fix)
        self.place = place


class ConsumerInvalid(ForgeError):
    """A consumer is invalid; nothing was registered."""


class ConsumerUnknown(ForgeError):
    """The database has no consumer of that name."""


class ConsumerLost(ForgeError):
    """Another worker has taken over, or the cursor was moved: nothing may be saved under this fence."""


class HandlerMisused(ForgeError):
    """A handler broke a rule: it returned a value, or ended the transaction of `ctx.tx`. Its code is wrong, not the
    change, so nothing is parked; the consumer stops until the handler is fixed."""


class HandlerTimeout(ForgeError):
    """A handler took longer than its timeout."""


class LetterUnknown(ForgeError):
    """The dead letter does not exist, or was removed."""


class WebhookInvalid(ForgeError):
    """An endpoint is invalid."""


class WebhookUnknown(ForgeError):
    """There is no endpoint of that name."""


class SignatureInvalid(ForgeError):
    """A request is not from an owner of the secret, or it is a replay of an old one."""


class AddressRefused(OSError):
    """A name resolves to an address that is not allowed for webhooks. An `OSError`, as resolvers raise."""


# Live queries and their server


class RegistrationError(ForgeError):
    """A function cannot be registered in its present form."""


class UnknownName(ForgeError):
    """No query or mutation has that name."""


class BadArguments(ForgeError):
    """The arguments do not match the function's parameters."""


class QueryRefused(ForgeError):
    """The statement is not a query, or its reads cannot be determined."""


class QueryFailed(ForgeError):
    """A statement of a query or mutation failed."""


class Unexpected(ForgeError):
    """A query's function raised an unexpected exception."""


class ResultTooLarge(ForgeError):
    """A result exceeds the size limit."""


class ResultInvalid(ForgeError):
    """A query returned a value that cannot be sent."""


class NotCachable(ForgeError):
    """A value cannot be cached."""


class AuthFailed(ForgeError):
    """The token is missing or not accepted."""


class KeysUnavailable(AuthFailed):
    """The keys that verify tokens are not fetched yet, so no token can be accepted or finally refused."""


class Forbidden(ForgeError):
    """The caller may not do it, or may not see any of it."""


class UnknownSession(ForgeError):
    """This node has no such session, or it belongs to another caller."""


class KeyReused(ForgeError):
    """An idempotency key was already used for a different call."""


class NotJson(ForgeError):
    """A call of a Forge function is not declared as JSON; a form on any page could send such a request."""


class LimitReached(ForgeError):
    """A limit of the server is reached; `retry_after_secs` is the delay before a retry."""

    code = "too_many"

    def __init__(self, message: str, *, fix: str, retry_after_secs: int) -> None:
        super().__init__(message, fix=fix)
        self.retry_after_secs = retry_after_secs


class TooLarge(ForgeError):
    """A request exceeds a size limit, or takes too long."""


class NotDescribed(ForgeError):
    """The input of the code generator does not describe a Forge application."""


# The client


class ClientError(ForgeError):
    """The communication between this client and the server failed."""


class Unreachable(ClientError):
    """The server cannot be reached, or does not answer in time."""


class ProtocolError(ClientError):
    """The other side does not follow the protocol of a Forge server."""


class ResultMismatch(ClientError):
    """A result does not match the hash that the server sent."""


class Closed(ClientError):
    """The client was closed."""


class ResponseError(ClientError):
    """An error that the server sent, with the server's own `code` and `fix`; `status` is None in an open stream."""

    def __init__(self, message: str, *, fix: str, code: str, status: int | None = None) -> None:
        super().__init__(message, fix=fix)
        self.code = code
        self.status = status


class Refused(ResponseError):
    """The server refuses the request, and a retry would not help."""


class NotForge(Refused):
    """The response is not from a Forge server, or is from a proxy in front of it."""


class Unauthorized(Refused):
    """The token is missing, expired, revoked or not valid here."""


class TooMany(Refused):
    """A limit is reached; `retry_after_secs` is the delay before a retry."""

    def __init__(self, message: str, *, fix: str, code: str, status: int | None, retry_after_secs: float) -> None:
        super().__init__(message, fix=fix, code=code, status=status)
        self.retry_after_secs = retry_after_secs


class Failed(ResponseError):
    """The server failed this time; a retry may succeed."""


# Change versions: when one is raised, nothing was written


class VersionsError(ForgeError):
    """Documents or their versions cannot be used as requested."""


class VersionsMissing(VersionsError):
    """The database has no schema forge_versions, or one of another version."""


class UnknownResource(VersionsError):
    """No resource of that project, name and version was declared."""


class UnknownDocument(VersionsError):
    """There is no such document, or it was deleted."""


class DocumentInvalid(VersionsError):
    """A document, a name or a subject cannot be written: it is not JSON, or exceeds the limits of the tables."""


class DocumentUnreadable(VersionsError):
    """A stored document cannot be read; `document` is its id.

    It was written before such content was refused, or by bypassing the triggers.
    """

    def __init__(self, message: str, *, fix: str, document: int) -> None:
        super().__init__(message, fix=fix)
        self.document = document


class MissingReference(VersionsError):
    """The target of a reference does not exist. `name` is the reference's."""

    def __init__(self, message: str, *, fix: str, name: str) -> None:
        super().__init__(message, fix=fix)
        self.name = name


class StillReferenced(VersionsError):
    """A document cannot be deleted while others refer to it; `by` is one of them."""

    def __init__(self, message: str, *, fix: str, by: int) -> None:
        super().__init__(message, fix=fix)
        self.by = by


class IdentityTaken(VersionsError):
    """Another document of the resource has that identity."""


class IdentityMismatch(VersionsError):
    """An identity differs from the identity of the referenced document that it contains."""


class IdentityCycle(VersionsError):
    """An identity would contain itself, directly or through others."""


class IsolationUnfit(VersionsError):
    """The transaction's snapshot is too old for this operation: it must be READ COMMITTED."""


class TransactionUnfit(VersionsError):
    """The query cannot run inside a transaction."""


class WindowInvalid(VersionsError):
    """The window is invalid: it ends before it begins, or after the newest version, or is below zero."""


class WindowExpired(VersionsError):
    """The window begins before the oldest version in the journals. `oldest` is that version."""

    def __init__(self, message: str, *, fix: str, oldest: int) -> None:
        super().__init__(message, fix=fix)
        self.oldest = oldest


class TokenInvalid(VersionsError):
    """This database did not issue the page token for this query."""


class StrategyBusy(VersionsError):
    """The strategy cannot be changed at present; it is unchanged."""


class AccessChanged(ForgeError):
    """Access to the resource changed while it was copied."""


class MirrorUnusable(ForgeError):
    """The copy cannot be stored there; the existing content is unchanged."""


# The pipeline


class SparkUnavailable(ForgeError):
    """Spark cannot be started here; nothing was read or written."""


class ModelError(ForgeError):
    """A model is invalid; its table is unchanged."""

    def __init__(self, message: str, *, file: str, line: int, fix: str) -> None:
        super().__init__(f"{file}:{line}: {message}", fix=fix)
        self.file = file
        self.line = line


# Control flow


class Signal(Exception):
    """Control flow between two modules of Forge; no caller sees it."""


class TableMapMismatch(Signal):
    """The catalog does not fit a table map of MySQL: its table changed since."""


class WorkerStopped(Signal):
    """The worker was stopped, and has saved its position."""


class StatementUnreadable(Signal):
    """The text of a statement cannot be analysed; it may still be valid SQL."""


class CallInProgress(Signal):
    """Another call of a mutation with the same key is running elsewhere."""


def one_line(error: BaseException, *, named: bool = False) -> str:
    """Return the first line of an error's text, after its type's name if `named`; that name if the text is empty.

    >>> one_line(ValueError("no\\nfix: yes")), one_line(ValueError("no"), named=True), one_line(ValueError())
    ('no', 'ValueError: no', 'ValueError')
    """
    name, text = type(error).__name__, str(error).strip()
    if not text:
        return name
    return f"{name}: {text.splitlines()[0]}" if named else text.splitlines()[0]
