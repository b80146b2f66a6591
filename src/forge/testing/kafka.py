"""Kafka for tests: librdkafka's mock cluster, in this process, driven by its C interface.

    with temporary_kafka() as cluster:
        Producer({"bootstrap.servers": cluster.bootstrap})

It speaks Kafka's protocol on loopback and keeps messages in memory. Brokers may be taken down and brought up again with
what they have, be slow, and answer with errors. It is no Kafka: it has no limits of size, no disk, no replication.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from forge.errors import SourceError

PRODUCE: Final = 0
"""The number of Kafka's request to store messages."""


def kafka_missing() -> str | None:
    """Why no cluster can be made here, or None."""
    if find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed: pip install confluent-kafka"
    return None if _file() else "confluent-kafka was installed without its own librdkafka"


def _file() -> Path | None:
    found = find_spec("confluent_kafka")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent.parent / "confluent_kafka.libs"
    return next(iter(sorted(folder.glob("librdkafka*.so*"))), None)


@cache
def _library() -> ctypes.CDLL:
    file = _file()
    if file is None:
        raise SourceError(str(kafka_missing()), fix="pip install confluent-kafka")
    import confluent_kafka  # noqa: F401, it loads the libraries that this one needs

    library = ctypes.CDLL(str(file))
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", handle, []),
        ("rd_kafka_conf_set", number, [handle, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", handle, [number, handle, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [handle]),
        ("rd_kafka_mock_cluster_new", handle, [handle, number]),
        ("rd_kafka_mock_cluster_destroy", None, [handle]),
        ("rd_kafka_mock_cluster_bootstraps", text, [handle]),
        ("rd_kafka_mock_topic_create", number, [handle, text, number, number]),
        ("rd_kafka_mock_topic_set_error", None, [handle, text, number]),
        ("rd_kafka_mock_broker_set_down", number, [handle, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", number, [handle, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_rtt", number, [handle, ctypes.c_int32, number]),
        ("rd_kafka_mock_push_request_errors_array", None, [handle, ctypes.c_int16, ctypes.c_size_t, handle]),
        ("rd_kafka_mock_clear_request_errors", None, [handle, ctypes.c_int16]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockKafka:
    """A cluster of brokers numbered from 1."""

    def __init__(self, brokers: int) -> None:
        self._library = _library()
        told = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(settings, b"log_level", b"3", told, 512)
        self._client = self._library.rd_kafka_new(0, settings, told, 512)
        if not self._client:
            raise SourceError(f"no Kafka: {told.value.decode()}", fix="see above")
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        self.brokers = range(1, brokers + 1)
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.bootstrap = found.decode()

    def topic(self, name: str, partitions: int) -> None:
        """Make a topic; others are made when they are asked for, with four partitions."""
        self._done(
            self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, len(self.brokers))
        )

    def topic_error(self, name: str, code: int) -> None:
        """Answer every question about the topic with an error of Kafka; 0 for none."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, name.encode(), code)

    def down(self) -> None:
        """Every broker drops its connections and takes no others."""
        for broker in self.brokers:
            self._done(self._library.rd_kafka_mock_broker_set_down(self._cluster, broker))

    def up(self) -> None:
        """Every broker is there again, with what it had."""
        for broker in self.brokers:
            self._done(self._library.rd_kafka_mock_broker_set_up(self._cluster, broker))

    def slow(self, seconds: float) -> None:
        """Every answer takes so long."""
        for broker in self.brokers:
            self._done(self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, int(seconds * 1000)))

    def errors(self, *codes: int) -> None:
        """Answer the next requests to store with these errors of Kafka, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, PRODUCE, len(codes), ctypes.cast(array, ctypes.c_void_p)
        )

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def _done(self, code: int) -> None:
        if code:
            raise SourceError(f"librdkafka's mock cluster answers {code}", fix="see rdkafka.h")


@contextmanager
def temporary_kafka(brokers: int = 1) -> Iterator[MockKafka]:
    """A cluster of its own, gone with all its data after the block."""
    cluster = MockKafka(brokers)
    try:
        yield cluster
    finally:
        cluster.close()
