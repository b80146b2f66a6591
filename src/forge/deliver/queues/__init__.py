"""Messages into queues: Redis Streams, Kafka and NATS JetStream, each a Sink.

queue_sink("redis://cache:6379/0?maxlen=100000")
"""

from forge.deliver.queues.redis import RedisStreams

__all__ = ["RedisStreams"]
