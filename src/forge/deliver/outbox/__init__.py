"""The outbox: messages written in the same transaction as their rows, sent after the commit, in the order of each key.

    @app.on_outbox("order.paid")
    async def paid(message): ...

    app.outbox_to("order.*", sink)

`forge.outbox` adds messages (`forge.tracking.outbox`). A message is sent at least once, always with the same id; a
receiver that uses `forge.inbox` processes it exactly once.
"""

from forge.deliver.outbox.node import OutboxNode, OutboxSample
from forge.deliver.outbox.routes import Route, Routes
from forge.deliver.outbox.worker import OutboxSettings, OutboxWorker

__all__ = ["OutboxNode", "OutboxSample", "OutboxSettings", "OutboxWorker", "Route", "Routes"]
