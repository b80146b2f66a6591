"""`forge.pipeline`: the lake beside this server, read from its files."""

from typing import Any, Final

from forge.react.database import Context
from forge.serve.console.desk import Desk

EVERY: Final = 5.0


def register(desk: Desk) -> None:
    async def pipeline(ctx: Context) -> dict[str, Any] | None:
        """How far the lake is, what its last batches brought, and how large its tables are."""
        return None

    desk.query(pipeline, "forge.pipeline", every=EVERY)
