"""Checks of what goes wrong: connections that are cut or fall silent, consumers that are killed or slow."""

import asyncio
import gc
import json
import signal
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

from forge.testing.conformance.adapter import Adapter, Unsupported
from forge.testing.conformance.operations import ITEMS, Fill, Insert
from forge.testing.conformance.reading import Listener, State, expect, listening
from forge.testing.conformance.traffic import MARKS, Traffic, row

KILLS = 2


async def check_cut_connections(adapter: Adapter) -> None:
    """Connections that are cut again and again: the stream goes on by itself, with nothing lost or doubled."""
    proxy = adapter.proxy
    if proxy is None:
        raise Unsupported("the source speaks over no connection that could be cut")
    async with listening(adapter, proxied=True) as listener, adapter.writer() as writer:
        for number in range(1, 5):
            await writer.run(Insert(ITEMS, row(adapter, number)))
            if number % 2:
                await listener.until_row(number)
            await asyncio.to_thread(proxy.cut)
        await asyncio.to_thread(proxy.refuse)
        await asyncio.to_thread(proxy.cut)
        await writer.run(Insert(ITEMS, row(adapter, 5)))
        await asyncio.to_thread(proxy.accept)
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS)
        _once(adapter, listener, [1, 2, 3, 4, 5, MARKS])


async def check_half_open_connections(adapter: Adapter) -> None:
    """A connection that falls silent and is never closed: it is given up, and the stream goes on over another."""
    proxy = adapter.proxy
    if proxy is None:
        raise Unsupported("the source speaks over no connection that could fall silent")
    async with listening(adapter, proxied=True) as listener, adapter.writer() as writer:
        await writer.run(Insert(ITEMS, row(adapter, 1)))
        await listener.until_row(1)
        await asyncio.to_thread(proxy.strand)
        await writer.run(Insert(ITEMS, row(adapter, MARKS)))
        await listener.until_row(MARKS, patience=adapter.silence)
        _once(adapter, listener, [1, MARKS])


def _once(adapter: Adapter, listener: Listener, keys: list[int]) -> None:
    found = [(change.key or {}).get(adapter.key) for change in listener.rows]
    expect(found == keys, f"written was {keys}, but seen was {found}")


async def check_killed_consumer(adapter: Adapter) -> None:
    """kill -9 of a consumer that saves its cursor after its side effect: nothing is lost, and only what the last batch
    that was not saved had comes again, under the same ids."""
    if adapter.consumer is None:
        raise Unsupported("the source cannot be opened in another process")
    if not adapter.source().capabilities.durable:
        raise Unsupported("the source does not say that it is durable")
    traffic = Traffic(adapter, seed=8)
    with tempfile.TemporaryDirectory(prefix="forge-consumer-") as directory:
        consumer = _Consumer(adapter, Path(directory))
        async with adapter.source() as source:
            consumer.start_at(await source.now())
        for _ in range(KILLS):
            await traffic.run(4)
            mark = await traffic.mark()
            async with consumer.running():
                seen = consumer.batches
                await consumer.until(lambda: consumer.batches > seen, "a batch")  # noqa: B023
        async with consumer.running():
            mark = await traffic.mark()
            await consumer.until(lambda: consumer.has(mark), "the last change")
        consumer.judge(traffic)


