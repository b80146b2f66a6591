"""Queues by their URLs."""

from typing import Any

import pytest

from forge.deliver.queues import Kafka, Nats, RedisStreams, queue_sink
from forge.errors import ConfigError
from tests.deliver.traffic import messages


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("redis://cache:6379/2?maxlen=5", RedisStreams, "RedisStreams('redis://cache:6379/2', 'forge.{topic}')"),
        ("rediss://ada:secret@cache/0?stream=x", RedisStreams, "RedisStreams('rediss://cache/0', 'x')"),
        ("kafka://a:9092,b:9092", Kafka, "Kafka('a:9092,b:9092', '{topic}')"),
        ("kafka://ada:secret@a:9092/shop.{topic}?timeout=3", Kafka, "Kafka('a:9092', 'shop.{topic}')"),
        ("nats://a:4222,b:4222", Nats, "Nats('nats://a:4222,b:4222', 'forge.{topic}')"),
    ],
)
def test_a_url_names_a_sink(url: str, kind: type[Any], shown: str) -> None:
    sink = queue_sink(url)
    assert isinstance(sink, kind)
    assert repr(sink) == shown


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://ada:secret@host", "names no queue"),
        ("", "names no queue"),
        ("redis://host?maxlen=many", "the option maxlen is 'many'"),
        ("redis://host?maxlen=0", "maxlen is 0"),
        ("nats://host?maxlenn=5", "NATS has no option maxlenn"),
        ("kafka:///topic", "where Kafka is"),
        ("kafka://host?acks=1", "the setting acks is the sink's own"),
    ],
)
def test_a_bad_url_is_told_without_its_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        queue_sink(url)
    assert "secret" not in str(caught.value)


async def test_a_setting_that_librdkafka_does_not_know_is_told() -> None:
    sink = queue_sink("kafka://host?no.such=1")
    with pytest.raises(ConfigError, match=r"no\.such"):
        await sink.send(messages(1))
