"""The query bus: what is asked of databases that are observed (`observe`) → whoever listens (`on`, `sinks`)."""

from forge.track.bus.event import QueryEvent
from forge.track.bus.hub import Subscription, on
from forge.track.bus.observe import observe

__all__ = ["QueryEvent", "Subscription", "observe", "on"]
