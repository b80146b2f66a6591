"""Sinks for queues: Redis Streams, Kafka and NATS JetStream, by URL or by class.

    app.deliver("shop", to=queue_sink("redis://cache:6379/0?maxlen=100000"), tables=["orders"])

A client library is imported when its sink is created; if it is missing, the error names the extra to install.
"""

from forge.deliver.queues.address import queue_sink
from forge.deliver.queues.kafka import Kafka
from forge.deliver.queues.nats import Nats
from forge.deliver.queues.redis import RedisStreams

__all__ = ["Kafka", "Nats", "RedisStreams", "queue_sink"]
