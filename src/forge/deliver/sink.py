"""Where messages go: a webhook, a queue, or anything of the user's own.

A sink makes no promise of its own beyond this: when `send` returns, the receiver has every message that it was given,
and had those of one key in the order in which they were given. It keeps nothing for later. Who calls it saves its place
afterwards, so whatever is lost between is sent again, with the same ids.
"""

from collections.abc import Sequence
from typing import Protocol

from forge.deliver.message import Message
from forge.errors import ForgeError


class NotDelivered(ForgeError):
    """The receiver did not take it, and may later: it is tried again, not before `after` seconds if that is told.

    `delivered` is how many of the messages, from the first on, it has nevertheless taken for sure. `tried` is False
    where the first of the others was not sent at all: then that was no try of it.
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
    """The receiver will never take the message at `place`: it is parked. Those before it were taken."""

    def __init__(self, message: str, *, fix: str = "see the dead letters", place: int = 0):
        super().__init__(message, fix=fix)
        self.place = place


class Sink(Protocol):
    """Sends messages to one receiver."""

    async def send(self, messages: Sequence[Message], /) -> None:
        """Returns when the receiver has them all; raises NotDelivered or Refused."""

    async def close(self) -> None:
        """Gives back what it holds; nothing is in flight afterwards."""
