"""The lake of the demo's shop: a separate `forge pipeline run`, which reports each batch as a line of JSON.

It is optional: without Spark or Java the demo prints the reason and continues without it. The run is a separate process
group, of which nothing is left when `follow` has ended, for whatever reason.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.cursor import Cursor
from forge.demo.summary import LakeState
from forge.errors import ForgeError
from forge.postgres.connection import connect

PATIENCE: Final = 300.0
"""Seconds that the lake may take to catch up at the end."""
GRACE: Final = 20.0
"""Seconds that the run may take to end after its batch."""
HURRIED: Final = 2.0
"""The same, when the batch is not waited for."""


def unavailable() -> str | None:
    """Return why there can be no lake here, or None when there can."""
    try:
        from forge.pipeline.java import need_java, need_pyspark

        need_pyspark()
        need_java()
    except ForgeError as error:
        return f"no lake: {error}; {error.fix}"
    return None


def command(url: str, path: Path, tables: Sequence[str]) -> list[str]:
    """Return the command that keeps the lake current."""
    from forge.pipeline.session import BRIEFLY, QUIETLY

    forge = [sys.executable, "-m", "forge", "--json", "--database-url", url, "pipeline", "run"]
    options = ["--lake", str(path), "--interval", "2s", "--merge", "0s", "--verify", "0s"]
    options += ["--conf", f"spark.driver.extraJavaOptions={QUIETLY} {BRIEFLY}"]
    return [*forge, *options, *(word for table in tables for word in ("--table", table))]


def reason(said: str) -> str:
    """Return why a run has ended, from its output: its error, else its last line.

    >>> reason("WARN slow\\nerror: there is no Java\\nfix: install one"), reason("Traceback:\\n  x\\nOSError: full")
    ('there is no Java', 'OSError: full')
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return [*(lines or ["the pipeline ended"])[-1:], *errors[:1]][-1]


class LakeBeside:
    """Keep a lake current in a separate process while the demo runs."""

    def __init__(
        self, url: str, path: Path, tables: Sequence[str], failed: Callable[[str], object] = lambda problem: None
    ) -> None:
        self.path = path
        self._failed = failed
        self.problem: str | None = None
        self.given_up = False
        self._url = url
        self._tables = list(tables)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._patience: asyncio.Timeout | None = None
        self._batches = self._changes = 0
        self._last: dict[str, Any] | None = None
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Start the run and read its reports, until it ends."""
        self._process = await asyncio.create_subprocess_exec(
            *command(self._url, self.path, self._tables),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            await self._listen(self._process)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._gone()
        finally:
            self._signalled(signal.SIGKILL)
            await self._process.wait()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        said = asyncio.create_task(process.stderr.read())  # an unread pipe would fill up and block the run
        async for line in process.stdout:
            self._last = msgspec.json.decode(line)
            assert self._last is not None
            self._batches += 1
            self._changes += self._last["changes"]
            self._news.set()
        words = (await said).decode(errors="replace")
        if await process.wait() not in (0, 130) and not self._stopping:
            self.problem = reason(words)
            self._failed(self.problem)
        self._news.set()

    async def caught_up(self, tell: Callable[[int | None], None] = lambda missing: None) -> LakeState:
        """Wait until the lake has everything committed and was compared with the database, or until `give_up`.

        `tell` is called about once per second with the number of missing changes, None before the first batch.
        """
        missing: int | None = None
        async with self._patient(PATIENCE):
            while self.problem is None and not self.given_up:
                self._news.clear()
                missing = await asyncio.to_thread(self._missing)
                if missing == 0 and self._equal is not None:
                    return LakeState(self._batches, self._changes, self._equal, missing=0)
                tell(missing)
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._news.wait()
        # equality after one batch says nothing about later ones; a difference is final
        equal = False if self._equal is False else None
        problem = self.problem or ("interrupted" if self.given_up else None)
        return LakeState(self._batches, self._changes, equal, problem, missing)

    def give_up(self) -> None:
        """Stop waiting for the lake, whether it catches up or ends its run, and do not begin to wait."""
        self.given_up = True
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def stop(self) -> None:
        """End the run after its batch, if that is soon."""
        self._stopping = True  # from here on the end of the run is not a failure
        if self._process is None:
            return
        async with self._patient(HURRIED if self.given_up else GRACE):
            if self._process.returncode is None:
                self._process.send_signal(signal.SIGINT)
            await self._gone()
        self._signalled(signal.SIGKILL)
        await self._process.wait()

    async def _gone(self) -> None:
        """Wait until the run has ended, and its Java, which cleans up and ends after it."""
        assert self._process is not None
        await self._process.wait()
        while self._signalled(0):  # noqa: ASYNC110  nobody tells of a grandchild's end
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _patient(self, seconds: float) -> AsyncIterator[None]:
        """End the block after a timeout, or immediately with `give_up`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds) as self._patience:
                try:
                    yield
                finally:
                    self._patience = None

    @property
    def _equal(self) -> bool | None:
        """Whether lake and database were equal after the last batch, if known."""
        return None if self._last is None else self._last["equal"]

    def _missing(self) -> int | None:
        """The number of committed changes that are not in the lake; None before the first batch, when it is unknown."""
        if self._last is None:
            return None
        from forge.pipeline.lag import lag

        cursor = Cursor.parse(self._last["cursor"])
        with connect(self._url) as connection:
            return lag(connection, cursor, ",".join(self._tables)).changes

    def _signalled(self, number: int) -> bool:
        """Send a signal to all processes of the run; return False when none is left."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS raises the latter for a process that has ended
            return False
        return True
