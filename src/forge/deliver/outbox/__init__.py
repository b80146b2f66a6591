"""The outbox: messages that were written with the rows they speak of, sent after the commit, in the order of each key.

    @app.on_outbox("order.paid")
    async def paid(message): ...

    app.outbox_to("order.*", sink)

`forge.outbox` puts messages in (`forge.tracking.outbox`). A message is sent at least once, always with the same id; a
receiver that keeps what it took in with `forge.inbox` takes it in exactly once.
"""

from forge.deliver.outbox.node import OutboxNode, Sample
from forge.deliver.outbox.routes import Route, Routes
from forge.deliver.outbox.worker import Settings, Worker

__all__ = ["OutboxNode", "Route", "Routes", "Sample", "Settings", "Worker"]
