"""Metrics in Prometheus' text format, counted from signals.

`METRICS` is the whole list. Label values come from the configuration and from our own tables, so their number
is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache, partial
from typing import cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from ductile.struct import Value
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
#: Jobs whose steps are being timed. Beyond, the oldest is forgotten: its times are missing, not wrong.
MAX_TIMED_JOBS = 20_000
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
BREAKER_STATES: Mapping[str, int] = {"closed": 0, "half_open": 1, "open": 2}

# The `_created` series would double the size of the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class GaugeReading(Value):
    """Values that are read from the store and the engine when the page is requested."""

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
        kind=_COUNTER, help="Outcomes of executions of jobs.", labels=("plugin", "outcome")
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
        help="Connections and requests that a listener refused or closed by itself.",
        labels=("listener", "reason"),
    ),
}
#: Counters that a signal increments, with their label values.
_COUNTED: Mapping[Signal, tuple[MetricName, tuple[str, ...]]] = {
    Signal.JOB_ACCEPTED: (MetricName.ACCEPTED, ()),
    Signal.JOB_DEDUPLICATED: (MetricName.DEDUPLICATED, ()),
    Signal.API_UNAUTHORIZED: (MetricName.UNAUTHORIZED, ()),
    Signal.SCHEDULE_FIRED: (MetricName.OCCURRENCES, ("fired",)),
    Signal.SCHEDULE_SKIPPED: (MetricName.OCCURRENCES, ("skipped",)),
    Signal.WEBHOOK_ACCEPTED: (MetricName.WEBHOOKS, ("accepted",)),
    Signal.WEBHOOK_REFUSED: (MetricName.WEBHOOKS, ("refused",)),
    Signal.WEBHOOK_FAULT: (MetricName.WEBHOOKS, ("fault",)),
    Signal.DELIVERY_DELIVERED: (MetricName.DELIVERIES, ("delivered",)),
    Signal.DELIVERY_FAILED: (MetricName.DELIVERIES, ("failed",)),
    Signal.DELIVERY_DROPPED: (MetricName.DELIVERIES, ("dropped",)),
    Signal.DELIVERY_GONE: (MetricName.DELIVERIES, ("gone",)),
}
_OUTCOMES = {
    Signal.JOB_SUCCEEDED: "succeeded",
    Signal.JOB_RETRYING: "retrying",
    Signal.JOB_FAILED: "failed",
    Signal.JOB_DEAD: "dead",
    Signal.JOB_INTERRUPTED: "interrupted",
    Signal.JOB_POSTPONED: "postponed",
    Signal.JOB_RECOVERED: "recovered",
}
#: The metric of the time that ends with a signal.
_TIMED_STEPS = {Signal.JOB_STARTED: MetricName.SPAWN, Signal.JOB_EXITED: MetricName.RUN}


class Metrics:
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        #: When the current step of each running job began, oldest first.
        self._step_began: OrderedDict[str, float] = OrderedDict()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._counters: dict[MetricName, Counter] = {}
        self._gauges: dict[MetricName, Gauge] = {}
        self._histograms: dict[MetricName, Histogram] = {}
        for name, spec in METRICS.items():
            match spec.kind:
                case MetricKind.COUNTER:
                    self._counters[name] = Counter(name, spec.help, spec.labels, registry=self.registry)
                case MetricKind.GAUGE:
                    self._gauges[name] = Gauge(name, spec.help, spec.labels, registry=self.registry)
                case MetricKind.HISTOGRAM:
                    self._histograms[name] = Histogram(
                        name, spec.help, spec.labels, buckets=spec.buckets, registry=self.registry
                    )
        # `labels` locks and compares; these two are used for every request, with few different values.
        self._requests = cache(self._counters[MetricName.REQUESTS].labels)
        self._latency = cache(self._histograms[MetricName.LATENCY].labels)

    @property
    def timed_jobs(self) -> int:
        return len(self._step_began)

    def follow(self, signals: SignalBus) -> None:
        signals.subscribe(self._on_request, (Signal.API_REQUEST,))
        signals.subscribe(self._on_claimed, (Signal.JOB_CLAIMED,))
        signals.subscribe(self._on_step, _TIMED_STEPS)
        signals.subscribe(self._on_outcome, _OUTCOMES)
        signals.subscribe(self._on_refused, (Signal.LISTENER_REFUSED,))
        for signal, (name, labels) in _COUNTED.items():
            counter = self._counters[name].labels(*labels) if labels else self._counters[name]
            signals.subscribe(partial(_increment, counter), (signal,))

    def _on_claimed(self, event: SignalEvent) -> None:
        waited = event.data.get("waited_ms")  # Set for a job's first claim.
        if isinstance(waited, float):
            self._histograms[MetricName.WAIT].labels(event.plugin or "").observe(waited / 1000)
        self._begin_step(event.job_id or "", self._clock())

    def _on_step(self, event: SignalEvent) -> None:
        """A step of a job ends one time and begins the next."""
        job_id, now = event.job_id or "", self._clock()
        ago = event.data.get("ms_ago")  # Set for a start that is reported late.
        if isinstance(ago, float):
            now -= ago / 1000
        began = self._step_began.pop(job_id, None)
        if began is not None:
            histogram = self._histograms[_TIMED_STEPS[event.signal]]
            histogram.labels(event.plugin or "").observe(max(0.0, now - began))
        if event.signal is not Signal.JOB_EXITED:
            self._begin_step(job_id, now)

    def _begin_step(self, job_id: str, now: float) -> None:
        self._step_began[job_id] = now
        if len(self._step_began) > MAX_TIMED_JOBS:
            self._step_began.popitem(last=False)

    def _on_outcome(self, event: SignalEvent) -> None:
        self._counters[MetricName.OUTCOMES].labels(event.plugin or "", _OUTCOMES[event.signal]).inc()
        self._step_began.pop(event.job_id or "", None)

    def _on_refused(self, event: SignalEvent) -> None:
        listener = str(event.data["listener"])
        for reason, count in cast("Mapping[str, int]", event.data["refused"]).items():
            self._counters[MetricName.LISTENER_REFUSED].labels(listener, reason).inc(count)

    def _on_request(self, event: SignalEvent) -> None:
        """Requests without an endpoint share one label value: clients must not be able to create labels."""
        data = event.data
        endpoint, method = str(data["endpoint"] or "none"), str(data["method"] if data["endpoint"] else "any")
        self._requests(method, endpoint, str(data["status"])).inc()
        if isinstance(took := data["duration_ms"], float):
            self._latency(endpoint).observe(took / 1000)

    def render(self, reading: GaugeReading) -> bytes:
        """Return the page of all metrics."""
        self._gauges[MetricName.INFO].labels(reading.version).set(1)
        for state, count in (
            ("ready", reading.ready),
            ("waiting", reading.waiting),
            ("running", reading.running),
        ):
            self._gauges[MetricName.QUEUE_DEPTH].labels(state).set(count)
        self._gauges[MetricName.BREAKER].clear()  # A breaker may be gone since the last request.
        for plugin, command, state in reading.breakers:
            self._gauges[MetricName.BREAKER].labels(plugin, command).set(BREAKER_STATES[state])
        self._gauges[MetricName.STREAMS].set(reading.streams)
        return generate_latest(self.registry)


def _increment(counter: Counter, _event: SignalEvent) -> None:
    counter.inc()