class _Consumer:
    """The process of `forge.testing.conformance.consumer`, and what it has done."""

    def __init__(self, adapter: Adapter, directory: Path) -> None:
        self._adapter = adapter
        self._directory = directory
        self._done = directory / "done"
        self._done.touch()
        self._process: asyncio.subprocess.Process | None = None

    def start_at(self, cursor: str) -> None:
        (self._directory / "cursor").write_text(cursor)

    def running(self) -> "_Consumer":
        return self

    async def __aenter__(self) -> None:
        assert self._adapter.consumer is not None
        with (self._directory / "errors").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forge.testing.conformance.consumer",
                *self._adapter.consumer,
                str(self._directory),
                stderr=errors,
            )

    async def __aexit__(self, *exception: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = self._done.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    @property
    def batches(self) -> int:
        return sum("changes" in line for line in self.lines)

    def has(self, key: int) -> bool:
        return any(
            change["key"] == {self._adapter.key: key} for line in self.lines for change in line.get("changes", ())
        )

    async def until(self, condition: Any, what: str) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + self._adapter.patience
        while not condition():
            errors = (self._directory / "errors").read_text()[-800:]
            expect(self._process.returncode is None, f"the consumer ended by itself: {errors}")
            expect(asyncio.get_running_loop().time() < deadline, f"{what} did not come to the consumer; {errors}")
            await asyncio.sleep(0.02)

    def judge(self, traffic: Traffic) -> None:
        from forge import wire

        seen: dict[str, str] = {}
        state = State(self._adapter)
        unsaved: set[str] = set()
        for line in self.lines:
            if "saved" in line:
                unsaved = set()
                continue
            for raw in line["raw"]:
                change = wire.decode(raw)
                if change.id in seen:
                    expect(change.id in unsaved, f"{change.id} was saved, and comes again")
                    expect(seen[change.id] == raw, f"{change.id} is another change when it comes again")
                else:
                    state.apply(change)
                    seen[change.id] = raw
            unsaved |= {change["id"] for change in line["changes"]}
        state.equals(traffic.tables)


async def check_slow_consumer(adapter: Adapter) -> None:
    """A backlog of one giant transaction is read in bounded memory by a consumer that takes its time."""
    if not adapter.source().capabilities.durable:
        raise Unsupported("the source does not say that it is durable: there is no backlog")
    rows, size = adapter.backlog
    async with adapter.source() as source:
        start = await source.now()
    async with adapter.writer() as writer:
        await writer.run(Fill(ITEMS, 1, rows, "x" * size))
    gc.collect()
    tracemalloc.start()
    try:
        count = 0
        async with asyncio.timeout(6 * adapter.patience), adapter.source() as source:
            baseline = tracemalloc.get_traced_memory()[0]
            batches = source.stream(start)
            try:
                async for batch in batches:
                    count += len(batch.changes)
                    if count < rows // 10:
                        await asyncio.sleep(0.02)  # slower than the source, so that what it reads ahead piles up
                    if count >= rows:
                        break
            finally:
                await batches.aclose()
        peak = tracemalloc.get_traced_memory()[1] - baseline
    except TimeoutError:
        expect(False, f"a backlog of {rows} rows was not read in time: {count} came")
    finally:
        tracemalloc.stop()
    expect(count == rows, f"of {rows} rows {count} came")
    limit = adapter.memory
    expect(
        peak <= limit, f"{rows * size >> 20} MB of changes took {peak >> 20} MB of memory, more than {limit >> 20} MB"
    )


async def check_clean_end(adapter: Adapter) -> None:
    """Who stops reading leaves nothing behind: no task, no connection."""
    before = asyncio.all_tasks()
    stranded = adapter.proxy.clients if adapter.proxy is not None else 0
    for id in range(3):
        await _reads_a_little(adapter, id)
    deadline = asyncio.get_running_loop().time() + adapter.patience
    while True:
        left = [task.get_name() for task in asyncio.all_tasks() - before]
        held = adapter.proxy.clients - stranded if adapter.proxy is not None else 0
        if not left and held <= 0:
            return
        gc.collect()  # a connection that was given up while it was made is closed when it is forgotten
        expect(asyncio.get_running_loop().time() < deadline, f"left behind: tasks {left}, {held} connections")
        await asyncio.sleep(0.01)


async def _reads_a_little(adapter: Adapter, id: int) -> None:
    async with listening(adapter, proxied=adapter.proxy is not None) as listener, adapter.writer() as writer:
        if id:
            await writer.run(Insert(ITEMS, row(adapter, id)))
            await listener.until_row(id)
