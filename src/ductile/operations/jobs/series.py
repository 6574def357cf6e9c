"""Executions over time, for plots."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta

from ductile.core.jobs.time_series import split_period, summarise_span
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.errors import UsageError
from ductile.operations.context import OperationContext
from ductile.operations.jobs.queue import TimePercentiles, time_percentiles
from ductile.operations.plugins.lookup import refuse_unknown_plugin
from ductile.operations.response import Response, Timestamp, from_record, milliseconds, timestamp
from ductile.struct import Value, about

_DEFAULT_SPAN = timedelta(hours=24)
_MAX_SPANS = 200
#: The most executions of one span that are counted. This, `MAX_TIMED` and the number of spans bound the work.
MAX_COUNTED = 2_000
#: The most executions of one span whose times are read.
MAX_TIMED = 200


class ShowSeries(Value):
    since: Annotated[datetime | None, about("The beginning, such as 24h (the default) or 7d.")] = None
    plugin: Annotated[str | None, about("Only this plugin; `pipeline` for the runs of pipelines.")] = None
    buckets: Annotated[
        int, Meta(ge=1, le=_MAX_SPANS, description="Into how many equal spans the time is divided.")
    ] = 48


class SeriesBucket(Value):
    at: Annotated[Timestamp, about("The beginning of the span.")]
    executions: int
    failures: Annotated[int, about("Executions that failed or timed out.")]
    failures_by_plugin: dict[str, int]
    sampled: Annotated[
        bool,
        about(f"Whether it has more than {MAX_COUNTED} executions, and counts are estimated from these."),
    ]
    run_ms: Annotated[TimePercentiles | None, about("How long the processes ran.")]
    wait_ms: Annotated[TimePercentiles | None, about("From the submission of a job to its first start.")]


class ExecutionSeries(Response):
    since: Annotated[Timestamp, about("The beginning of the first span, which is a round instant.")]
    until: Timestamp
    bucket_ms: float
    executions: int
    failures: int
    buckets: list[SeriesBucket]


async def execution_series(context: OperationContext, request: ShowSeries) -> ExecutionSeries:
    """Return executions of plugins over time. Raises `NotFoundError` for a plugin that is unknown."""
    if request.plugin != RUN_PLUGIN:
        await refuse_unknown_plugin(context, request.plugin)
    until = context.now()
    since = until - _DEFAULT_SPAN if request.since is None else request.since
    if since >= until:
        raise UsageError("since is not before now", hint="It is a time in the past, such as 24h.")
    edges = split_period(since, until, request.buckets)
    spans = await context.store.sample_executions(edges, max_counted=MAX_COUNTED, max_timed=MAX_TIMED)
    plugins = {count.plugin for span in spans for count in span.counts}
    # Runs are left out, because the executions of their steps are counted.
    counted_plugins = plugins - {RUN_PLUGIN} if request.plugin is None else {request.plugin}
    points = [summarise_span(span, counted_plugins) for span in spans]
    return ExecutionSeries(
        since=timestamp(edges[0]),
        until=timestamp(until),
        bucket_ms=milliseconds(edges[1] - edges[0]),
        executions=sum(point.executions for point in points),
        failures=sum(point.failures for point in points),
        buckets=[
            from_record(
                SeriesBucket,
                point,
                failures_by_plugin=dict(point.failures_by_plugin),
                run_ms=time_percentiles(point.run_time),
                wait_ms=time_percentiles(point.wait),
            )
            for point in points
        ],
    )
