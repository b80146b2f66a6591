"""Messages into queues: Redis Streams, Kafka and NATS JetStream, each a Sink, by a URL or by their classes.

    app.deliver("shop", to=queue_sink("redis://cache:6379/0?maxlen=100000"), tables=["orders"])

A library is imported when its sink is made, and the error names the extra where it is missing.
"""

from forge.deliver.queues.address import queue_sink
from forge.deliver.queues.kafka import Kafka
from forge.deliver.queues.nats import Nats
from forge.deliver.queues.redis import RedisStreams

__all__ = ["Kafka", "Nats", "RedisStreams", "queue_sink"]
