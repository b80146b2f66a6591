"""Mutations that run once, however often they are sent: each call has a key of its caller's choosing.

In come a caller, a key and a call; out comes what the same call was answered before, or nothing, and then it runs and
its answer is kept in its own transaction. So the key is there exactly when what the mutation did is there.

What always holds:

- Of calls with one key, one commits. Those that come meanwhile wait for it, on whichever node they are, without a
  connection; if it fails, the next of them runs.
- A key belongs to one user of one tenant, to one mutation and to one set of arguments; with others it is refused.
- What failed has left no key: sent again, it runs again.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from forge.errors import ForgeError
from forge.postgres.connection import AsyncConnection
from forge.react.registry import Auth, BadArguments
from forge.react.result import Result, digest
from forge.react.runner import Answer, Taken

_KEY: Final = re.compile(r"[!-~]{1,200}")
_LOCK: Final = "SELECT pg_catalog.pg_try_advisory_xact_lock(%s)"
_KNOWN: Final = "SELECT digest, result, xid FROM forge.mutation_key WHERE caller = %s AND key = %s"
_KEEP: Final = "INSERT INTO forge.mutation_key (caller, key, digest, result, xid) VALUES (%s, %s, %s, %s, %s)"


class KeyReused(ForgeError):
    """An idempotency key was used before, for something else."""


class Once:
    """One call of a mutation under a key."""

    def __init__(self, key: str, name: str, arguments: Mapping[str, Any], auth: Auth) -> None:
        if not _KEY.fullmatch(key):
            raise BadArguments(
                "an idempotency key has 1 to 200 characters of ASCII, without spaces", fix="use a UUID for each call"
            )
        self._key = key
        self.named = (auth.tenant, auth.user, key)
        """Which calls are the same one."""
        self._caller = msgspec.json.encode([auth.tenant, auth.user]).decode()
        self._digest = hashlib.sha256(msgspec.json.encode([name, arguments], order="sorted")).digest()

    @property
    def lock(self) -> int:
        """The number of the advisory lock by which calls with this key wait for each other."""
        named = hashlib.sha256(f"{self._caller} {self._key}".encode()).digest()
        return int.from_bytes(named[:8], signed=True)

    async def _row(self, connection: AsyncConnection) -> tuple[Any, ...] | None:
        return await (await connection.execute(_KNOWN, (self._caller, self._key))).fetchone()

    async def known(self, connection: AsyncConnection) -> Answer | None:
        """What the call was answered; Taken while another one is at it. From then on, others wait for this one."""
        row = await self._row(connection)  # any role may hold the lock, but of a call that is done nobody has to wait
        if row is None:
            locked = await connection.execute(_LOCK, (self.lock,))
            if await locked.fetchone() != (True,):
                raise Taken
            row = await self._row(connection)
        if row is None:
            return None
        if bytes(row[0]) != self._digest:
            raise KeyReused(
                "the idempotency key was used for another mutation or other arguments",
                fix="use a new key for each call",
            )
        result = bytes(row[1])
        return Answer(Result((result,), digest([result]), True, (), None), row[2], repeated=True)

    async def keep(self, connection: AsyncConnection, answer: Answer) -> None:
        """Have the answer committed with what it is the answer to."""
        result = answer.value.json()
        await connection.execute(_KEEP, (self._caller, self._key, self._digest, result, answer.xid))
