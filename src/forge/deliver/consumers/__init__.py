"""Durable consumers: functions and sinks that get every change, at least once, in the order of each row.

    @app.consumer("search", tables=["orders"])
    async def index(ctx, change):
        await search.upsert(change.key["id"], change.after)

The cursor is saved after the side effect, so a change interrupted by a crash is delivered again, with the same
`change.id`. Writes of a handler through `ctx.tx` happen exactly once, because the cursor is saved in that transaction.
One worker at a time works on a consumer, or on each of its `shards`, across all nodes.
"""

from forge.deliver.consumers.context import ConsumerContext
from forge.deliver.consumers.definition import Consumer, Consumers
from forge.deliver.consumers.node import ConsumerNode, ConsumerSample, ConsumerSettings
from forge.errors import ConsumerInvalid, ConsumerLost, ConsumerUnknown, HandlerMisused, HandlerTimeout

__all__ = [
    "Consumer",
    "ConsumerContext",
    "ConsumerInvalid",
    "ConsumerLost",
    "ConsumerNode",
    "ConsumerSample",
    "ConsumerSettings",
    "ConsumerUnknown",
    "Consumers",
    "HandlerMisused",
    "HandlerTimeout",
]
