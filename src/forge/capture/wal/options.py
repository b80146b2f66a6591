"""Options of a WAL source: those passed to it, and those in its URL where none were passed."""

from typing import Final, Literal, Self

import msgspec

from forge.capture.capabilities import Part
from forge.capture.filters import Filter
from forge.capture.urls import split_option
from forge.capture.wal import slot as slots
from forge.capture.wal.slot import SlotLimits
from forge.config import size
from forge.errors import ConfigError

Plugin = Literal["pgoutput", "wal2json"]
PLUGINS: Final = ("pgoutput", "wal2json")


class WalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `WalSource`; `slot` and `publication` are None if Forge names them."""

    url: str
    filter: Filter
    slot: str | None
    publication: str | None
    plugin: str
    """Empty if none was requested."""
    limits: SlotLimits
    heartbeat: float
    interval: float
    streaming: bool
    two_phase: bool
    failover: bool
    workers: int
    push: tuple[Part, ...]

    def settled(self) -> Self:
        """Return the options with those of the URL moved out of it; raise ConfigError for invalid ones.

        The limits of a URL, `limit=10GB&on_limit=drop`, override the passed ones.
        """
        url, slot = split_option(self.url, "slot")
        url, publication = split_option(url, "publication")
        url, plugin = split_option(url, "plugin")
        plugin = self.plugin or plugin or "pgoutput"
        if plugin not in PLUGINS:
            raise ConfigError(f"no plug-in {plugin!r}", fix=f"plugin={' or plugin='.join(PLUGINS)}")
        url, limit = split_option(url, "limit")
        url, act = split_option(url, "on_limit")
        limits = _limits(self.limits, limit, act)
        slot = self.slot or slot
        return msgspec.structs.replace(
            self,
            url=url,
            slot=None if slot is None else slots.checked_name(slot),
            publication=self.publication or publication,
            plugin=plugin,
            limits=limits,
        )


def _limits(limits: SlotLimits, limit: str | None, act: str | None) -> SlotLimits:
    """Return the limits, overridden by those of a URL."""
    if limit is not None:
        most = size(limit)
        if most is None:
            raise ConfigError(f"{limit!r} is no size", fix="write limit=10GB")
        limits = msgspec.structs.replace(limits, most=most)
    if act is not None:
        if act not in ("alert", "drop"):
            raise ConfigError(f"on_limit cannot be {act!r}", fix="on_limit=alert or on_limit=drop")
        limits = msgspec.structs.replace(limits, act=act)
    return limits
