"""Metrics are counted from signals."""

from __future__ import annotations

from collections.abc import Callable

from builders.metrics import descriptions_of
from ductile.core.json import JsonObject
from ductile.telemetry.metrics import MAX_TIMED_JOBS, Metrics
from ductile.telemetry.signals import Signal, SignalBus


def start_metrics(clock: Callable[[], float] = lambda: 0.0) -> tuple[Metrics, SignalBus]:
    metrics, signals = Metrics(clock), SignalBus()
    metrics.subscribe_to(signals)
    return metrics, signals


def test_the_times_of_a_job() -> None:
    """Wait, spawn and run time are measured by plugin."""
    now = [0.0]
    metrics, signals = start_metrics(lambda: now[0])
    signals.emit(Signal.JOB_ACCEPTED, job_id="1")
    for at, signal, data in (
        (1.0, Signal.JOB_CLAIMED, {"waited_ms": 750.0}),
        (1.5, Signal.JOB_STARTED, {}),
        (4.0, Signal.JOB_EXITED, {}),
        (4.1, Signal.JOB_SUCCEEDED, {}),
    ):
        now[0] = at
        signals.emit(signal, plugin="echo", job_id="1", data=data)
    value = metrics.registry.get_sample_value
    assert value("ductile_job_wait_seconds_sum", {"plugin": "echo"}) == 0.75
    assert value("ductile_job_spawn_seconds_sum", {"plugin": "echo"}) == 0.5
    assert value("ductile_job_run_seconds_sum", {"plugin": "echo"}) == 2.5
    assert value("ductile_job_outcomes_total", {"plugin": "echo", "outcome": "succeeded"}) == 1
    assert value("ductile_jobs_accepted_total") == 1


def test_a_start_that_is_reported_late_counts_from_when_it_was() -> None:
    """Under load a start is reported when the process has already ended."""
    now = [1.0]
    metrics, signals = start_metrics(lambda: now[0])
    signals.emit(Signal.JOB_CLAIMED, plugin="echo", job_id="1")
    now[0] = 4.0
    signals.emit(Signal.JOB_STARTED, plugin="echo", job_id="1", data={"ms_ago": 2500.0})
    signals.emit(Signal.JOB_EXITED, plugin="echo", job_id="1")
    value = metrics.registry.get_sample_value
    assert value("ductile_job_spawn_seconds_sum", {"plugin": "echo"}) == 0.5
    assert value("ductile_job_run_seconds_sum", {"plugin": "echo"}) == 2.5


def test_a_time_counts_up_to_its_bound_and_in_all_above() -> None:
    """A bucket of Prometheus includes its bound and all smaller values; the last one has every value."""
    metrics, signals = start_metrics()
    for duration_ms in (1.0, 1.1, 9_999_999.0):
        data: JsonObject = {"method": "GET", "endpoint": "/jobs", "status": 200, "duration_ms": duration_ms}
        signals.emit(Signal.API_REQUEST, data=data)
    value = metrics.registry.get_sample_value
    counts = [
        value("ductile_http_request_seconds_bucket", {"endpoint": "/jobs", "le": le})
        for le in ("0.001", "0.0025", "10.0", "+Inf")
    ]
    assert counts == [1, 2, 2, 3]
    assert value("ductile_http_request_seconds_count", {"endpoint": "/jobs"}) == 3


def test_a_latency_is_of_an_endpoint_for_every_status() -> None:
    """Requests are counted by method and status, and their latency by endpoint alone."""
    metrics, signals = start_metrics()
    for method, status, duration_ms in (
        ("GET", 200, 1.0),
        ("GET", 200, 3.0),
        ("GET", 404, 2.0),
        ("HEAD", 200, 2000.0),
    ):
        data: JsonObject = {
            "method": method,
            "endpoint": "/jobs",
            "status": status,
            "duration_ms": duration_ms,
        }
        signals.emit(Signal.API_REQUEST, data=data)
    value = metrics.registry.get_sample_value
    counts = [
        value("ductile_http_requests_total", {"method": method, "endpoint": "/jobs", "status": status})
        for method, status in (("GET", "200"), ("GET", "404"), ("HEAD", "200"))
    ]
    assert counts == [2, 1, 1]
    assert value("ductile_http_request_seconds_sum", {"endpoint": "/jobs"}) == 2.006
    assert value("ductile_http_request_seconds_bucket", {"endpoint": "/jobs", "le": "0.0025"}) == 2
    assert value("ductile_http_request_seconds_count", {"endpoint": "/jobs"}) == 4


def test_requests_that_a_listener_refused_are_counted_by_reason() -> None:
    """Requests that the listener refuses reach no application, and few log lines report them."""
    metrics, signals = start_metrics()
    for count in (1, 4999):
        refused: JsonObject = {"too_many_connections": count, "malformed": 1}
        signals.emit(Signal.LISTENER_REFUSED, data={"listener": "api", "refused": refused, "peer": None})
    value = metrics.registry.get_sample_value
    assert (
        value("ductile_listener_refused_total", {"listener": "api", "reason": "too_many_connections"}) == 5000
    )
    assert value("ductile_listener_refused_total", {"listener": "api", "reason": "malformed"}) == 2


def test_the_number_of_timed_jobs_is_bounded() -> None:
    """Jobs that never end use bounded memory: the oldest are no longer timed."""
    metrics, signals = start_metrics()
    for number in range(MAX_TIMED_JOBS + 10):
        signals.emit(Signal.JOB_CLAIMED, plugin="echo", job_id=str(number))
    for number in (MAX_TIMED_JOBS + 9, 10, 9):
        signals.emit(Signal.JOB_STARTED, plugin="echo", job_id=str(number))
    assert metrics.registry.get_sample_value("ductile_job_spawn_seconds_count", {"plugin": "echo"}) == 2


def test_clients_cannot_create_labels() -> None:
    """Paths without an endpoint and unknown methods count under one name."""
    metrics, signals = start_metrics()
    for number in range(100):
        data: JsonObject = {
            "method": f"M{number}",
            "path": f"/{number}",
            "endpoint": None,
            "status": 404,
            "duration_ms": 1.0,
        }
        signals.emit(Signal.API_REQUEST, data=data)
    labels = {"method": "any", "endpoint": "none", "status": "404"}
    assert metrics.registry.get_sample_value("ductile_http_requests_total", labels) == 100


def test_every_metric_is_rendered() -> None:
    """Every described metric is rendered."""
    metrics = Metrics(lambda: 0.0)
    queue = {"ready": 1, "waiting": 2, "running": 3}
    text = metrics.render(version="x", queue=queue, breakers=[("echo", "poll", "open")], streams=4).decode()
    for name, kind, _labels, _help in descriptions_of(metrics):
        assert f"# TYPE {name} {kind}" in text
    assert 'ductile_breaker_state{command="poll",plugin="echo"} 2.0' in text
    assert 'ductile_queue_depth{state="waiting"} 2.0' in text
