"""Metrics as a subscriber of signals, in Prometheus' text format (SPEC 12).

`METRICS` has all there are, in the words of the reference. Label values come from the configuration and from
our own tables, so their number is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from ductile.core.json_values import JsonValue
from ductile.telemetry.signals import Happening, Signal
from ductile.value import Value

Child = TypeVar("Child", Counter, Histogram)

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
    Signal.JOB_RECOVERED: "recovered",
}
BREAKER_STATES: Mapping[str, int] = {"closed": 0, "half_open": 1, "open": 2}


class Reading(Value):
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


class Described(Value):
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Name(StrEnum):
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


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

#: Every metric of ours. `docs/reference/metrics.md` is tested against it.
METRICS: Mapping[Name, Described] = {
    Name.INFO: Described(kind=_GAUGE, help="The running version; always 1.", labels=("version",)),
    Name.QUEUE_DEPTH: Described(
        kind=_GAUGE, help="Jobs on the queue: ready, waiting or running.", labels=("state",)
    ),
    Name.ACCEPTED: Described(kind=_COUNTER, help="Jobs that were put on the queue."),
    Name.DEDUPLICATED: Described(kind=_COUNTER, help="Submissions that were duplicates."),
    Name.WAIT: Described(
        kind=_HISTOGRAM, help="Time from acceptance to the first claim.", labels=("plugin",), buckets=_SLOW
    ),
    Name.SPAWN: Described(
        kind=_HISTOGRAM,
        help="Time from the claim until the plugin has its request.",
        labels=("plugin",),
        buckets=_QUICK,
    ),
    Name.RUN: Described(
        kind=_HISTOGRAM, help="Time that a plugin's process ran.", labels=("plugin",), buckets=_SLOW
    ),
    Name.OUTCOMES: Described(
        kind=_COUNTER, help="What executions of jobs came to.", labels=("plugin", "outcome")
    ),
    Name.BREAKER: Described(
        kind=_GAUGE, help="Circuit breakers: 0 closed, 1 half open, 2 open.", labels=("plugin", "command")
    ),
    Name.OCCURRENCES: Described(
        kind=_COUNTER, help="Due occurrences of schedules: fired or skipped.", labels=("result",)
    ),
    Name.WEBHOOKS: Described(
        kind=_COUNTER, help="Calls of webhooks: accepted, refused or fault.", labels=("result",)
    ),
    Name.DELIVERIES: Described(
        kind=_COUNTER, help="State webhooks: delivered, failed (once more) or dropped.", labels=("result",)
    ),
    Name.REQUESTS: Described(
        kind=_COUNTER, help="Requests to the API.", labels=("method", "endpoint", "status")
    ),
    Name.LATENCY: Described(
        kind=_HISTOGRAM, help="Time to answer a request to the API.", labels=("endpoint",), buckets=_QUICK
    ),
    Name.UNAUTHORIZED: Described(kind=_COUNTER, help="Requests with a token that nobody knows."),
    Name.STREAMS: Described(kind=_GAUGE, help="Event streams that are open."),
}
_SPANS = {Signal.JOB_CLAIMED: Name.WAIT, Signal.JOB_STARTED: Name.SPAWN, Signal.JOB_EXITED: Name.RUN}
_COUNTED: Mapping[Signal, tuple[Name, tuple[str, ...]]] = {
    Signal.JOB_DEDUPLICATED: (Name.DEDUPLICATED, ()),
    Signal.API_UNAUTHORIZED: (Name.UNAUTHORIZED, ()),
    Signal.SCHEDULE_FIRED: (Name.OCCURRENCES, ("fired",)),
    Signal.SCHEDULE_SKIPPED: (Name.OCCURRENCES, ("skipped",)),
    Signal.WEBHOOK_ACCEPTED: (Name.WEBHOOKS, ("accepted",)),
    Signal.WEBHOOK_REFUSED: (Name.WEBHOOKS, ("refused",)),
    Signal.WEBHOOK_FAULT: (Name.WEBHOOKS, ("fault",)),
    Signal.DELIVERY_DELIVERED: (Name.DELIVERIES, ("delivered",)),
    Signal.DELIVERY_FAILED: (Name.DELIVERIES, ("failed",)),
    Signal.DELIVERY_DROPPED: (Name.DELIVERIES, ("dropped",)),
}


class Metrics:
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` counts seconds and is never set back."""
        self._clock = clock
        self._marks: OrderedDict[str, float] = OrderedDict()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._counters = {
            name: Counter(name, each.help, each.labels, registry=self.registry)
            for name, each in _of(_COUNTER)
        }
        self._gauges = {
            name: Gauge(name, each.help, each.labels, registry=self.registry) for name, each in _of(_GAUGE)
        }
        self._histograms = {
            name: Histogram(name, each.help, each.labels, buckets=each.buckets, registry=self.registry)
            for name, each in _of(_HISTOGRAM)
        }
        # Bound once: looking a child up by its labels costs several times what counting does.
        self._counter = cache(lambda name, *labels: _child(self._counters[name], labels))
        self._histogram = cache(lambda name, *labels: _child(self._histograms[name], labels))

    def __call__(self, happening: Happening) -> None:
        signal = happening.signal
        if signal is Signal.API_REQUEST:
            self._take_request(happening.data)
        elif signal in _OUTCOMES:
            self._counter(Name.OUTCOMES, happening.plugin or "", _OUTCOMES[signal]).inc()
            self._marks.pop(happening.job_id or "", None)
        elif signal is Signal.JOB_ACCEPTED or signal in _SPANS:
            self._take_time(happening)
        elif signal in _COUNTED:
            name, labels = _COUNTED[signal]
            self._counter(name, *labels).inc()

    def _take_time(self, happening: Happening) -> None:
        """Each step of a job ends one span and begins the next."""
        job, signal, now = happening.job_id or "", happening.signal, self._clock()
        began = self._marks.pop(job, None)
        if signal is Signal.JOB_ACCEPTED:
            self._counter(Name.ACCEPTED).inc()
        elif began is not None:
            self._histogram(_SPANS[signal], happening.plugin or "").observe(now - began)
        if signal is not Signal.JOB_EXITED:
            self._marks[job] = now
            if len(self._marks) > _FOLLOWED_JOBS:
                self._marks.popitem(last=False)

    def _take_request(self, data: Mapping[str, JsonValue]) -> None:
        """What no endpoint answered goes under one name: callers must not be able to make labels."""
        known = data.get("endpoint")
        endpoint, method = (str(known), str(data.get("method"))) if known else ("none", "any")
        self._counter(Name.REQUESTS, method, endpoint, str(data.get("status"))).inc()
        took = data.get("duration_ms")
        if isinstance(took, int | float):
            self._histogram(Name.LATENCY, endpoint).observe(took / 1000)

    def render(self, reading: Reading) -> bytes:
        gauges = self._gauges
        gauges[Name.INFO].labels(reading.version).set(1)
        for state in ("ready", "waiting", "running"):
            gauges[Name.QUEUE_DEPTH].labels(state).set(getattr(reading, state))
        gauges[Name.BREAKER].clear()
        for plugin, command, state in reading.breakers:
            gauges[Name.BREAKER].labels(plugin, command).set(BREAKER_STATES[state])
        gauges[Name.STREAMS].set(reading.streams)
        return generate_latest(self.registry)


def _of(kind: MetricKind) -> list[tuple[Name, Described]]:
    return [(name, each) for name, each in METRICS.items() if each.kind is kind]


def _child(metric: Child, labels: tuple[str, ...]) -> Child:
    return metric.labels(*labels) if labels else metric
