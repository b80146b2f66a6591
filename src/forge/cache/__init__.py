"""The query cache: `Cache`, its stores (`memory`, `redis`), and the conditions for using an entry (`validity`)."""

from forge.cache.cache import Cache
from forge.cache.validity import CacheMetrics
from forge.errors import NotCachable

__all__ = ["Cache", "CacheMetrics", "NotCachable"]
