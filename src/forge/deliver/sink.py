"""Sink: the receiver of messages, such as a webhook, a queue, or a user-defined class.

A sink guarantees only this: when `send` returns, the receiver has every given message, and got the messages of one key
in the given order. It buffers nothing. The caller saves its position afterwards, so anything lost in between is sent
again, with the same ids.
"""

from collections.abc import Sequence
from typing import Protocol

from forge.deliver.message import Message
from forge.errors import ForgeError


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
    ):
        super().__init__(message, fix=fix)
        self.after = after
        self.delivered = delivered
        self.tried = tried


class Refused(ForgeError):
    """The receiver will never accept the message at `place`: it is parked. Those before it were accepted."""

    def __init__(self, message: str, *, fix: str = "see the dead letters", place: int = 0):
        super().__init__(message, fix=fix)
        self.place = place


class Sink(Protocol):
    """Sends messages to one receiver."""

    async def send(self, messages: Sequence[Message], /) -> None:
        """Return when the receiver has all messages; raise NotDelivered or Refused."""

    async def close(self) -> None:
        """Release all resources; nothing is in flight afterwards."""
