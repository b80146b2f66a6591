"""A node that is made to be killed: works on the checker's consumers, and dies at the point that it is told.

It writes each side effect as one line of `receipts` (appended at once), or into the table `received` through `ctx.tx`.
One that came when the lease, proved before the call, was over, because the node hung or the machine is busy, is written
once more into `late`: no lease can prevent that.
"""

import asyncio
import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from forge.change import Change
from forge.deliver.consumers import ConsumerContext, ConsumerNode, Consumers, ConsumerSettings
from forge.deliver.consumers.lease import TTL, ShardLease
from forge.deliver.consumers.worker import ConsumerWorker
from tests.checkers.delivery.checks import Receipt

Point = Literal["before", "after", "saving", "saved"]
POINTS: Final[tuple[Point, ...]] = ("before", "after", "saving", "saved")
EXTERNAL: Final = ("single", "batched", "sharded", "poisoned")
EXACT: Final = ("exact", "exact-batched")
KINDS: Final = (*EXTERNAL, *EXACT)
SHARDS: Final = 3
QUICK: Final = ConsumerSettings(tick=0.03, report=0.2, lag=1.0, idle=0.5)
HEALED: Final = "healed"
RECEIPTS: Final = "receipts"
LATE: Final = "late"
SLOW: Final = 0.2
"""The part of the calls that take a while."""


class Task(msgspec.Struct, frozen=True):
    """What a node is told: where to work, and when to die: at the `countdown`-th time that it comes to the point."""

    url: str
    directory: str
    name: str
    point: Point | None = None
    countdown: int = 0
    kinds: tuple[str, ...] = KINDS
    broken: bool = False
    """Save the cursor before the side effect: wrong on purpose, so that the checker is seen to notice."""


class Proof:
    """When the lease was last proved that the call under way was begun by."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        check = ShardLease.check

        def noting(lease: ShardLease) -> None:
            check(lease)
            self._at = lease.proof.asked

        ShardLease.check = noting  # type: ignore[method-assign, assignment]

    @property
    def over(self) -> bool:
        return time.monotonic() - self._at >= TTL


class Death:
    """Comes at the chosen point."""

    def __init__(self, task: Task) -> None:
        self._point = task.point
        self._left = task.countdown

    def at(self, point: Point) -> None:
        if point == self._point:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def work(task: Task) -> None:
    """Work until killed."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_work(task))


async def _work(task: Task) -> None:
    death = Death(task)
    _mortal(death, broken=task.broken)
    named = made(Path(task.directory), death, Proof()).named
    node = ConsumerNode(task.url, [named[kind] for kind in task.kinds], QUICK, task.name)
    while True:
        try:
            await node.run()
        except Exception:  # the server is away just now, and a first connection is not tried twice
            await asyncio.sleep(0.1)


def made(directory: Path, death: Death, proof: Proof) -> Consumers:
    """The consumers of every kind."""
    out, late = (os.open(directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in (RECEIPTS, LATE))
    consumers = Consumers()

    async def effect(ctx: ConsumerContext, changes: list[Change]) -> None:
        death.at("before")
        if random.random() < SLOW:
            await asyncio.sleep(0.003)  # time for a node to hang between its proof and the effect
        lines = [msgspec.json.encode(_receipt(ctx, change)) + b"\n" for change in changes]
        os.write(out, b"".join(lines))
        if proof.over:
            os.write(late, b"".join(lines))
        await asyncio.sleep(0)
        death.at("after")

    async def single(ctx: ConsumerContext, change: Change) -> None:
        await effect(ctx, [change])

    async def poisoned(ctx: ConsumerContext, change: Change) -> None:
        if change.row_id.endswith("3") and not (directory / HEALED).exists():
            raise ValueError("poison")
        await effect(ctx, [change])

    async def exact(ctx: ConsumerContext, change: Change) -> None:
        await exact_batched(ctx, [change])

    async def exact_batched(ctx: ConsumerContext, changes: list[Change]) -> None:
        death.at("before")
        for change in changes:
            found = _receipt(ctx, change)
            await ctx.tx.execute(
                "INSERT INTO received (consumer, shard, fence, change, key) VALUES (%s, %s, %s, %s, %s)",
                (found.consumer, found.shard, found.fence, found.change, found.key),
            )
        death.at("after")

    options: dict[str, Any] = {"tables": ["item"], "start": "start", "backoff": (0.01, 0.1)}
    consumers.declare("single", single, ops=["insert", "update", "delete"], **options)
    consumers.declare("batched", effect, ops=["insert", "update", "delete"], batch=7, **options)
    consumers.declare("sharded", single, ops=["insert", "update", "delete"], shards=SHARDS, **options)
    consumers.declare("poisoned", poisoned, ops=["insert", "update", "delete"], tries=2, **options)
    consumers.declare("exact", exact, ops=["insert", "update", "delete"], **options)
    consumers.declare("exact-batched", exact_batched, ops=["insert", "update", "delete"], batch=5, **options)
    return consumers


def _receipt(ctx: ConsumerContext, change: Change) -> Receipt:
    return Receipt(ctx.consumer, ctx.shard, ctx.fence, change.id, change.row_id)


def _mortal(death: Death, *, broken: bool) -> None:
    """Let death come while a cursor is being saved, and right after."""
    save, commit, handle = ConsumerWorker._save, ConsumerWorker._commit, ConsumerWorker._handle

    async def dying_save(self: ConsumerWorker, cursor: Any) -> None:
        if str(cursor) != self.saved:
            asyncio.get_running_loop().call_soon(death.at, "saving")
        await save(self, cursor)
        death.at("saved")

    async def dying_commit(self: ConsumerWorker, cursor: Any) -> None:
        asyncio.get_running_loop().call_soon(death.at, "saving")
        await commit(self, cursor)
        death.at("saved")

    async def hasty(self: ConsumerWorker, batch: Any) -> None:
        start = self.saved
        await save(self, batch.cursor)
        self.saved = start
        await handle(self, batch)

    ConsumerWorker._save = dying_save  # type: ignore[method-assign]
    ConsumerWorker._commit = dying_commit  # type: ignore[method-assign]
    if broken:
        ConsumerWorker._handle = hasty  # type: ignore[method-assign]
