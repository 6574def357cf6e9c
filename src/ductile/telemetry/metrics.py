"""Metrics in Prometheus' text format, counted from signals.

Label values come from the configuration and from tables of the program, so their number is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
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

from ductile.core.token_limits import LimitState
from ductile.telemetry.signals import Signal, SignalBus, SignalEvent

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
#: Jobs whose phases are being timed. With more, the oldest is forgotten: its times are missing, not wrong.
MAX_TIMED_JOBS = 20_000
#: Upper bounds of histogram buckets, in seconds.
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
BREAKER_STATES: Mapping[str, int] = {"closed": 0, "half_open": 1, "open": 2}

# The `_created` series would double the size of the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


_OUTCOMES = {
    Signal.JOB_SUCCEEDED: "succeeded",
    Signal.JOB_RETRYING: "retrying",
    Signal.JOB_FAILED: "failed",
    Signal.JOB_DEAD: "dead",
    Signal.JOB_INTERRUPTED: "interrupted",
    Signal.JOB_POSTPONED: "postponed",
    Signal.JOB_RECOVERED: "recovered",
}


class Metrics:
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        #: When the current phase (spawn or run) of each running job began, oldest first.
        self._phase_began: OrderedDict[str, float] = OrderedDict()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        # In the order of `docs/reference/metrics.md`; a test compares that page with the metrics.
        self._create_job_metrics()
        self._create_server_metrics()

    def _create_job_metrics(self) -> None:
        """Create the metrics of jobs, circuit breakers and schedules."""
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._info = gauge("ductile_info", "The running version; always 1.", ("version",))
        self._queue_depth = gauge(
            "ductile_queue_depth", "Jobs on the queue: ready, waiting or running.", ("state",)
        )
        self._accepted = counter("ductile_jobs_accepted_total", "Jobs that were put on the queue.")
        self._deduplicated = counter("ductile_jobs_deduplicated_total", "Submissions that were duplicates.")
        self._wait = histogram(
            "ductile_job_wait_seconds", "Time from acceptance to the first claim.", ("plugin",), buckets=_SLOW
        )
        self._spawn = histogram(
            "ductile_job_spawn_seconds",
            "Time from the claim until the plugin has its request.",
            ("plugin",),
            buckets=_QUICK,
        )
        self._run = histogram(
            "ductile_job_run_seconds", "Time that a plugin's process ran.", ("plugin",), buckets=_SLOW
        )
        self._outcomes = counter(
            "ductile_job_outcomes_total", "Outcomes of executions of jobs.", ("plugin", "outcome")
        )
        self._breaker = gauge(
            "ductile_breaker_state", "Circuit breakers: 0 closed, 1 half open, 2 open.", ("plugin", "command")
        )
        self._occurrences = counter(
            "ductile_schedule_occurrences_total",
            "Due occurrences of schedules: fired or skipped.",
            ("result",),
        )

    def _create_server_metrics(self) -> None:
        """Create the metrics of webhooks, HTTP requests, nodes, token limits and listeners."""
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._webhooks = counter(
            "ductile_webhook_requests_total", "Calls of webhooks: accepted, refused or fault.", ("result",)
        )
        self._deliveries = counter(
            "ductile_deliveries_total",
            "State webhooks: delivered, failed (once more), dropped or gone.",
            ("result",),
        )
        self._requests = counter(
            "ductile_http_requests_total", "Requests to the API.", ("method", "endpoint", "status")
        )
        self._latency = histogram(
            "ductile_http_request_seconds",
            "Time to answer a request to the API.",
            ("endpoint",),
            buckets=_QUICK,
        )
        self._node_workers = gauge(
            "ductile_node_workers",
            "Workers of each node that shares the store: busy or free.",
            ("node", "state"),
        )
        self._unauthorized = counter("ductile_http_unauthorized_total", "Requests with an unknown token.")
        limit_labels = ("token", "limit", "target")
        self._limit_used = gauge(
            "ductile_token_limit_used", "How much of a limit an access token has used.", limit_labels
        )
        self._limit_max = gauge("ductile_token_limit_max", "The limit of an access token.", limit_labels)
        self._streams = gauge("ductile_event_streams", "Event streams that are open.")
        self._listener_refused = counter(
            "ductile_listener_refused_total",
            "Connections and requests that a listener refused or closed by itself.",
            ("listener", "reason"),
        )
        # `labels` locks and compares; these two are used for every request, with few different values.
        self._requests_of = cache(self._requests.labels)
        self._latency_of = cache(self._latency.labels)

    def subscribe_to(self, signals: SignalBus) -> None:
        signals.subscribe(self._on_request, (Signal.API_REQUEST,))
        signals.subscribe(self._on_claimed, (Signal.JOB_CLAIMED,))
        signals.subscribe(self._on_phase_end, (Signal.JOB_STARTED, Signal.JOB_EXITED))
        signals.subscribe(self._on_outcome, _OUTCOMES)
        signals.subscribe(self._on_refused, (Signal.LISTENER_REFUSED,))
        for signal, counter in {
            Signal.JOB_ACCEPTED: self._accepted,
            Signal.JOB_DEDUPLICATED: self._deduplicated,
            Signal.API_UNAUTHORIZED: self._unauthorized,
            Signal.SCHEDULE_FIRED: self._occurrences.labels("fired"),
            Signal.SCHEDULE_SKIPPED: self._occurrences.labels("skipped"),
            Signal.WEBHOOK_ACCEPTED: self._webhooks.labels("accepted"),
            Signal.WEBHOOK_REFUSED: self._webhooks.labels("refused"),
            Signal.WEBHOOK_FAULT: self._webhooks.labels("fault"),
            Signal.DELIVERY_DELIVERED: self._deliveries.labels("delivered"),
            Signal.DELIVERY_FAILED: self._deliveries.labels("failed"),
            Signal.DELIVERY_DROPPED: self._deliveries.labels("dropped"),
            Signal.DELIVERY_GONE: self._deliveries.labels("gone"),
        }.items():
            signals.subscribe(partial(_increment, counter), (signal,))

    def _on_claimed(self, event: SignalEvent) -> None:
        waited_ms = event.data.get("waited_ms")  # Set for a job's first claim.
        if isinstance(waited_ms, float):
            self._wait.labels(event.plugin or "").observe(waited_ms / 1000)
        self._begin_phase(event.job_id or "", self._clock())

    def _on_phase_end(self, event: SignalEvent) -> None:
        """Observe the duration of the phase that has ended, and begin the next one."""
        job_id, now = event.job_id or "", self._clock()
        ms_ago = event.data.get("ms_ago")  # Set for a start that is reported late.
        if isinstance(ms_ago, float):
            now -= ms_ago / 1000
        began = self._phase_began.pop(job_id, None)
        if began is not None:
            histogram = self._spawn if event.signal is Signal.JOB_STARTED else self._run
            histogram.labels(event.plugin or "").observe(max(0.0, now - began))
        if event.signal is not Signal.JOB_EXITED:
            self._begin_phase(job_id, now)

    def _begin_phase(self, job_id: str, now: float) -> None:
        self._phase_began[job_id] = now
        if len(self._phase_began) > MAX_TIMED_JOBS:
            self._phase_began.popitem(last=False)

    def _on_outcome(self, event: SignalEvent) -> None:
        self._outcomes.labels(event.plugin or "", _OUTCOMES[event.signal]).inc()
        self._phase_began.pop(event.job_id or "", None)

    def _on_refused(self, event: SignalEvent) -> None:
        listener = str(event.data["listener"])
        for reason, count in cast("Mapping[str, int]", event.data["refused"]).items():
            self._listener_refused.labels(listener, reason).inc(count)

    def _on_request(self, event: SignalEvent) -> None:
        """Count a request. Without an endpoint its label is `none`: clients must not create labels."""
        data = event.data
        endpoint, method = str(data["endpoint"] or "none"), str(data["method"] if data["endpoint"] else "any")
        self._requests_of(method, endpoint, str(data["status"])).inc()
        if isinstance(duration_ms := data["duration_ms"], float):
            self._latency_of(endpoint).observe(duration_ms / 1000)

    def render(
        self,
        *,
        version: str,
        queue: Mapping[str, int],
        breakers: Iterable[tuple[str, str, str]],
        streams: int,
        limits: Iterable[tuple[str, LimitState]] = (),
        nodes: Iterable[tuple[str, int, int]] = (),
    ) -> bytes:
        """Return the page of all metrics.

        `queue` has the number of jobs by state; a breaker is its plugin, command and state; `limits` are
        those of access tokens, each with the token's name; a node is its name, workers and running jobs.
        """
        self._info.labels(version).set(1)
        for state, count in queue.items():
            self._queue_depth.labels(state).set(count)
        self._breaker.clear()  # A breaker may be gone since the last request.
        for plugin, command, state in breakers:
            self._breaker.labels(plugin, command).set(BREAKER_STATES[state])
        self._limit_used.clear()  # A reload may have removed a limit.
        self._limit_max.clear()
        for token, limit in limits:
            labels = (token, limit.limit, limit.target or "")
            self._limit_used.labels(*labels).set(limit.used)
            self._limit_max.labels(*labels).set(limit.maximum)
        self._streams.set(streams)
        self._node_workers.clear()
        for node, workers, running in nodes:
            self._node_workers.labels(node, "busy").set(running)
            self._node_workers.labels(node, "free").set(max(0, workers - running))
        return generate_latest(self.registry)


def _increment(counter: Counter, _event: SignalEvent) -> None:
    counter.inc()
