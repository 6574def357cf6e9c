"""The metrics that a `Metrics` has, read from the library's objects."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from ductile.telemetry.metrics import Metrics


def described(metrics: Metrics) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name, kind, labels and help text of each metric, in the order of their creation."""
    return [
        (
            # The library keeps the name of a counter without its suffix.
            f"{each._name}_total" if isinstance(each, Counter) else each._name,
            each._type,
            tuple(each._labelnames),
            each._documentation,
        )
        for each in vars(metrics).values()
        if isinstance(each, Counter | Gauge | Histogram)
    ]
