"""Faults of a round, which end with it: one method for each kind."""

import asyncio
import random

import psycopg

from forge.embedded import PostgresServer
from forge.errors import ForgeError
from forge.postgres import locks
from forge.postgres.connection import connect_async
from tests.checkers.oracle.plan import Fault
from tests.checkers.oracle.writers import APPLICATION


class Faults:
    """Carries faults out. `slow` is how long a run may be delayed just now."""

    def __init__(self, server: PostgresServer, url: str, chance: random.Random) -> None:
        self._server = server
        self._url = url
        self._chance = chance
        self.slow = 0.0
        self.done: list[str] = []
        self.crashes = 0

    async def delay(self) -> None:
        """What a run waits for, before and after it asks, and after a snapshot was taken for it."""
        if self.slow and self._chance.random() < 0.5:
            await asyncio.sleep(self._chance.uniform(0, self.slow))

    async def carry_out(self, fault: Fault) -> None:
        await asyncio.sleep(fault.after)
        self.done.append(fault.kind)
        try:
            await getattr(self, f"_{fault.kind}")(fault)
        except (psycopg.Error, ForgeError):  # another fault is at work
            return

    async def _slow(self, fault: Fault) -> None:
        self.slow = fault.lasts / 2
        await asyncio.sleep(fault.lasts)
        self.slow = 0.0

    async def _terminate(self, fault: Fault) -> None:
        """End some of the reactors' connections."""
        await self._end("application_name LIKE 'forge%%' AND random() < %s", fault.lasts * 2.5)

    async def _writers(self, fault: Fault) -> None:
        await self._end("application_name = %s", APPLICATION)

    async def _end(self, which: str, parameter: object) -> None:
        connection = await connect_async(self._url, application_name="oracle")
        async with connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                f" AND backend_type = 'client backend' AND {which}".encode(),
                (parameter,),
            )

    async def _hold(self, fault: Fault) -> None:
        """Take the lock that tells writers that somebody is awake, and read nothing: their NOTIFYs are not sent."""
        connection = await connect_async(self._url, application_name="oracle")
        async with connection:
            await connection.execute("SET lock_timeout = '2s'")
            await connection.execute("SELECT pg_advisory_lock(%s)", (locks.WAKE,))
            await asyncio.sleep(fault.lasts)

    async def _restart(self, fault: Fault) -> None:
        await asyncio.to_thread(self._server.stop, "fast")
        await asyncio.sleep(fault.lasts)
        await asyncio.to_thread(self._server.start)

    async def _immediate(self, fault: Fault) -> None:
        self.crashes += 1
        await asyncio.to_thread(self._server.stop, "immediate")
        await asyncio.sleep(fault.lasts)
        await asyncio.to_thread(self._server.start)
