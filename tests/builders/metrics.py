"""The metrics of `Metrics`, read from the objects of the library."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from ductile.telemetry.metrics import Metrics


def descriptions_of(metrics: Metrics) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return name, kind, labels and help text of each metric, in the order of their creation."""
    return [
        (
            # The library keeps the name of a counter without its suffix.
            f"{metric._name}_total" if isinstance(metric, Counter) else metric._name,
            metric._type,
            tuple(metric._labelnames),
            metric._documentation,
        )
        for metric in vars(metrics).values()
        if isinstance(metric, Counter | Gauge | Histogram)
    ]
