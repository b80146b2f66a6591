"""Messages for a sink, a caller that sends again what was not delivered, and what must hold of what arrived."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from forge.deliver.message import Message
from forge.deliver.sink import Sink
from forge.errors import NotDelivered

SOON = 40.0
AT = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)


def messages(count: int, *, keys: int = 7, topic: str = "shop.paid", size: int = 0, first: int = 0) -> list[Message]:
    """Messages with ids and payloads that tell their order, over some keys at random."""
    chance = random.Random(count)
    return [
        Message(
            id=f"7:{number}",
            topic=topic,
            payload=b"%d" % number + b" " * size,
            at=AT,
            key=f"key {chance.randrange(keys)}",
            headers={"forge-op": "insert"},
        )
        for number in range(first, first + count)
    ]


async def deliver(sink: Sink, wanted: Sequence[Message], batch: int = 50, failed: asyncio.Event | None = None) -> int:
    """Send all in batches, each until it is taken, as a consumer does; how often one was not, and when it first was."""
    failures = 0
    deadline = time.monotonic() + SOON
    for start in range(0, len(wanted), batch):
        rest = wanted[start : start + batch]
        while rest:
            try:
                await sink.send(rest)
                rest = []
            except NotDelivered as error:
                if time.monotonic() > deadline:
                    raise
                failures += 1
                if failed is not None:
                    failed.set()
                rest = rest[error.delivered :]
                await asyncio.sleep(0.02)
    return failures


def check(sent: Sequence[Message], arrived: Sequence[tuple[str, str, bytes]], *, late: bool = False) -> None:
    """Every message is there by (key, id, payload); the first copies of a key's are in order, copies are the same.

    Unless `late` is allowed, no key has a copy of an earlier message behind the end of the batch that sent it again:
    what a receiver keeps last is the last.
    """
    payloads = {message.id: message.payload for message in sent}
    assert all(payloads[id] == payload for _, id, payload in arrived), "a copy differs"
    assert {id for _, id, _ in arrived} == set(payloads), "something was lost"
    seen: dict[str, list[str]] = defaultdict(list)
    last: dict[str, str] = {}
    for key, id, _ in arrived:
        last[key] = id
        if id not in seen[key]:
            seen[key].append(id)
    given: dict[str, list[str]] = defaultdict(list)
    for message in sent:
        given[message.key or ""].append(message.id)
    assert seen == given, "the order of a key was not kept"
    if not late:
        assert last == {key: ids[-1] for key, ids in given.items()}, "an old copy came last"


async def until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail after a while."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)
