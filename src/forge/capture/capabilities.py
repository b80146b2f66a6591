"""The capabilities that a source declares. The conformance suite proves every claim made here."""

from typing import Final, Literal

import msgspec

from forge.errors import CapabilityMissing

Part = Literal["tables", "operations", "columns", "rows"]
"""The parts that a filter can have."""


class Capabilities(msgspec.Struct, frozen=True):
    """The guarantees of a source. A caller that needs a missing one is refused at start (`need`)."""

    durable: bool
    """Nothing is lost while there is no reader, as long as the source retains it."""
    replayable: bool
    """A cursor may be read from more than once, even after it was acknowledged."""
    retention: str
    """How far back it can be read, in a sentence."""
    other_processes: bool
    """Sees the writes of other processes."""
    before: Literal["always", "some", "never"]
    """Whether updates and deletes carry the row before; `some` means if the database is set up for it."""
    context: bool
    """Carries the actor and the reason."""
    ordered: bool
    """Changes come in commit order, and those of one transaction together. Changes of one row, and of one writer, come
    in order from every source."""
    transactions: bool
    """Names the transaction of each change."""
    snapshots: bool
    """Can read the existing rows first, without a gap or an overlap with the stream."""
    truncates: bool
    """Reports the truncation of a table as a change."""
    schema_changes: bool
    """Reports changes of a table's definition."""
    rollbacks: bool = True
    """Rolled-back writes are never seen."""
    filters: tuple[Part, ...] = ()
    """The parts of a filter that run in the feed; the others run in Forge."""


_CAN: Final = {
    "durable": "keep what is written while nobody reads",
    "replayable": "be read again",
    "other_processes": "see other processes",
    "before": "tell the row before",
    "context": "tell who and why",
    "ordered": "order by commit",
    "transactions": "name transactions",
    "snapshots": "take snapshots",
    "truncates": "tell truncates",
    "schema_changes": "tell changed definitions",
    "rollbacks": "hide what is rolled back",
}


def described(capabilities: Capabilities) -> tuple[list[str], list[str]]:
    """Return what a source can do and what it cannot, in words.

    >>> hook = Capabilities(False, False, "none", False, "some", False, True, False, False, False, False)
    >>> described(hook)[0]
    ['tell the row before (where set up for it)', 'order by commit', 'hide what is rolled back']
    """
    able, unable = [], []
    for name, words in _CAN.items():
        value = getattr(capabilities, name)
        if value in (False, "never"):
            unable.append(words)
        else:
            able.append(f"{words} (where set up for it)" if value == "some" else words)
    return able, unable


def need(capabilities: Capabilities, *wanted: str, source: str) -> None:
    """Refuse a source that lacks one of the capabilities.

    >>> hook = Capabilities(False, False, "none", False, "always", False, True, False, False, False, False)
    >>> need(hook, "ordered", source="sqlite hook")
    >>> need(hook, "durable", source="sqlite hook")
    Traceback (most recent call last):
      ...
    forge.errors.CapabilityMissing: sqlite hook is not durable
    fix: choose a source that is: forge status URL says what each can do
    """
    for name in wanted:
        if getattr(capabilities, name) in (False, "never"):
            is_adjective = name in ("durable", "replayable", "ordered")
            raise CapabilityMissing(
                f"{source} is not {name}" if is_adjective else f"{source} has no {name.replace('_', ' ')}",
                fix="choose a source that is: forge status URL says what each can do"
                if is_adjective
                else "choose a source that has: forge status URL says what each can do",
            )
