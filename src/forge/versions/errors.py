"""Errors of documents and their versions. When one is raised, nothing was written."""

from forge.errors import ForgeError


class VersionsError(ForgeError):
    """The base class of these errors."""


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
