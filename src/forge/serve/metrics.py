"""Prometheus metrics: the reactor's counters at scrape time, and the duration of each stage of a push.

Each `Instruments` has its own registry, so that one process can have any number of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from forge.deliver.consumers import ConsumerSample
from forge.deliver.outbox import OutboxSample as OutboxSample
from forge.react.reactor import Reactor
from forge.serve.turns import Turns

Stage = Literal["commit_to_batch", "debounce", "run", "push", "commit_to_push"]

BUCKETS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
"""Seconds; narrow buckets around the latency of a debounced push, 50 to 300 ms."""

COUNTERS: Final = {
    "changes": "Changes read from the log.",
    "pruned": "Groups that a change could not concern.",
    "touched": "Groups that a change made run again.",
    "runs": "Runs of queries.",
    "wasted": "Runs whose result was the same as before.",
    "pushed": "Results that differed and were pushed.",
    "failed": "Runs that failed.",
    "missed": "Results found old though no change had touched their query; must stay 0.",
    "checked": "Results compared with a fresh run.",
    "resyncs": "Times that every group ran again.",
}


CACHE_COUNTERS: Final = {
    "hits": "Questions answered from the cache.",
    "misses": "Questions that had their query run.",
    "joined": "Questions answered by a run that was under way.",
    "waited": "Questions answered by another node's run that was under way.",
    "stored": "Results that were kept.",
    "touched": "Kept results that a change ended.",
    "late": "Results that were touched before they could be kept.",
    "bypassed": "Questions answered without the cache: the log or the store could not be reached.",
}


class Instruments:
    """The metrics of a reactor and its clients.

    `sessions` counts open sessions, `waiting` pushes in the send queues, `requests` one-shot queries and mutations,
    `cache` the names in `CACHE_COUNTERS`, and `dropped` messages between nodes. A metric without a source is absent.
    """

    def __init__(
        self,
        reactor: Reactor,
        *,
        sessions: Callable[[], int] | None = None,
        waiting: Callable[[], int] | None = None,
        requests: Turns | None = None,
        cache: Callable[[], Mapping[str, int]] | None = None,
        dropped: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self.sessions = sessions
        self.waiting = waiting
        self.requests = requests
        self.consumers: Callable[[], Iterable[ConsumerSample]] = lambda: ()
        """Status of the consumers that this node runs."""
        self.outbox: Callable[[], Iterable[OutboxSample]] = lambda: ()
        """Status of the outbox routes."""
        self.cache = cache
        self.dropped = dropped
        self._registry = CollectorRegistry()
        self._registry.register(_Reading(reactor, self))
        self._seconds = Histogram(
            "forge_push_seconds",
            "How long each stage between a commit and its push took.",
            ["stage"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        for stage in get_args(Stage):
            self._seconds.labels(stage)

    def observe(self, stage: str, seconds: float) -> None:
        """Record the duration of a stage; a negative duration, from clock differences between machines, counts as 0."""
        self._seconds.labels(stage).observe(max(0.0, seconds))

    def exposition(self) -> tuple[bytes, str]:
        """Return the response body for Prometheus and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Reading(Collector):
    def __init__(self, reactor: Reactor, instruments: Instruments) -> None:
        self._reactor = reactor
        self._instruments = instruments

    def collect(self) -> Iterator[Metric]:
        counts = self._reactor.metrics
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"forge_{name}", text, getattr(counts, name))
        groups = self._reactor.groups
        subscribers = sum(len(group.subscribers) for group in groups.values())
        yield GaugeMetricFamily(
            "forge_groups", "Queries with their arguments and scope that are kept fresh.", len(groups)
        )
        yield GaugeMetricFamily("forge_subscribers", "Subscriptions to them.", subscribers)
        if self._instruments.sessions is not None:
            yield GaugeMetricFamily("forge_sessions", "Open sessions.", self._instruments.sessions())
        if self._instruments.waiting is not None:
            yield GaugeMetricFamily("forge_pushes_waiting", "Pushes that wait to be sent.", self._instruments.waiting())
        if (requests := self._instruments.requests) is not None:
            yield GaugeMetricFamily("forge_requests_running", "Queries and mutations that run.", requests.running)
            yield GaugeMetricFamily(
                "forge_requests_waiting", "Those that wait for others of their user.", requests.waiting
            )
            yield CounterMetricFamily(
                "forge_requests_refused", "Those refused since their user had too many.", requests.refused
            )
        if self._instruments.cache is not None:
            for name, count in self._instruments.cache().items():
                yield CounterMetricFamily(f"forge_cache_{name}", CACHE_COUNTERS[name], count)
        if self._instruments.dropped is not None:
            family = CounterMetricFamily(
                "forge_bus_dropped", "Messages between nodes that were not taken, by why.", labels=["reason"]
            )
            for reason, count in self._instruments.dropped().items():
                family.add_metric([reason], count)
            yield family
        yield from _consumers(list(self._instruments.consumers()))
        yield from _outbox(list(self._instruments.outbox()))


def _consumers(samples: Sequence[ConsumerSample]) -> Iterator[Metric]:
    labels = ["consumer", "shard"]
    counters = {
        name: CounterMetricFamily(f"forge_consumer_{name}", text, labels=labels)
        for name, text in (
            ("delivered", "Changes that a consumer handled."),
            ("retried", "Calls of a consumer that failed and were tried again."),
            ("parked", "Changes that a consumer could not handle and put aside."),
        )
    }
    events = GaugeMetricFamily(
        "forge_consumer_lag_events", "Changes not handled yet, counted to 10,000.", labels=labels
    )
    seconds = GaugeMetricFamily("forge_consumer_lag_seconds", "Since when the first of them waits.", labels=labels)
    size = GaugeMetricFamily("forge_consumer_lag_bytes", "Not handled yet, where a source counts bytes.", labels=labels)
    for sample in samples:
        place = [sample.consumer, str(sample.shard)]
        for name, family in counters.items():
            family.add_metric(place, getattr(sample.counts, name))
        if sample.lag is not None:
            seconds.add_metric(place, sample.lag.seconds)
            for gauge, number in ((events, sample.lag.events), (size, sample.lag.bytes)):
                if number is not None:
                    gauge.add_metric(place, number)
    if samples:
        yield from (*counters.values(), events, seconds, size)


def _outbox(samples: Sequence[OutboxSample]) -> Iterator[Metric]:
    counters = {
        name: CounterMetricFamily(f"forge_outbox_{name}", text, labels=["route"])
        for name, text in (
            ("sent", "Messages that this node sent."),
            ("retried", "Tries of this node that failed, and that others follow."),
            ("parked", "Messages that this node could not send and put aside."),
        )
    }
    gauges = {
        name: GaugeMetricFamily(f"forge_outbox_{name}", text, labels=["route"])
        for name, text in (
            ("waiting", "Messages to be sent, on whatever node; counted to 10,000, as those below."),
            ("waiting_seconds", "Since when the first of them waits."),
            ("retrying", "Those of them that failed before."),
            ("scheduled", "Messages that are not due yet."),
            ("dead", "Dead letters, and messages that wait behind them."),
        )
    }
    for sample in samples:
        for name, counter in counters.items():
            counter.add_metric([sample.route], getattr(sample.counts, name))
        if sample.lag is not None:
            for name, gauge in gauges.items():
                gauge.add_metric([sample.route], getattr(sample.lag, "seconds" if name == "waiting_seconds" else name))
    if samples:
        yield from (*counters.values(), *gauges.values())
