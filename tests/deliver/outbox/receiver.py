"""A process that works on the outbox and writes what it gets into a table, until it is killed; see test_killed.py."""

import asyncio
import sys

import forge
from forge.changelog.connection import connect_async
from forge.deliver.message import Message
from forge.deliver.outbox import OutboxNode, Routes


async def main(url: str) -> None:
    routes = Routes()
    receiver = await connect_async(url)
    turn = asyncio.Lock()

    @routes.on("*", batch=10, workers=2)
    async def take(message: Message) -> None:
        async with turn:
            async with receiver.transaction():
                await receiver.execute("INSERT INTO arrival (id) VALUES (%s)", (message.id,))
            async with receiver.transaction():
                if await forge.inbox(receiver, message.id, consumer="test"):
                    values = (message.key, int(message.payload))
                    await receiver.execute("INSERT INTO taken (key, n) VALUES (%s, %s)", values)

    node = OutboxNode(url, routes)
    async with node.running():
        print("ready", flush=True)
        await asyncio.Event().wait()


asyncio.run(main(sys.argv[1]))
