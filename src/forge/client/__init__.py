"""A client of a Forge server: live queries, mutations and the raw feed, over HTTP.

async with forge.connect("http://127.0.0.1:8710", token=token) as client:
    async for orders in client.subscribe("orders_of", customer_id=7):
        print(orders)
"""

from forge.client.changes import Changes
from forge.client.client import Client, Mutated, Subscription, connect
from forge.client.live import ClientMetrics
from forge.client.messages import Cause
from forge.errors import (
    ClientError,
    Closed,
    Failed,
    NotForge,
    ProtocolError,
    Refused,
    ResultMismatch,
    TooMany,
    Unauthorized,
    Unreachable,
)

__all__ = [
    "Cause",
    "Changes",
    "Client",
    "ClientError",
    "ClientMetrics",
    "Closed",
    "Failed",
    "Mutated",
    "NotForge",
    "ProtocolError",
    "Refused",
    "ResultMismatch",
    "Subscription",
    "TooMany",
    "Unauthorized",
    "Unreachable",
    "connect",
]
