"""Bodies of requests and responses, as the OpenAPI document describes them; their names are component names."""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec


class Failure(msgspec.Struct):
    """The error as one word and as a sentence, and its fix."""

    code: str
    message: str
    fix: str


class FailureForNow(Failure):
    """A temporary failure; retry later."""

    retry_after_secs: int


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: Failure


class TooManyBody(msgspec.Struct):
    """The body of an error that says when to retry."""

    error: FailureForNow


class QueryBody(msgspec.Struct):
    """A result, its hash, and the database snapshot it shows, or its instant."""

    result: Any
    hash: str
    snapshot: str | msgspec.UnsetType = msgspec.UNSET
    as_of: datetime | msgspec.UnsetType = msgspec.UNSET
    asked: datetime | msgspec.UnsetType = msgspec.UNSET
    at: datetime | msgspec.UnsetType = msgspec.UNSET
    gap_seconds: float | msgspec.UnsetType = msgspec.UNSET
    changes_between: int | msgspec.UnsetType | None = msgspec.UNSET
    changes_unsure: int | msgspec.UnsetType | None = msgspec.UNSET
    changes_capped: bool | msgspec.UnsetType = msgspec.UNSET


class MutationBody(msgspec.Struct):
    """The return value of the mutation, and its transaction; null when it wrote nothing."""

    result: Any
    xid: str | None


class SubscribeBody(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription under a name that the client chooses; `hash` is that of the result it already has."""

    subscription: str
    query: str
    args: Any = None
    mode: Literal["full", "delta"] = "full"
    hash: str | None = None


class SubscribedBody(msgspec.Struct):
    """The name under which results arrive."""

    subscription: str


class UnsubscribeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a subscription."""

    subscription: str


class UnsubscribedBody(msgspec.Struct):
    """Whether the subscription existed."""

    unsubscribed: bool


class AuthBody(msgspec.Struct, forbid_unknown_fields=True):
    """A newer token of the same user."""

    token: str


class AuthenticatedBody(msgspec.Struct):
    """The time at which the session ends without a newer token, in seconds since the epoch."""

    expires_at: float | None


class HealthBody(msgspec.Struct, omit_defaults=True):
    """Whether the node can serve, and if not, why."""

    ok: bool
    reason: str | msgspec.UnsetType = msgspec.UNSET
    snapshot: str | msgspec.UnsetType = msgspec.UNSET
    maintained_by: str | msgspec.UnsetType | None = msgspec.UNSET


class HistoryBody(msgspec.Struct):
    """A page of a row's history, and the start of the next page; or the row `at` an instant."""

    table: str
    key: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    entries: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    next: str | msgspec.UnsetType | None = msgspec.UNSET
    at: datetime | msgspec.UnsetType = msgspec.UNSET
    row: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET


class AuditBody(msgspec.Struct):
    """A page of changes, and the start of the next page; or their counts."""

    entries: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    next: str | msgspec.UnsetType | None = msgspec.UNSET
    counts: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class AvailableBody(msgspec.Struct):
    """The versions at which windows may begin and end, the installation they belong to, and the caller.

    For one resource also `epoch`, which changes when access to the resource changes.
    """

    oldest: int
    newest: int
    install: str
    subject: str | None
    epoch: int | msgspec.UnsetType = msgspec.UNSET


class VersionsBody(msgspec.Struct):
    """A page of changes in version order, and the token of the next page; null at the end.

    `epoch` changes when access to the resource changes: a copy must then start again.
    """

    items: list[dict[str, Any]]
    next: str | None
    epoch: int


class ExpiredBody(msgspec.Struct):
    """The body of an error about a window that begins too early, with the oldest version it may begin at."""

    error: Failure
    oldest: int


BODIES: Final = (
    *(ErrorBody, TooManyBody, QueryBody, MutationBody, SubscribeBody, SubscribedBody),
    *(UnsubscribeBody, UnsubscribedBody, AuthBody, AuthenticatedBody, HealthBody),
    *(HistoryBody, AuditBody, AvailableBody, VersionsBody, ExpiredBody),
)
