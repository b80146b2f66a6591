"""What can go wrong with documents and their versions, by name. Whatever is raised, nothing was written."""

from forge.errors import ForgeError


class VersionsError(ForgeError):
    """The root of these."""


class VersionsMissing(VersionsError):
    """The database has no schema forge_versions, or not as this program knows it."""


class UnknownResource(VersionsError):
    """No resource of that project, name and version was declared."""


class UnknownDocument(VersionsError):
    """There is no such document, or no longer."""


class DocumentInvalid(VersionsError):
    """A document, a name or a subject cannot be written as it was given: no JSON, or more than the tables take."""


class DocumentUnreadable(VersionsError):
    """What the tables have of a document is nothing that could be written today; `document` is its id.

    It was written before that was refused, or past the triggers.
    """

    def __init__(self, message: str, *, fix: str, document: int) -> None:
        super().__init__(message, fix=fix)
        self.document = document


class MissingReference(VersionsError):
    """A reference leads to a document that is not there. `name` is the reference's."""

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
    """An identity contains something else than the identity of the document that its reference leads to."""


class IdentityCycle(VersionsError):
    """An identity would contain itself, by way of others."""


class IsolationUnfit(VersionsError):
    """The transaction's snapshot is too old for what it is to do: it must be in READ COMMITTED."""


class TransactionUnfit(VersionsError):
    """What is asked for cannot be told inside of a transaction."""


class WindowInvalid(VersionsError):
    """No versions can lie in such a window: it ends before it begins, or beyond the newest, or is below zero."""


class WindowExpired(VersionsError):
    """The window begins where the journals no longer reach. `oldest` is where they begin."""

    def __init__(self, message: str, *, fix: str, oldest: int) -> None:
        super().__init__(message, fix=fix)
        self.oldest = oldest


class TokenInvalid(VersionsError):
    """A page token that this database did not give for this question."""


class StrategyBusy(VersionsError):
    """The strategy cannot be changed now; it is as it was."""
