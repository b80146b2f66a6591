"""Errors of consumers."""

from forge.errors import ForgeError


class ConsumerInvalid(ForgeError):
    """A consumer is invalid; nothing was registered."""


class ConsumerUnknown(ForgeError):
    """The database has no consumer of that name."""


class ConsumerLost(ForgeError):
    """Another worker has taken over, or the cursor was moved: nothing may be saved under this fence."""


class HandlerMisused(ForgeError):
    """A handler broke a rule: it returned a value, or ended the transaction of `ctx.tx`. Its code is wrong, not the
    change, so nothing is parked; the consumer stops until the handler is fixed."""


class HandlerTimeout(ForgeError):
    """A handler took longer than its timeout."""
