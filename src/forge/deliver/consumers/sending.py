"""A sink as the handler of a consumer: changes become messages, in their order."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from forge.change import Change
from forge.deliver.message import Message, of_change
from forge.deliver.payload import Encode
from forge.deliver.sink import NotDelivered, Refused, Sink
from forge.errors import EncodeError

Send = Callable[[Any, Sequence[Change]], Awaitable[None]]


def sending(sink: Sink, *, topic: str | None, encode: Encode) -> Send:
    """A handler of batches. What a sink's error says of messages, it says of changes when the handler raises it."""

    async def send(ctx: object, changes: Sequence[Change]) -> None:
        messages, places, unfit = _messages(changes, topic, encode)
        try:
            if messages:
                await sink.send(messages)
        except NotDelivered as error:
            # what has no message and lies before the first that was not taken counts as taken
            end = len(changes) if unfit is None else unfit.place
            error.delivered = places[error.delivered] if error.delivered < len(places) else end
            raise
        except Refused as error:
            error.place = places[min(error.place, len(places) - 1)]
            raise
        if unfit is not None:
            raise unfit

    return send


def _messages(
    changes: Sequence[Change], topic: str | None, encode: Encode
) -> tuple[list[Message], list[int], Refused | None]:
    """The messages up to the first change that has no form, with the place of each one's change, and that change."""
    messages: list[Message] = []
    places: list[int] = []
    for place, change in enumerate(changes):
        try:
            message = of_change(change, topic, encode=encode)
        except EncodeError as error:
            return messages, places, Refused(str(error), fix=error.fix, place=place)
        if message is not None:
            messages.append(message)
            places.append(place)
    return messages, places, None
