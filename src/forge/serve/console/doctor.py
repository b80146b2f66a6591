"""`forge.doctor`: what `forge doctor` finds of this node's database, with the fixes.

It is run as the command is, in a process of its own: its checks may take long, and a server has no part in them.
"""

import asyncio
import os
import subprocess
import sys
from typing import Any, Final

import msgspec

from forge.errors import ServerError
from forge.react.database import Context
from forge.serve.console.desk import Desk

EVERY: Final = 30.0
TIMEOUT: Final = 25.0


class _Finding(msgspec.Struct):
    check: str
    level: str
    what: str
    fix: str | None = None


class _Told(msgspec.Struct):
    findings: list[_Finding]


def register(desk: Desk) -> None:
    async def doctor(ctx: Context) -> list[dict[str, Any]]:
        """What is wrong with this set-up, and what to do about it."""
        found = await asyncio.to_thread(_examined, desk.node.reactor.url)
        seen: dict[str, int] = {}
        rows = []
        for each in found:
            place = seen[each.check] = seen.get(each.check, -1) + 1
            rows.append({"id": f"{each.check}/{place}", **msgspec.structs.asdict(each)})
        return rows

    desk.query(doctor, "forge.doctor", key=("id",), every=EVERY)


def _examined(url: str) -> list[_Finding]:
    command = [sys.executable, "-m", "forge", "doctor", "--json"]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "FORGE_DATABASE_URL": url},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=_Told).findings
    except subprocess.TimeoutExpired:
        raise ServerError(f"the checks took longer than {TIMEOUT:g} s", fix="run forge doctor") from None
    except msgspec.DecodeError:
        raise ServerError("forge doctor could not be run", fix="run it by hand to see why") from None
