"""Pass claimed messages to a sink or a handler, and collect the result of each.

No I/O of its own and no database: messages come in, in their order, and a SendOutcome goes out. A message of a key is
passed on only after the ones before it were accepted, and none once `may` reports that the claim is over. A message
that the SendOutcome lists as neither sent nor failed nor refused was not tried.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from forge.deliver.message import Message
from forge.deliver.outbox.routes import Handler, Route
from forge.deliver.sink import Sink
from forge.errors import DeliveryRefused, NotDelivered

MOST_ERROR: Final = 1000


class Claimed(NamedTuple):
    """A message that this worker has claimed."""

    seq: int
    tries: int
    message: Message


class SendFailure(NamedTuple):
    """The reason for a retry; `counts` is false where the message is not at fault."""

    error: str
    after: float | None = None
    counts: bool = True


class SendOutcome(msgspec.Struct):
    """The result of a batch, by seq. `down` is set when the receiver as a whole seems unavailable."""

    sent: list[int] = msgspec.field(default_factory=list)
    failed: dict[int, SendFailure] = msgspec.field(default_factory=dict)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    down: float | None = None


def line_of(error: BaseException) -> str:
    """Return an error as one line that a database can store."""
    text = " ".join(str(error).replace("\0", "�").split())
    name = type(error).__name__
    found = f"{name}: {text}" if text else name
    return found.encode(errors="replace").decode()[:MOST_ERROR]


async def deliver(route: Route, claimed: Sequence[Claimed], may: Callable[[], bool]) -> SendOutcome:
    """Pass messages to the receiver of the route; each call begins only if it `may`."""
    if not may():
        return SendOutcome()
    if route.handler is not None:
        return await _handle(route.handler, route, claimed, may)
    assert route.sink is not None
    return await _send(route.sink, route, claimed)


async def _send(sink: Sink, route: Route, claimed: Sequence[Claimed]) -> SendOutcome:
    outcome = SendOutcome()
    try:
        async with asyncio.timeout(route.timeout):
            await sink.send([each.message for each in claimed])
    except NotDelivered as error:
        place = max(0, min(error.delivered, len(claimed) - 1))
        outcome.failed[claimed[place].seq] = SendFailure(line_of(error), error.after, counts=error.tried)
        if error.tried or error.after:  # else it is only slow
            outcome.down = error.after or 0.0
    except DeliveryRefused as error:
        place = max(0, min(error.place, len(claimed) - 1))
        outcome.refused[claimed[place].seq] = line_of(error)
    except TimeoutError:
        place = 0
        outcome.failed[claimed[0].seq] = SendFailure(f"the sink took longer than {route.timeout:g} s")
        outcome.down = 0.0
    except (Exception, asyncio.CancelledError) as error:
        place = 0
        outcome.failed[claimed[0].seq] = SendFailure(_own(error))
        outcome.down = 0.0
    else:
        place = len(claimed)
    outcome.sent = [each.seq for each in claimed[:place]]
    return outcome


async def _handle(handler: Handler, route: Route, claimed: Sequence[Claimed], may: Callable[[], bool]) -> SendOutcome:
    lines: dict[object, deque[Claimed]] = {}
    for each in claimed:
        lines.setdefault(each.seq if each.message.key is None else each.message.key, deque()).append(each)
    waiting = deque(lines.values())
    outcome = SendOutcome()

    async def work() -> None:
        while waiting:
            line = waiting.popleft()
            while line and may() and await _call(handler, route, line.popleft(), outcome):
                pass

    if len(waiting) == 1:
        await work()
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(route.concurrency, len(waiting))):
                group.create_task(work())
    return outcome


async def _call(handler: Handler, route: Route, claimed: Claimed, outcome: SendOutcome) -> bool:
    """Call the handler for one message; return whether it succeeded."""
    try:
        async with asyncio.timeout(route.timeout):
            returned = await handler(claimed.message)
    except DeliveryRefused as error:
        outcome.refused[claimed.seq] = line_of(error)
    except NotDelivered as error:
        outcome.failed[claimed.seq] = SendFailure(line_of(error), error.after, counts=error.tried)
    except TimeoutError as error:
        text = line_of(error) if str(error) else f"the handler took longer than {route.timeout:g} s"
        outcome.failed[claimed.seq] = SendFailure(text)
    except (Exception, asyncio.CancelledError) as error:
        outcome.failed[claimed.seq] = SendFailure(_own(error))
    else:
        if returned is None:
            outcome.sent.append(claimed.seq)
            return True
        text = f"the handler returned a {type(returned).__name__}: it returns nothing, and raises what went wrong"
        outcome.failed[claimed.seq] = SendFailure(text, counts=False)
    return False


def _own(error: BaseException) -> str:
    """Return the error of a call; raise errors that do not come from the call."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        return "cancelled by something of its own"
    return line_of(error)
