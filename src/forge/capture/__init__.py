"""Sources: read changes from a database's own feed, all in one form; each source states what it cannot do.

async with open_source("sqlite:///shop.db") as source:
    async for batch in changes(source, after=saved):
        handle(batch.changes)
        await source.ack(batch.cursor)
"""

from forge.capture.capabilities import Capabilities, need
from forge.capture.filters import Filter
from forge.capture.source import Source, SourceBatch, Status, changes, until_now
from forge.capture.source import SourceBatch as Batch
from forge.capture.urls import open_source

__all__ = [
    "Batch",
    "Capabilities",
    "Filter",
    "Source",
    "SourceBatch",
    "Status",
    "changes",
    "need",
    "open_source",
    "until_now",
]
