"""The query bus: statements of observed databases (`observe`) → listeners (`on`, `sinks`)."""

from forge.observing.event import QueryEvent
from forge.observing.hub import EventSubscription as Subscription
from forge.observing.hub import on
from forge.observing.observe import observe

__all__ = ["QueryEvent", "Subscription", "observe", "on"]
