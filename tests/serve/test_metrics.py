"""What Prometheus is answered: parsed back with its own parser."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forge.react.group import ReactorMetrics
from forge.serve.metrics import BUCKETS, Instruments

COUNTS = ReactorMetrics(changes=1, pruned=2, touched=3, runs=4, wasted=5, pushed=6, failed=7, checked=9, resyncs=10)


@dataclass
class Group:
    subscribers: set[str]


@dataclass
class Observed:
    """What metrics read of a reactor."""

    metrics: ReactorMetrics = field(default_factory=lambda: msgspec.structs.replace(COUNTS))
    groups: dict[str, Group] = field(default_factory=dict)


def observed(groups: dict[str, Group] | None = None) -> Any:
    return Observed(groups=groups or {})


def samples(instruments: Instruments) -> dict[tuple[str, ...], float]:
    body, kind = instruments.exposition()
    assert kind.startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in ("stage", "le") if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_counters_are_the_reactors_at_the_moment_of_asking() -> None:
    reactor = observed()
    instruments = Instruments(reactor)
    before = samples(instruments)
    names = ("changes", "pruned", "touched", "runs", "wasted", "pushed", "failed", "missed", "checked", "resyncs")
    assert [before[f"forge_{name}_total",] for name in names] == [1, 2, 3, 4, 5, 6, 7, 0, 9, 10]
    reactor.metrics.missed += 1
    assert samples(instruments)["forge_missed_total",] == 1


def test_counters_and_gauges_say_what_they_are() -> None:
    body, _ = Instruments(observed(), sessions=lambda: 1, waiting=lambda: 2).exposition()
    kinds = {family.name: family.type for family in text_string_to_metric_families(body.decode())}
    assert kinds["forge_changes"] == "counter"
    assert kinds["forge_push_seconds"] == "histogram"
    gauges = ("forge_groups", "forge_subscribers", "forge_sessions", "forge_pushes_waiting")
    assert [kinds[name] for name in gauges] == ["gauge"] * 4


def test_gauges_follow_what_they_count() -> None:
    reactor = observed(groups={"a": Group({"x", "y"}), "b": Group(set())})
    sessions = ["s"]
    instruments = Instruments(reactor, sessions=lambda: len(sessions), waiting=lambda: 7)
    found = samples(instruments)
    assert (found["forge_groups",], found["forge_subscribers",]) == (2, 2)
    assert (found["forge_sessions",], found["forge_pushes_waiting",]) == (1, 7)
    del reactor.groups["a"]
    sessions.clear()
    found = samples(instruments)
    assert (found["forge_groups",], found["forge_subscribers",], found["forge_sessions",]) == (1, 0, 0)


def test_a_gauge_that_nobody_counts_is_absent_until_somebody_does() -> None:
    instruments = Instruments(observed())
    assert ("forge_sessions",) not in samples(instruments)
    instruments.sessions = lambda: 3
    assert samples(instruments)["forge_sessions",] == 3


def test_every_stage_is_there_before_it_was_observed() -> None:
    found = samples(Instruments(observed()))
    stages = {key[1] for key in found if key[0] == "forge_push_seconds_count"}
    assert stages == {"commit_to_batch", "debounce", "run", "push", "commit_to_push"}


def test_the_buckets_reach_from_half_a_millisecond_to_ten_seconds() -> None:
    assert (BUCKETS[0], BUCKETS[-1]) == (0.0005, 10.0)
    assert list(BUCKETS) == sorted(set(BUCKETS))


def test_an_observation_lies_in_the_buckets_above_it() -> None:
    instruments = Instruments(observed())
    instruments.observe("run", 0.003)
    instruments.observe("run", 60.0)
    found = samples(instruments)
    assert found["forge_push_seconds_bucket", "run", "0.0025"] == 0
    assert found["forge_push_seconds_bucket", "run", "0.005"] == 1
    assert found["forge_push_seconds_bucket", "run", "10.0"] == 1
    assert found["forge_push_seconds_bucket", "run", "+Inf"] == 2
    assert found["forge_push_seconds_sum", "run"] == pytest.approx(60.003)
    assert found["forge_push_seconds_count", "push"] == 0


def test_clocks_that_disagree_never_lower_the_sum() -> None:
    instruments = Instruments(observed())
    instruments.observe("commit_to_batch", -5.0)
    found = samples(instruments)
    assert found["forge_push_seconds_sum", "commit_to_batch"] == 0
    assert found["forge_push_seconds_count", "commit_to_batch"] == 1


def test_two_nodes_in_one_process_do_not_share() -> None:
    first, second = Instruments(observed()), Instruments(observed())
    first.observe("run", 1.0)
    assert samples(second)["forge_push_seconds_count", "run"] == 0
