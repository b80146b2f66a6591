"""Watchdog for handlers that block the event loop: a thread checks the loop and logs the place of the block.

While the loop is blocked, nothing else in this process runs: no other consumer, no request. After a few seconds the
lease expires, and other nodes take the consumers.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

BEAT: Final = 0.1
_OURS: Final = str(Path(__file__).parent)
_log = logging.getLogger("forge.consumers")


class Watchdog:
    """Watch while the block lasts. `busy` names the consumers whose handlers run."""

    def __init__(self, busy: Callable[[], list[str]], *, after: float = 1.0) -> None:
        self._busy = busy
        self._after = after
        self._beat = time.monotonic()
        self._ended = threading.Event()
        self.blocked = 0
        """How often the loop was found standing still."""

    async def __aenter__(self) -> "Watchdog":
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._turned()
        self._thread = threading.Thread(target=self._watch, name="forge-consumers-watchdog", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        self._timer.cancel()
        await asyncio.to_thread(self._thread.join)

    def _turned(self) -> None:
        self._beat = time.monotonic()
        self._timer = self._loop.call_later(BEAT, self._turned)

    def _watch(self) -> None:
        told = 0.0
        while not self._ended.wait(BEAT):
            beat, stands = self._beat, time.monotonic() - self._beat
            if stands >= self._after and beat != told:
                told = beat
                self.blocked += 1
                _log.error(
                    "the event loop stands still for %.1f s, by %s, at %s: what blocks belongs in asyncio.to_thread",
                    stands, " or ".join(self._busy()) or "something else than a consumer", self._where(),
                )  # fmt: skip

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        if frame is None:
            return "an unknown place"
        stack = traceback.extract_stack(frame)
        places = [place for place in stack if "asyncio" not in place.filename and _OURS not in place.filename]
        place = places[-1] if places else stack[-1]
        return f"{place.filename}:{place.lineno} in {place.name}"
