"""`forge.doctor`: the findings of `forge doctor` for this node's database and configuration, with the fixes."""

import asyncio
from typing import Any, Final

import msgspec

from forge.config import Config
from forge.doctor import Finding, examine
from forge.errors import ServerError
from forge.react.database import QueryContext
from forge.serve.console.console_context import Desk

EVERY: Final = 30.0
TIMEOUT: Final = 25.0


def register(desk: Desk) -> None:
    async def doctor(ctx: QueryContext) -> list[dict[str, Any]]:
        """Problems of this setup, and their fixes."""
        try:
            async with asyncio.timeout(TIMEOUT):
                found = await desk.thread(lambda: _examined(desk.node.reactor.url, desk.config), "console doctor")
        except TimeoutError:
            raise ServerError(f"the checks took longer than {TIMEOUT:g} s", fix="run forge doctor") from None
        seen: dict[str, int] = {}
        rows = []
        for each in found:
            place = seen[each.check] = seen.get(each.check, -1) + 1
            rows.append({"id": f"{each.check}/{place}", **msgspec.to_builtins(each)})
        return rows

    desk.query(doctor, "forge.doctor", key=("id",), every=EVERY)


def _examined(url: str, config: Config) -> list[Finding]:
    found = examine(
        url,
        retention_days=config.retention_days,
        log_size_limit=config.log_size_limit,
        hold_days=config.hold_days,
    )
    return list(found)
