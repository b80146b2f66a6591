"""Statements that read a page of versions, for each strategy and each way to find candidates."""

from enum import IntEnum
from functools import cache
from typing import Final

from psycopg import sql

from forge.postgres.queries import queries

KEYS, DELETIONS, UPSERTS = 0, 1, 2
"""The kinds of items, in the order in which those of one version and document are returned."""
_PARTS: Final = {
    KEYS: ("keys", "keys_granted"),
    DELETIONS: ("deletions", "deletions_granted"),
    UPSERTS: ("upserts", "upserts"),
}


class Way(IntEnum):
    """The method of finding documents that may have changed through their references; the result is the same."""

    WINDOW = 0
    """All identity changes from a version on, and the referrers of each."""
    FEW = 1
    """For one version with more of these than CANDIDATES, but few identities: their referrers in order."""
    MANY = 2
    """For one version with many identities: all documents of the resource in order, each checked for that version."""


@cache
def statement_of(strategy: str, kinds: tuple[int, ...] | None, by_access: bool, way: int = Way.WINDOW) -> str:
    """Return the statement of a page: of a window's items of these kinds, or of the whole resource."""
    parts = queries("forge.versions", "queries.sql")
    granted = "_granted" if by_access else ""
    kept = sql.SQL("w.max_dependency" if strategy == "monotonic" else "0")
    shared = {
        "refers": sql.SQL(parts["refers"]),
        "others": sql.SQL("d.max_dependency" if strategy == "monotonic" else "o.version"),
        "all": sql.SQL(parts[f"all{granted}"]).format(kept=kept),
        "one": sql.SQL(parts[f"one{granted}"]).format(kept=kept),
    }
    of_resource = sql.SQL(parts["of_resource"] if strategy == "denormalized" else "")
    events = [sql.SQL(parts[name]).format(of_resource=of_resource) for name in _events(strategy, way, by_access)]
    joined = sql.SQL(" UNION ALL ").join(events)
    found = [sql.SQL(parts[_PARTS[kind][by_access]]).format(events=joined, **shared) for kind in kinds or ()]
    whole = sql.SQL(parts["everything" if kinds is None else "page"])
    rows = whole.format(found=sql.SQL(" UNION ALL ").join(found), **shared)
    order = sql.SQL("document" if kinds is None else "version, document, kind")
    return sql.SQL(parts["fitting"]).format(rows=rows, order=order).as_string(None)


def _events(strategy: str, way: int, by_access: bool) -> list[str]:
    """Return the parts of the statement that find candidates for changes."""
    access = ["access_events"] if by_access else []
    if strategy == "monotonic":
        return ["kept_events", *access]
    if way == Way.MANY:
        return ["any_events_granted" if by_access else "any_events"]
    return ["own_events", "other_events_of_few" if way == Way.FEW else "other_events", *access]
