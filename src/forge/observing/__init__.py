"""The query bus: what is asked of databases that are observed (`observe`) → whoever listens (`on`, `sinks`)."""

from forge.observing.event import QueryEvent
from forge.observing.hub import Subscription, on
from forge.observing.observe import observe

__all__ = ["QueryEvent", "Subscription", "observe", "on"]
