"""The query cache: `Cache`, its stores (`memory`, `redis`), and when an entry may be shown (`keeper`)."""

from forge.track.cache.cache import Cache
from forge.track.cache.keeper import Metrics
from forge.track.cache.values import NotCachable

__all__ = ["Cache", "Metrics", "NotCachable"]
