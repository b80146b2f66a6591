"""Sink for Kafka, by librdkafka.

Each message is produced under its key with its headers, and is delivered when every in-sync replica has it
(`acks=all`).

Invariants:

- A key is always in the same partition of its topic: Kafka's own murmur2 of the key, as in Java's producer. Messages
  without a key are in one partition too, so they stay in order.
- The producer is idempotent: its own retries make no copies, and no message of a partition overtakes another. When a
  message is not delivered the producer stops and is dropped with its queue, and the next `send` creates another.
- Messages that a dropped producer had already sent may still be stored, after later ones: as a copy, with the same
  `forge-id`.
"""

import asyncio
import importlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forge.deliver.entry import filled, headers, template, unfit_header
from forge.deliver.message import Message
from forge.errors import ConfigError, DeliveryRefused, NotDelivered

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OURS: Final = {
    "acks": "all",
    "request.required.acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,
}
_OTHERS: Final = {"transactional.id", "delivery.timeout.ms", "dr_cb", "on_delivery", "error_cb", "logger"}


class Kafka:
    """A sink that produces to Kafka.

    `settings` are librdkafka's, or only the text of `bootstrap.servers`; `topic` is the template of Kafka's topic for a
    message's topic. `timeout` is the maximum duration of one `send` in seconds.
    """

    def __init__(self, settings: str | Mapping[str, Any], topic: str = "{topic}", *, timeout: float = 10.0) -> None:
        self._topic = template(topic, "topic", "topic")
        if timeout <= 0:
            raise ConfigError("timeout is in seconds", fix="give it as more than 0")
        given = {"bootstrap.servers": settings} if isinstance(settings, str) else dict(settings)
        if not (given.get("bootstrap.servers") or given.get("metadata.broker.list")):
            raise ConfigError("it is not told where Kafka is", fix="give bootstrap.servers as host:9092")
        for name in given:
            if name in _OTHERS or (name in _OURS and str(given[name]).lower() != str(_OURS[name]).lower()):
                raise ConfigError(f"the setting {name} is the sink's own", fix=f"leave out {name}")
        try:
            self._kafka: Any = importlib.import_module("confluent_kafka")
        except ModuleNotFoundError:
            raise ConfigError("messages to Kafka need a library", fix='pip install "forge-changes[kafka]"') from None
        self._where = str(given.get("bootstrap.servers") or given.get("metadata.broker.list"))
        self._settings = {
            "client.id": "forge",
            "partitioner": "murmur2",
            "linger.ms": 0,
            "log_level": 2,
            **given,
            **{name: value for name, value in _OURS.items() if name != "request.required.acks"},
            "logger": logging.getLogger(__name__),
        }
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._producer: Any = None
        self._batch = _Batch(0)

    def __repr__(self) -> str:
        return f"Kafka({self._where!r}, {self._topic!r})"

    async def send(self, messages: Sequence[Message], /) -> None:
        async with self._turn:
            delivered, at_once = 0, len(messages)
            try:
                async with asyncio.timeout(self._timeout):
                    while delivered < len(messages):
                        some = messages[delivered : delivered + at_once]
                        if await self._produce(some, delivered):
                            delivered += self._batch.given
                        else:
                            delivered += self._batch.delivered
                            at_once = max(1, self._batch.given // 2)
            except NotDelivered:
                await self._give_up()
                raise
            except DeliveryRefused as error:
                if error.__cause__ is not None:  # the broker refused it: the producer has stopped
                    await self._give_up()
                raise
            except TimeoutError:
                taken = delivered + await self._give_up()
                raise NotDelivered(
                    f"{self._where} did not acknowledge within {self._timeout:g} s",
                    fix="see whether Kafka is up and has enough in-sync replicas",
                    delivered=taken,
                ) from None
            except BaseException:
                await self._give_up()
                raise

    async def close(self) -> None:
        async with self._turn:
            await self._give_up()

    async def _produce(self, messages: Sequence[Message], before: int) -> bool:
        """Produce some messages and wait for each result; return False where fewer must be tried at a time."""
        if self._producer is None:
            self._producer = await asyncio.to_thread(self._made)
        self._batch = batch = _Batch(len(messages))
        unfit = self._enqueue(messages, batch)
        await self._flushed()
        place = batch.delivered
        if place < batch.given:
            # Kafka refuses all messages of one request, and measures their total size: one at a time shows which is too
            # large
            if batch.given > 1 and batch.codes & self._never():
                await self._give_up()
                return False
            raise self._trouble(batch.error(place), messages[place], before + place)
        if unfit is not None:
            raise DeliveryRefused(f"message {messages[place].id}: {unfit}", place=before + place)
        return True

    def _enqueue(self, messages: Sequence[Message], batch: "_Batch") -> str | None:
        """Enqueue messages up to the first that can never be sent; return the reason for that one, or None."""
        for place, message in enumerate(messages):
            topic = filled(self._topic, topic=message.topic)
            if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
                return f"{topic!r} is no topic's name"
            unfit = unfit_header(message)
            if unfit is not None:
                return unfit
            try:
                self._producer.produce(
                    topic,
                    message.payload,
                    None if message.key is None else message.key.encode(),
                    headers=[(name, value.encode()) for name, value in headers(message).items()],
                    timestamp=int(message.at.timestamp() * 1000),
                    on_delivery=batch.answer(place),
                )
            except BufferError:
                break  # librdkafka's queue is full: the others follow these
            except self._kafka.KafkaException as error:
                if error.args[0].code() == self._kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                    return f"{len(message.payload)} bytes are more than message.max.bytes"
                raise NotDelivered(f"{self._where}: {error.args[0].str()}", fix="see to Kafka") from error
            batch.given += 1
        return None

    async def _flushed(self) -> None:
        """Wait for every result. On cancellation the waiting messages are dropped, and the thread has ended."""
        waiting = asyncio.ensure_future(asyncio.to_thread(self._wait, self._producer))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            await waiting
            raise

    def _wait(self, producer: Any) -> None:
        while len(producer):
            try:
                producer.flush(1)
            except self._kafka.KafkaException:
                continue  # the producer has stopped; each undelivered message gets that error

    async def _give_up(self) -> int:
        """Drop the producer with its queue; return the number of delivered messages of the last batch."""
        if self._producer is None:
            return 0
        await asyncio.to_thread(self._end)
        return self._batch.delivered

    def _end(self) -> None:
        """Run in a separate thread: dropping the last reference to a producer waits for its threads."""
        producer, self._producer = self._producer, None
        producer.purge(in_queue=True, in_flight=True, blocking=True)
        self._wait(producer)

    def _made(self) -> Any:
        try:
            return self._kafka.Producer(dict(self._settings))
        except self._kafka.KafkaException as error:
            said = error.args[0].str()
            raise ConfigError(f"librdkafka does not take the settings: {said}", fix="see the setting named") from None

    def _trouble(self, error: Any, message: Message, place: int) -> NotDelivered | DeliveryRefused:
        said = f"{self._where}: {error.str()} (message {message.id})"
        found: NotDelivered | DeliveryRefused
        if error.code() in self._never():
            found = DeliveryRefused(said, place=place)
        else:
            found = NotDelivered(said, fix="see to Kafka and the topic", delivered=place)
        found.__cause__ = self._kafka.KafkaException(error)
        return found

    def _never(self) -> set[int]:
        known = self._kafka.KafkaError
        return {
            known.MSG_SIZE_TOO_LARGE,
            known.TOPIC_EXCEPTION,
            known.INVALID_RECORD,
        }


class _Batch:
    """The results of messages produced together. They arrive in librdkafka's order and thread."""

    def __init__(self, size: int) -> None:
        self.given = 0
        self._taken = [False] * size
        self._errors: dict[int, Any] = {}

    def answer(self, place: int) -> Any:
        def answered(error: Any, _: Any) -> None:
            if error is None:
                self._taken[place] = True
            else:
                self._errors[place] = error

        return answered

    @property
    def delivered(self) -> int:
        """The number of delivered messages, from the first on."""
        return next((place for place in range(self.given) if not self._taken[place]), self.given)

    @property
    def codes(self) -> set[int]:
        """The error codes of the batch."""
        return {error.code() for error in self._errors.values()}

    def error(self, place: int) -> Any:
        """Return why the message at a position was not delivered."""
        return self._errors[place]
