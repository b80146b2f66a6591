"""Idempotent mutations: each call has a key that the caller chooses, and runs once for any number of requests.

Input: a caller, a key and a call. Output: the stored answer of the same call, or None; then the call runs, and its
answer is stored in its own transaction. The key therefore exists exactly when the mutation's effects exist.

Invariants:

- Among calls with one key, one commits. Concurrent calls wait for it, on any node, without a connection; if it fails,
  the next one runs.
- A key belongs to one user of one tenant, one mutation and one set of arguments; any other use is refused.
- A failed call stores no key: a retry runs again.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from forge.errors import BadArguments, CallInProgress, KeyReused
from forge.postgres.connection import AsyncConnection
from forge.react.registry import Auth
from forge.react.result import Result, digest
from forge.react.runner import MutationAnswer

_KEY: Final = re.compile(r"[!-~]{1,200}")
_LOCK: Final = "SELECT pg_catalog.pg_try_advisory_xact_lock(%s)"
_KNOWN: Final = "SELECT digest, result, xid FROM forge.mutation_key WHERE caller = %s AND key = %s"
_KEEP: Final = "INSERT INTO forge.mutation_key (caller, key, digest, result, xid) VALUES (%s, %s, %s, %s, %s)"


class IdempotentCall:
    """One call of a mutation under a key."""

    def __init__(self, key: str, name: str, arguments: Mapping[str, Any], auth: Auth) -> None:
        if not _KEY.fullmatch(key):
            raise BadArguments(
                "an idempotency key has 1 to 200 characters of ASCII, without spaces", fix="use a UUID for each call"
            )
        self._key = key
        self.named = (auth.tenant, auth.user, key)
        """Identifies the same call."""
        self._caller = msgspec.json.encode([auth.tenant, auth.user]).decode()
        self._digest = hashlib.sha256(msgspec.json.encode([name, arguments], order="sorted")).digest()

    @property
    def lock(self) -> int:
        """The number of the advisory lock on which calls with this key wait for each other."""
        named = hashlib.sha256(f"{self._caller} {self._key}".encode()).digest()
        return int.from_bytes(named[:8], signed=True)

    async def _row(self, connection: AsyncConnection) -> tuple[Any, ...] | None:
        return await (await connection.execute(_KNOWN, (self._caller, self._key))).fetchone()

    async def known(self, connection: AsyncConnection) -> MutationAnswer | None:
        """Return the stored answer; raise CallInProgress while another call runs. Later calls wait for this one."""
        row = await self._row(connection)  # any role may hold the lock, but a finished call needs no wait
        if row is None:
            locked = await connection.execute(_LOCK, (self.lock,))
            if await locked.fetchone() != (True,):
                raise CallInProgress
            row = await self._row(connection)
        if row is None:
            return None
        if bytes(row[0]) != self._digest:
            raise KeyReused(
                "the idempotency key was used for another mutation or other arguments",
                fix="use a new key for each call",
            )
        result = bytes(row[1])
        return MutationAnswer(Result((result,), digest([result]), True, (), None), row[2], repeated=True)

    async def keep(self, connection: AsyncConnection, answer: MutationAnswer) -> None:
        """Store the answer, to commit together with the mutation."""
        result = answer.value.json()
        await connection.execute(_KEEP, (self._caller, self._key, self._digest, result, answer.xid))
