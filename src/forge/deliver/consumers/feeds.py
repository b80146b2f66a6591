"""Create the feed of a consumer: of the log, or of the source that it names."""

from forge.changelog.follow import Wakeup
from forge.deliver.consumers.definition import Consumer
from forge.deliver.consumers.feed import ConsumerFeed
from forge.deliver.consumers.log_feed import LogFeed
from forge.deliver.consumers.source_feed import SourceFeed


def feed_of(consumer: Consumer, url: str, *, id: int, shard: int, cursor: str, wakeup: Wakeup) -> ConsumerFeed:
    """Return the feed from a saved cursor on; `id` is the row of forge.consumer_cursor."""
    if consumer.origin is not None:
        return SourceFeed(consumer.origin, id, cursor)
    return LogFeed(consumer, url, cursor, shard=shard, wakeup=wakeup)
