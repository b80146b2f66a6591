"""Sink: the receiver of messages, such as a webhook, a queue, or a user-defined class.

A sink guarantees only this: when `send` returns, the receiver has every given message, and got the messages of one key
in the given order. It buffers nothing. The caller saves its position afterwards, so anything lost in between is sent
again, with the same ids.
"""

from collections.abc import Sequence
from typing import Protocol

from forge.deliver.message import Message
from forge.errors import DeliveryRefused as Refused
from forge.errors import NotDelivered

__all__ = ["NotDelivered", "Refused", "Sink"]


class Sink(Protocol):
    """Sends messages to one receiver."""

    async def send(self, messages: Sequence[Message], /) -> None:
        """Return when the receiver has all messages; raise NotDelivered or DeliveryRefused."""

    async def close(self) -> None:
        """Release all resources; nothing is in flight afterwards."""
