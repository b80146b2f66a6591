"""Kafka for tests: librdkafka's mock cluster, in this process, driven by its C interface; and a real broker.

    with temporary_kafka() as cluster:
        Producer({"bootstrap.servers": cluster.bootstrap})

The mock speaks Kafka's protocol on loopback and keeps messages in memory. Brokers may be taken down and brought up
again with what they have, be slow, and answer with errors. It is no Kafka: it has no limits of size, no disk, no
replication.

`temporary_broker` is one: a JVM with the jars of `kafka_jars.txt`, fetched once from Maven's central repository, that
is broker and controller (KRaft), in a temporary folder. It may be stopped, killed and started again with its topics.
"""

import contextlib
import ctypes
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from forge.embedded.system import free_port
from forge.errors import SourceError
from forge.pipeline.jars import Jar, by_ivy, by_maven, resolve
from forge.pipeline.jars import cache as cached
from forge.pipeline.java import need_java
from forge.testing.server import ServerProcess

PRODUCE: Final = 0
"""The number of Kafka's request to store messages."""
_CLUSTER: Final = "Zm9yZ2UtdGVzdHMtY2x1c3Q"
_MEMORY: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


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


def kafka_jars() -> list[Path]:
    """The broker and all that it stands on, fetched once and kept under `$FORGE_CACHE`; raises SparkUnavailable where
    that cannot be done."""
    jars = []
    for line in files("tests.servers").joinpath("kafka_jars.txt").read_text("utf-8").splitlines():
        name, digest = line.split()
        group, artifact, version = name.split(":")
        jars.append(Jar(group, artifact, version, digest))
    return resolve(jars, cached() / "jars" / "kafka", (by_maven, by_ivy))


class KafkaBroker(ServerProcess):
    """A broker in a folder of its own."""

    name = "Kafka"
    patience = 120.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        controller = free_port()
        self._java = [str(need_java()), *_MEMORY, "-cp", ":".join(map(str, kafka_jars()))]
        self._settings = folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "data"),
            "num.partitions": "3",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.cleaner.dedupe.buffer.size": str(8 << 20),
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._run("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings))

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._settings)]

    def answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        with contextlib.suppress(KafkaException):
            client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            return bool(client.list_topics(timeout=1).brokers)
        return False

    def _run(self, *words: str) -> None:
        done = subprocess.run([*self._java, *words], capture_output=True, text=True, timeout=self.patience, check=False)
        if done.returncode:
            raise SourceError(f"Kafka's {words[0]} fails: {done.stderr.strip()[-500:]}", fix="see above")


@contextmanager
def temporary_broker() -> Iterator[KafkaBroker]:
    """A running broker of its own, gone with all its data after the block."""
    with (
        tempfile.TemporaryDirectory(prefix="forge-kafka-", ignore_cleanup_errors=True) as folder,
        KafkaBroker(Path(folder)) as broker,
    ):
        yield broker
