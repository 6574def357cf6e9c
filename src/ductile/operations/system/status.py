"""`system status`: the daemon, the queue, the running jobs and every plugin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from ductile.config.secrets import redact
from ductile.config.snapshot import PluginInstance
from ductile.core.auth_scopes import AccessLevel, AccessResource, auth_scope
from ductile.core.jobs.failures import BreakerState
from ductile.core.jobs.model import JobStatus
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonValue
from ductile.operations.context import OperationContext
from ductile.operations.jobs.documents import Execution, listed_execution
from ductile.operations.jobs.lookup import latest_execution
from ductile.operations.jobs.queue import QueueDepth, queue_status
from ductile.operations.plugins.health import FailedInit, failed_init, unhealthy_plugins
from ductile.operations.request import NoFields, Reveal
from ductile.operations.response import (
    OFFLINE_ONLY,
    Id,
    Response,
    Timestamp,
    from_record,
    milliseconds,
    timestamp,
)
from ductile.operations.schedules.manage import current_schedules
from ductile.operations.system.breakers import BreakerStatus
from ductile.operations.system.nodes import (
    NodeStatus,
    WaitingForNode,
    list_nodes,
    node_status,
    waiting_for_node,
)
from ductile.store.model.jobs import InitRecord
from ductile.store.model.records import LARGEST_PAGE, BreakerRow, JobFilter, LogFilter
from ductile.store.model.schedules import ScheduleEntry
from ductile.struct import Value, about


class ShowStatus(Value):
    reveal: Reveal = False


class DaemonStatus(Value):
    """The state of the daemon. Only `running` and `run_pid` are set if no daemon runs."""

    running: bool
    pid: int | UnsetType = UNSET
    version: str | UnsetType = UNSET
    uptime_seconds: float | UnsetType = UNSET
    config: str | UnsetType = UNSET
    ready: bool | UnsetType = UNSET
    stopping: bool | UnsetType = UNSET
    waiting_callers: int | UnsetType = UNSET
    run_pid: Annotated[
        int | UnsetType,
        Meta(
            description="The process that runs a job of this store without a daemon.",
            extra_json_schema={OFFLINE_ONLY: True},
        ),
    ] = UNSET


class RunningJob(Value):
    job_id: Id
    plugin: str
    command: str
    pipeline: str | None
    run_id: Id | None
    step: str | None
    started_at: Timestamp | None
    running_ms: float
    attempt: int
    max_attempts: int
    orphaned: bool


class PluginStatus(Value):
    name: str
    uses: str
    enabled: bool
    draining: bool
    refused: str | None
    state: Any
    last_run: Execution | None
    next_run: Timestamp | None
    paused: Annotated[bool, about("Whether all of its schedules are.")]
    health: LogStatus | None
    health_error: str | None
    breakers: dict[str, BreakerStatus]
    unhealthy: FailedInit | None


class SystemStatus(Response):
    daemon: DaemonStatus
    queue: QueueDepth
    running: tuple[RunningJob, ...]
    plugins: tuple[PluginStatus, ...]
    nodes: Annotated[
        tuple[NodeStatus, ...],
        about("The daemons that share the store, the leader first; empty if it is for one daemon."),
    ] = ()
    without_node: Annotated[
        tuple[WaitingForNode, ...], about("Queued jobs that no live node may run, by plugin.")
    ] = ()


async def show_status(context: OperationContext, request: ShowStatus) -> SystemStatus:
    """Return the state of the daemon, the queue, the running jobs, every plugin and the nodes."""
    if request.reveal:
        context.require_scope(auth_scope(AccessResource.SYSTEM, AccessLevel.WRITE))
    await context.store.check_files()
    breakers = await context.store.list_breakers()
    schedules = await current_schedules(context)
    failed_inits = await unhealthy_plugins(context)
    if context.engine is not None:
        daemon = from_record(DaemonStatus, context.engine.status(), running=True)
    else:
        daemon = DaemonStatus(running=False, run_pid=context.offline_runner_pid or UNSET)
    plugins = [
        await _plugin_status(
            context, plugin, breakers, schedules, failed_inits.get(plugin.name), reveal=request.reveal
        )
        for plugin in context.snapshot().plugins.values()
    ]
    return SystemStatus(
        daemon=daemon,
        queue=from_record(QueueDepth, await queue_status(context, NoFields())),
        running=await _running_jobs(context),
        plugins=problems_first(plugins),
        nodes=tuple(map(node_status, await list_nodes(context))),
        without_node=await waiting_for_node(context),
    )


async def _plugin_status(
    context: OperationContext,
    plugin: PluginInstance,
    breakers: Sequence[BreakerRow],
    schedules: Sequence[ScheduleEntry],
    init: InitRecord | None,
    *,
    reveal: bool,
) -> PluginStatus:
    stored = await context.store.plugin_state(plugin.name)
    last = await latest_execution(context, LogFilter(plugin=plugin.name, exclude_internal=True))
    health = await latest_execution(context, LogFilter(plugin=plugin.name, command="health"))
    own_schedules = [entry for entry in schedules if entry.plugin == plugin.name]
    next_runs = [entry.next_at for entry in own_schedules if entry.next_at and entry.paused_at is None]
    if context.engine is None:  # Overdue runs start with the next daemon, at an unknown time.
        next_runs = [at for at in next_runs if at > context.now()]
    state: JsonValue = {} if stored is None else stored.state
    return PluginStatus(
        name=plugin.name,
        uses=plugin.uses,
        enabled=plugin.enabled,
        draining=context.engine is not None and plugin.name in context.engine.draining,
        refused=None if plugin.refused is None else plugin.refused.reason,
        state=state if reveal else redact(state),
        last_run=None if last is None else listed_execution(last),
        next_run=timestamp(min(next_runs, default=None)),
        paused=bool(own_schedules) and all(entry.paused_at is not None for entry in own_schedules),
        health=None if health is None else health.status,
        health_error=None if health is None else health.error,
        breakers={
            row.command: from_record(BreakerStatus, row.breaker)
            for row in breakers
            if row.plugin == plugin.name
        },
        unhealthy=None if init is None else failed_init(init),
    )


async def _running_jobs(context: OperationContext) -> tuple[RunningJob, ...]:
    """Return running jobs and pipeline runs, the one that has run longest first; at most one page."""
    page = await context.store.list_jobs(JobFilter(status=JobStatus.RUNNING), limit=LARGEST_PAGE)
    jobs = sorted(page.rows, key=lambda job: job.started_at or job.created_at)
    pipelines: dict[str, str] = {}
    for run_id in {job.run_id for job in jobs if job.run_id is not None}:
        run = await context.store.get_job(run_id)
        pipelines[run_id] = "" if run is None else run.command
    now = context.now()
    return tuple(
        from_record(
            RunningJob,
            job,
            job_id=job.id,
            pipeline=None if job.run_id is None else pipelines[job.run_id],
            step=job.step_path,
            running_ms=milliseconds(max(timedelta(0), now - (job.started_at or job.created_at))),
            orphaned=context.is_orphaned(job),
        )
        for job in jobs
    )


def problems_first(plugins: Sequence[PluginStatus]) -> tuple[PluginStatus, ...]:
    """Return refused, broken or failing plugins first, disabled ones last; else in the configured order."""

    def rank(plugin: PluginStatus) -> int:
        if not plugin.enabled:
            return 3
        not_closed = any(breaker.state is not BreakerState.CLOSED for breaker in plugin.breakers.values())
        if plugin.refused is not None or plugin.unhealthy is not None or not_closed:
            return 0
        last_status = None if plugin.last_run is None else plugin.last_run.status
        return 1 if {last_status, plugin.health} - {None, LogStatus.SUCCEEDED} else 2

    return tuple(sorted(plugins, key=rank))
