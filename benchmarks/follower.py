"""A process that takes in every change until it has as many as it is told: `python -m benchmarks.follower URL MODE`.

MODE is a `wakeup` of `forge.changelog.follow`, or `listen` for a bare LISTEN on the peer's channel. It prints
`ready`, reads one number from its standard input, and ends when it has seen that many changes, printing how many
different ones it saw. It fails when they do not come within a minute.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, cast

from benchmarks.bench import python
from forge.changelog.follow import Wakeup, follow
from forge.changelog.reader import Reader
from forge.postgres.connection import connect_async


class Follower:
    """The process, as its starter sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def expect(self, changes: int) -> None:
        """Wait until it has seen exactly this many changes, each once."""
        out, error = self._process.communicate(f"{changes}\n")
        if self._process.returncode or out.strip() != str(changes):
            raise RuntimeError(
                f"the follower saw {out.strip() or 'too little'} of {changes} changes: {error.strip()[-500:]}"
            )


@contextmanager
def following(url: str, mode: str) -> Iterator[Follower]:
    """A follower that is ready to take in what is written from now on."""
    process = subprocess.Popen(
        python("benchmarks.follower", url, mode),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the follower did not start: {process.communicate()[1].strip()[-500:]}")
        yield Follower(process)
    finally:
        process.kill()
        process.communicate()


async def _changes(url: str, wakeup: Wakeup) -> AsyncIterator[list[str]]:
    async with Reader.open(url) as reader:
        cursor = await reader.now()
    yield []
    batches = cast(Any, follow(url, after=cursor, wakeup=wakeup))
    async with aclosing(batches):
        async for batch in batches:
            yield [change.id for change in batch.changes]


async def _notifications(url: str) -> AsyncIterator[list[str]]:
    connection = await connect_async(url)
    await connection.execute("LISTEN peer_changes")
    yield []
    number = 0
    async for _ in connection.notifies():
        number += 1
        yield [str(number)]


async def _main(url: str, mode: str) -> None:
    loop = asyncio.get_running_loop()
    expected: asyncio.Future[Any] = loop.create_future()

    def told() -> None:
        loop.remove_reader(sys.stdin)
        expected.set_result(int(sys.stdin.readline()))

    loop.add_reader(sys.stdin, told)
    seen: set[str] = set()
    arriving: Any = _notifications(url) if mode == "listen" else _changes(url, cast(Wakeup, mode))
    async with aclosing(arriving):
        await anext(arriving)
        print("ready", flush=True)
        taking: asyncio.Future[Any] = asyncio.ensure_future(_take(arriving, seen, expected))
        await asyncio.wait({taking, expected}, return_when=asyncio.FIRST_COMPLETED)
        async with asyncio.timeout(60):
            await taking
    print(len(seen), flush=True)


async def _take(arriving: AsyncIterator[list[str]], seen: set[str], expected: "asyncio.Future[Any]") -> None:
    """Take in changes until there are as many as expected, once that is known."""
    turn: asyncio.Future[Any] = asyncio.ensure_future(anext(arriving))
    while not (expected.done() and len(seen) >= expected.result()):
        await asyncio.wait({turn, expected} if not expected.done() else {turn}, return_when=asyncio.FIRST_COMPLETED)
        if turn.done():
            ids = turn.result()
            before = len(seen)
            seen.update(ids)
            if len(seen) != before + len(ids):
                raise RuntimeError("a change came twice")
            turn = asyncio.ensure_future(anext(arriving))
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
