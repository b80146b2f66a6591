"""The lake beside the demo's shop: a `forge pipeline run` of its own, which tells of each batch in a line of JSON.

It is optional: without Spark or Java the demo says so and goes on without it.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.changelog.connection import connect
from forge.cursor import Cursor
from forge.demo.summary import LakeState
from forge.errors import ForgeError

PATIENCE: Final = 300.0
"""How long the lake may take to catch up at the end."""


def unavailable() -> str | None:
    """Why there can be no lake here, or None when there can."""
    try:
        from forge.pipeline.java import need_java, need_pyspark

        need_pyspark()
        need_java()
    except ForgeError as error:
        return f"no lake: {error}; {error.fix}"
    return None


class LakeBeside:
    """Keeps a lake current in a process of its own while the demo runs."""

    def __init__(self, url: str, path: Path, tables: Sequence[str]) -> None:
        self.path = path
        self.problem: str | None = None
        self._url = url
        self._tables = list(tables)
        self._process: asyncio.subprocess.Process | None = None
        self._batches = self._changes = 0
        self._last: dict[str, Any] | None = None
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Start the run and take in what it tells, until it ends."""
        command = [sys.executable, "-m", "forge", "--json", "--database-url", self._url, "pipeline", "run"]
        options = ["--lake", str(self.path), "--interval", "2s", "--verify", "0s"]
        named = [word for table in self._tables for word in ("--table", table)]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *options,
            *named,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async for line in self._process.stdout:
            self._last = msgspec.json.decode(line)
            assert self._last is not None
            self._batches += 1
            self._changes += self._last["changes"]
            self._news.set()
        said = (await self._process.stderr.read()).decode(errors="replace").strip()
        if await self._process.wait() not in (0, 130):
            self.problem = said.splitlines()[0] if said else "the pipeline ended"
        self._news.set()

    async def caught_up(self) -> LakeState:
        """Wait until the lake has all that is committed and was compared with it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while self.problem is None and not await asyncio.to_thread(self._is_current):
                    self._news.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), 1.0)
        equal = self._last["equal"] if self._last is not None and self.problem is None else None
        return LakeState(self._batches, self._changes, equal, self.problem)

    def _is_current(self) -> bool:
        if self._last is None or self._last["equal"] is None:
            return False
        from forge.pipeline.lag import lag

        with connect(self._url) as connection:
            cursor = Cursor.parse(self._last["cursor"])
            return lag(connection, cursor, ",".join(self._tables)).changes == 0

    async def stop(self) -> None:
        """End the run after its batch."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(self._process.wait(), 20)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
