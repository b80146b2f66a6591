"""What can go wrong with a consumer, by name."""

from forge.errors import ForgeError


class ConsumerInvalid(ForgeError):
    """A consumer cannot be registered as it is; nothing was."""


class ConsumerUnknown(ForgeError):
    """There is no consumer of that name in the database."""


class ConsumerLost(ForgeError):
    """Another worker has taken over, or the cursor was moved: nothing more may be saved under this fence."""


class HandlerMisused(ForgeError):
    """A handler did what none may: it returned something, or ended the transaction of `ctx.tx`. Its code is wrong, not
    the change, so nothing is parked; the consumer stands still until that is fixed."""


class HandlerTimeout(ForgeError):
    """A handler took longer than its timeout."""
