"""A process that works on the outbox and writes what it gets into a table, until it is killed.

    python -m tests.deliver.outbox.receiver URL [BEFORE|AFTER N]

With a number it stops itself (SIGSTOP) at its N-th message, before or after writing, for somebody to wake it.
"""

import asyncio
import logging
import os
import signal
import sys

import forge
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxNode, OutboxSettings, Routes
from forge.postgres.connection import Connection, connect_async

HASTY = OutboxSettings(budget=0.3, answer=1.0)


def tables(connection: Connection) -> None:
    """Where it writes: what arrived, each time, and what the inbox let in."""
    connection.execute("CREATE TABLE arrival (place bigserial PRIMARY KEY, key text, id text, n int)")
    connection.execute("CREATE TABLE taken (place bigserial PRIMARY KEY, key text, id text, n int)")


def arrived(connection: Connection, table: str = "arrival") -> list[tuple[str, str, bytes]]:
    """Key, id and payload, in order."""
    rows = connection.execute(f"SELECT key, id, n FROM {table} ORDER BY place".encode()).fetchall()
    return [(key, id, str(n).encode()) for key, id, n in rows]


async def main(url: str, point: str = "", number: str = "0") -> None:
    routes = Routes()
    receiver = await connect_async(url)
    turn = asyncio.Lock()
    left = int(number)

    def hang(here: str) -> None:
        if here == point and left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    @routes.on("*", batch=10, workers=1 if point else 2, timeout=0.3 if point else 30.0)
    async def take(message: Message) -> None:
        nonlocal left
        async with turn:
            left -= 1
            hang("BEFORE")
            values = (message.key, message.id, int(message.payload))
            await receiver.execute("INSERT INTO arrival (key, id, n) VALUES (%s, %s, %s)", values)
            async with receiver.transaction():
                if await forge.inbox(receiver, message.id, consumer="test"):
                    await receiver.execute("INSERT INTO taken (key, id, n) VALUES (%s, %s, %s)", values)
            hang("AFTER")

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    node = OutboxNode(url, routes, HASTY if point else OutboxSettings())
    async with node.running():
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
