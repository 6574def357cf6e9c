"""Metrics as a subscriber of signals, in Prometheus' text format.

`METRICS` has all there are, in the words of the reference. Label values come from the configuration and from
our own tables, so their number is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from itertools import accumulate
from math import inf
from typing import Any, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ductile.core.json import JsonValue
from ductile.struct import Value
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
#: Jobs whose times are being taken. Beyond, the oldest are forgotten: their figures are missing, not wrong.
_FOLLOWED_JOBS = 20_000
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
_OUTCOMES = {
    Signal.JOB_SUCCEEDED: "succeeded",
    Signal.JOB_RETRYING: "retrying",
    Signal.JOB_FAILED: "failed",
    Signal.JOB_DEAD: "dead",
    Signal.JOB_INTERRUPTED: "interrupted",
    Signal.JOB_POSTPONED: "postponed",
    Signal.JOB_RECOVERED: "recovered",
}
BREAKER_STATES: Mapping[str, int] = {"closed": 0, "half_open": 1, "open": 2}


class GaugeReading(Value):
    """What is looked up when somebody asks, since nothing tells of it."""

    ready: int
    waiting: int
    running: int
    #: (plugin, command, state)
    breakers: Iterable[tuple[str, str, str]]
    streams: int
    version: str


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(Value):
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class MetricName(StrEnum):
    INFO = "ductile_info"
    QUEUE_DEPTH = "ductile_queue_depth"
    ACCEPTED = "ductile_jobs_accepted_total"
    DEDUPLICATED = "ductile_jobs_deduplicated_total"
    WAIT = "ductile_job_wait_seconds"
    SPAWN = "ductile_job_spawn_seconds"
    RUN = "ductile_job_run_seconds"
    OUTCOMES = "ductile_job_outcomes_total"
    BREAKER = "ductile_breaker_state"
    OCCURRENCES = "ductile_schedule_occurrences_total"
    WEBHOOKS = "ductile_webhook_requests_total"
    DELIVERIES = "ductile_deliveries_total"
    REQUESTS = "ductile_http_requests_total"
    LATENCY = "ductile_http_request_seconds"
    UNAUTHORIZED = "ductile_http_unauthorized_total"
    STREAMS = "ductile_event_streams"
    LISTENER_REFUSED = "ductile_listener_refused_total"


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

#: Every metric of ours. `docs/reference/metrics.md` is tested against it.
METRICS: Mapping[MetricName, MetricSpec] = {
    MetricName.INFO: MetricSpec(kind=_GAUGE, help="The running version; always 1.", labels=("version",)),
    MetricName.QUEUE_DEPTH: MetricSpec(
        kind=_GAUGE, help="Jobs on the queue: ready, waiting or running.", labels=("state",)
    ),
    MetricName.ACCEPTED: MetricSpec(kind=_COUNTER, help="Jobs that were put on the queue."),
    MetricName.DEDUPLICATED: MetricSpec(kind=_COUNTER, help="Submissions that were duplicates."),
    MetricName.WAIT: MetricSpec(
        kind=_HISTOGRAM, help="Time from acceptance to the first claim.", labels=("plugin",), buckets=_SLOW
    ),
    MetricName.SPAWN: MetricSpec(
        kind=_HISTOGRAM,
        help="Time from the claim until the plugin has its request.",
        labels=("plugin",),
        buckets=_QUICK,
    ),
    MetricName.RUN: MetricSpec(
        kind=_HISTOGRAM, help="Time that a plugin's process ran.", labels=("plugin",), buckets=_SLOW
    ),
    MetricName.OUTCOMES: MetricSpec(
        kind=_COUNTER, help="What executions of jobs came to.", labels=("plugin", "outcome")
    ),
    MetricName.BREAKER: MetricSpec(
        kind=_GAUGE, help="Circuit breakers: 0 closed, 1 half open, 2 open.", labels=("plugin", "command")
    ),
    MetricName.OCCURRENCES: MetricSpec(
        kind=_COUNTER, help="Due occurrences of schedules: fired or skipped.", labels=("result",)
    ),
    MetricName.WEBHOOKS: MetricSpec(
        kind=_COUNTER, help="Calls of webhooks: accepted, refused or fault.", labels=("result",)
    ),
    MetricName.DELIVERIES: MetricSpec(
        kind=_COUNTER,
        help="State webhooks: delivered, failed (once more), dropped or gone.",
        labels=("result",),
    ),
    MetricName.REQUESTS: MetricSpec(
        kind=_COUNTER, help="Requests to the API.", labels=("method", "endpoint", "status")
    ),
    MetricName.LATENCY: MetricSpec(
        kind=_HISTOGRAM, help="Time to answer a request to the API.", labels=("endpoint",), buckets=_QUICK
    ),
    MetricName.UNAUTHORIZED: MetricSpec(kind=_COUNTER, help="Requests with an unknown token."),
    MetricName.STREAMS: MetricSpec(kind=_GAUGE, help="Event streams that are open."),
    MetricName.LISTENER_REFUSED: MetricSpec(
        kind=_COUNTER,
        help="Callers whom a listener refused, or let go, by itself.",
        labels=("listener", "reason"),
    ),
}
_TIMED_STEPS = {Signal.JOB_STARTED: MetricName.SPAWN, Signal.JOB_EXITED: MetricName.RUN}
_COUNTED: Mapping[Signal, tuple[str, ...]] = {
    Signal.JOB_ACCEPTED: (MetricName.ACCEPTED,),
    Signal.JOB_DEDUPLICATED: (MetricName.DEDUPLICATED,),
    Signal.API_UNAUTHORIZED: (MetricName.UNAUTHORIZED,),
    Signal.SCHEDULE_FIRED: (MetricName.OCCURRENCES, "fired"),
    Signal.SCHEDULE_SKIPPED: (MetricName.OCCURRENCES, "skipped"),
    Signal.WEBHOOK_ACCEPTED: (MetricName.WEBHOOKS, "accepted"),
    Signal.WEBHOOK_REFUSED: (MetricName.WEBHOOKS, "refused"),
    Signal.WEBHOOK_FAULT: (MetricName.WEBHOOKS, "fault"),
    Signal.DELIVERY_DELIVERED: (MetricName.DELIVERIES, "delivered"),
    Signal.DELIVERY_FAILED: (MetricName.DELIVERIES, "failed"),
    Signal.DELIVERY_DROPPED: (MetricName.DELIVERIES, "dropped"),
    Signal.DELIVERY_GONE: (MetricName.DELIVERIES, "gone"),
}


_FAMILIES: Mapping[MetricKind, Callable[..., Any]] = {
    _COUNTER: CounterMetricFamily,
    _GAUGE: GaugeMetricFamily,
    _HISTOGRAM: HistogramMetricFamily,
}


class _Histogram:
    """How long something took, as Prometheus counts it: so many up to each bound, and the sum."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def take(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def add(self, other: _Histogram) -> None:
        self._counts = list(map(int.__add__, self._counts, other._counts))
        self.sum += other.sum

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        return list(zip(map(floatToGoString, (*self._bounds, inf)), accumulate(self._counts), strict=True))


