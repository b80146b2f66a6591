"""Message: the unit of delivery, made of a Change or taken from the outbox.

Its `id` is the same at every try, so a receiver that has seen an id has seen the message. Messages of one `key` arrive
in the order in which they were made; those of different keys in any order.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from forge import wire
from forge.change import Change
from forge.deliver.payload import Encode

JSON: Final = "application/json"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message for one topic; `payload` is sent byte for byte the same at every try."""

    id: str
    topic: str
    payload: bytes
    at: datetime
    key: str | None = None
    headers: Mapping[str, str] = {}
    content_type: str = JSON
    alone: bool = False
    """Whether it concerns everything before and after it: no message may overtake it, and it overtakes none."""


def of_change(change: Change, topic: str | None = None, *, encode: Encode = wire.encode) -> Message | None:
    """Return a change as a message: its topic is `schema.table` by default, its key that of the row, None for a table.

    Return None where the encoding has no form for the change.
    """
    payload = encode(change)
    if payload is None:
        return None
    return Message(
        id=change.id,
        topic=topic or f"{change.schema}.{change.table}",
        payload=payload,
        at=change.at,
        key=None if change.key is None else change.row_id,
        headers={"forge-op": str(change.op), "forge-table": f"{change.schema}.{change.table}"},
        alone=change.key is None,
    )
