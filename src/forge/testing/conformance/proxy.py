"""A FaultProxy that counts what it forwards, and can strand its connections."""

import asyncio

from forge.testing.proxy import FaultProxy


class CountingProxy(FaultProxy):
    """Forwards until told otherwise, and knows how many bytes came from the server."""

    def __init__(self, host: str, target_port: int) -> None:
        super().__init__(host, target_port)
        self.received = 0
        """Bytes that servers sent since it was last set to 0."""
        self._clients: set[asyncio.StreamReader] = set()

    @property
    def clients(self) -> int:
        """How many connections their clients hold, whatever the servers think."""
        return len(self._clients)

    def strand(self) -> None:
        """Forward nothing more on the connections of now, for ever, but keep them open; new ones are served.

        So it is when a firewall forgets a connection: neither end is told.
        """
        self._do(self._strand())

    async def _strand(self) -> None:
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(reader)
        try:
            await super()._link(reader, writer)
        finally:
            self._clients.discard(reader)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flowing = self._flowing
        client = reader in self._clients
        while data := await reader.read(64 * 1024):
            await flowing.wait()
            if not client:
                self.received += len(data)
            writer.write(data)
            await writer.drain()
        self._clients.discard(reader)
        await flowing.wait()
        writer.write_eof()