class Metrics(Collector):
    """Counts in plain numbers, on the loop alone; only whoever asks pays for the format.

    The library's own counters take a lock and several calls for each step of a job and each request.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` counts seconds and is never set back."""
        self._clock = clock
        self._marks: OrderedDict[str, float] = OrderedDict()
        #: By name and label values.
        self._counts: dict[tuple[str, ...], int] = {
            (name,): 0 for name, each in METRICS.items() if each.kind is _COUNTER and not each.labels
        }
        self._timings: dict[tuple[str, ...], _Histogram] = {}
        #: By method, endpoint and status: how many there were is counted with how long they took.
        self._requests: dict[tuple[JsonValue, ...], _Histogram] = {}
        self._levels: list[tuple[MetricName, tuple[str, ...], float]] = []
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def follow(self, signals: SignalBus) -> None:
        signals.subscribe(self._take_request, (Signal.API_REQUEST,))
        signals.subscribe(self._take_claim, (Signal.JOB_CLAIMED,))
        signals.subscribe(self._take_step, _TIMED_STEPS)
        signals.subscribe(self._take_outcome, _OUTCOMES)
        signals.subscribe(self._take_refused, (Signal.LISTENER_REFUSED,))
        for signal, key in _COUNTED.items():
            signals.subscribe(partial(self._take_counted, key), (signal,))

    def _count(self, key: tuple[str, ...], more: int = 1) -> None:
        self._counts[key] = self._counts.get(key, 0) + more

    def _take_counted(self, key: tuple[str, ...], _happening: SignalEvent) -> None:
        self._counts[key] = self._counts.get(key, 0) + 1

    def _time(self, name: MetricName, label: str, seconds: float) -> None:
        timing = self._timings.get((name, label))
        if timing is None:
            timing = self._timings[name, label] = _Histogram(METRICS[name].buckets)
        timing.take(seconds)

    def _take_claim(self, happening: SignalEvent) -> None:
        waited = happening.data.get("waited_ms")  # of a first claim
        if isinstance(waited, float):
            self._time(MetricName.WAIT, happening.plugin or "", waited / 1000)
        self._mark(happening.job_id or "", self._clock())

    def _take_step(self, happening: SignalEvent) -> None:
        """Each step of a job ends one span and begins the next."""
        job, signal, now = happening.job_id or "", happening.signal, self._clock()
        ago = happening.data.get("ms_ago")  # of a start that was heard of later
        if isinstance(ago, float):
            now -= ago / 1000
        began = self._marks.pop(job, None)
        if began is not None:
            self._time(_TIMED_STEPS[signal], happening.plugin or "", max(0.0, now - began))
        if signal is not Signal.JOB_EXITED:
            self._mark(job, now)

    def _take_outcome(self, happening: SignalEvent) -> None:
        self._count((MetricName.OUTCOMES, happening.plugin or "", _OUTCOMES[happening.signal]))
        self._marks.pop(happening.job_id or "", None)

    def _take_refused(self, happening: SignalEvent) -> None:
        listener = str(happening.data["listener"])
        for reason, count in cast("Mapping[str, int]", happening.data["refused"]).items():
            self._count((MetricName.LISTENER_REFUSED, listener, reason), count)

    def _mark(self, job: str, now: float) -> None:
        self._marks[job] = now
        if len(self._marks) > _FOLLOWED_JOBS:
            self._marks.popitem(last=False)

    def _take_request(self, happening: SignalEvent) -> None:
        """What no endpoint answered goes under one name: callers must not be able to make labels."""
        data = happening.data
        endpoint, took = data["endpoint"], data["duration_ms"]
        key = (data["method"], endpoint, data["status"]) if endpoint else ("any", "none", data["status"])
        timing = self._requests.get(key)
        if timing is None:
            timing = self._requests[key] = _Histogram(METRICS[MetricName.LATENCY].buckets)
        if isinstance(took, float):
            timing.take(took / 1000)

    def render(self, reading: GaugeReading) -> bytes:
        self._levels = [
            (MetricName.INFO, (reading.version,), 1),
            (MetricName.QUEUE_DEPTH, ("ready",), reading.ready),
            (MetricName.QUEUE_DEPTH, ("waiting",), reading.waiting),
            (MetricName.QUEUE_DEPTH, ("running",), reading.running),
            *(
                (MetricName.BREAKER, (plugin, command), BREAKER_STATES[state])
                for plugin, command, state in reading.breakers
            ),
            (MetricName.STREAMS, (), reading.streams),
        ]
        return generate_latest(self.registry)

    def _latencies(self) -> dict[tuple[str, ...], _Histogram]:
        """By endpoint alone, whatever the method and the answer were."""
        latencies: dict[tuple[str, ...], _Histogram] = {}
        for (_, endpoint, _), timing in self._requests.items():
            whole = latencies.setdefault(
                (MetricName.LATENCY, str(endpoint)), _Histogram(METRICS[MetricName.LATENCY].buckets)
            )
            whole.add(timing)
        return latencies

    def collect(self) -> Iterator[Metric]:
        families = {
            name: _FAMILIES[each.kind](name, each.help, labels=each.labels) for name, each in METRICS.items()
        }
        for (name, *values), count in self._counts.items():
            families[MetricName(name)].add_metric(values, count)
        for key, timing in self._requests.items():
            families[MetricName.REQUESTS].add_metric([str(each) for each in key], timing.count)
        for (name, *values), timing in (*self._timings.items(), *self._latencies().items()):
            families[MetricName(name)].add_metric(values, timing.buckets(), timing.sum)
        for name, labels, level in self._levels:
            families[name].add_metric(labels, level)
        yield from families.values()
