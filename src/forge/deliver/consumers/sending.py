"""Use a sink as the handler of a consumer: changes become messages, in their order."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from forge.change import Change
from forge.deliver.message import Message, of_change
from forge.deliver.payload import Encode
from forge.deliver.sink import Sink
from forge.errors import DeliveryRefused, EncodeError, NotDelivered

Send = Callable[[Any, Sequence[Change]], Awaitable[None]]


def sending(sink: Sink, *, topic: str | None, encode: Encode) -> Send:
    """Return a handler of batches. It translates positions of messages in a sink's errors to positions of changes."""

    async def send(ctx: object, changes: Sequence[Change]) -> None:
        messages, places, unfit = _messages(changes, topic, encode)
        try:
            if messages:
                await sink.send(messages)
        except NotDelivered as error:
            # changes without a message before the first undelivered message count as delivered
            end = len(changes) if unfit is None else unfit.place
            error.delivered = places[error.delivered] if error.delivered < len(places) else end
            raise
        except DeliveryRefused as error:
            error.place = places[min(error.place, len(places) - 1)]
            raise
        if unfit is not None:
            raise unfit

    return send


def _messages(
    changes: Sequence[Change], topic: str | None, encode: Encode
) -> tuple[list[Message], list[int], DeliveryRefused | None]:
    """Return the messages before the first change that cannot be encoded, the position of each one's change, and that
    error."""
    messages: list[Message] = []
    places: list[int] = []
    for place, change in enumerate(changes):
        try:
            message = of_change(change, topic, encode=encode)
        except EncodeError as error:
            return messages, places, DeliveryRefused(str(error), fix=error.fix, place=place)
        if message is not None:
            messages.append(message)
            places.append(place)
    return messages, places, None
