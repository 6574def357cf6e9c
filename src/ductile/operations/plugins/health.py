"""Health of plugins: their `health` commands, run now or earlier, and a failed `init`.

An unhealthy plugin still runs jobs: `unhealthy` is only a label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from ductile.config.snapshot import PluginInstance
from ductile.core.ids import make_id, make_trace_id
from ductile.core.jobs.model import NewJob, SubmittedBy
from ductile.engine.reload.reloader import init_of
from ductile.operations.context import OperationContext
from ductile.operations.jobs.lookup import latest_execution
from ductile.operations.plugins.lookup import find_plugin
from ductile.operations.request import NoFields
from ductile.operations.response import Id, Response, Timestamp, timestamp
from ductile.store.model.jobs import InitKey, InitRecord, InitStatus
from ductile.store.model.records import LogFilter, LogRow
from ductile.struct import Value, about

if TYPE_CHECKING:
    from ductile.engine.engine import Engine

#: The status of a check that could not be started now.
NOT_CHECKED = "not_asked"
#: A process is killed at its deadline, which takes a moment longer.
_KILL_SECONDS = 20.0


class PluginHealth(Value):
    plugin: str
    job_id: Id | None
    status: Annotated[str, about("Of the job; `not_asked` if the plugin was too busy.")]
    error: str | None


class CheckHealth(Value):
    plugin: Annotated[str | None, about("Only this plugin.")] = None


class HealthReport(Response):
    health: tuple[PluginHealth, ...]


class FailedInit(Value):
    """The `init` that a plugin is marked unhealthy for."""

    job_id: Id | None
    error: str | None
    at: Timestamp


class UnhealthyPlugins(Response):
    unhealthy: Annotated[dict[str, FailedInit], about("By plugin name.")]


async def check_health(context: OperationContext, request: CheckHealth) -> HealthReport:
    """Run the `health` command of every plugin that has one, or of one plugin, and wait for all results."""
    engine = context.require_engine()
    if request.plugin is not None:
        find_plugin(context.snapshot(), request.plugin)
    checks = (
        engine.single_flight(f"health of {plugin.name}", partial(_check_one, context, engine, plugin))
        for plugin in _plugins_with_health_check(context)
        if request.plugin in (None, plugin.name)
    )
    return HealthReport(health=tuple(await asyncio.gather(*checks)))


async def last_health_checks(context: OperationContext) -> dict[str, LogRow | None]:
    """Return the latest health check of every plugin that has the command, by plugin name."""
    return {
        plugin.name: await latest_execution(context, LogFilter(plugin=plugin.name, command="health"))
        for plugin in _plugins_with_health_check(context)
    }


def _plugins_with_health_check(context: OperationContext) -> Iterator[PluginInstance]:
    """Yield the plugins that can run and have a `health` command."""
    for plugin in context.snapshot().plugins.values():
        installed = plugin.installed
        if plugin.runnable and installed is not None and "health" in installed.manifest.commands:
            yield plugin


async def _check_one(context: OperationContext, engine: Engine, plugin: PluginInstance) -> PluginHealth:
    """Run the check outside the queue, with one attempt: a retry would say nothing about the present.

    A plugin that is not `concurrency_safe` is not checked while it runs as many jobs as it may.
    """
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=plugin.name,
        command="health",
        submitted_by=SubmittedBy.CORE,
        max_attempts=1,
        trace_id=make_trace_id(context.rng),
    )
    is_safe = plugin.installed is None or plugin.installed.manifest.concurrency_safe
    with engine.waiters.waiting_for(job.id) as ended:
        if not await engine.dispatcher.start_outside_queue(
            job, limit=None if is_safe else plugin.parallelism
        ):
            return PluginHealth(plugin=plugin.name, job_id=None, status=NOT_CHECKED, error=None)
        await asyncio.wait({ended}, timeout=plugin.timeout_for("health").total_seconds() + _KILL_SECONDS)
    stored = await context.store.get_job(job.id)
    return PluginHealth(
        plugin=plugin.name,
        job_id=job.id,
        status="unknown" if stored is None else stored.status.value,
        error=None if stored is None else stored.last_error,
    )


async def unhealthy_plugins(context: OperationContext) -> dict[str, InitRecord]:
    """Return the failed init of each unhealthy plugin, by plugin name."""
    records = await context.store.list_inits()
    unhealthy = {}
    for name, plugin in context.snapshot().plugins.items():
        init = init_of(plugin, now=context.now(), rng=context.rng)
        failed = None if init is None else decide_failed_init(records, init.key)
        if failed is not None:
            unhealthy[name] = failed
    return unhealthy


def decide_failed_init(records: Sequence[InitRecord], key: InitKey) -> InitRecord | None:
    """Return the failed init that marks a plugin, as it is installed and configured now.

    Until the init of this version has ended, the last init of another version counts. A version whose init
    succeeded earlier is healthy when it is installed again.
    """
    ended = [
        record
        for record in records
        if record.key.plugin == key.plugin and record.status is not InitStatus.PENDING
    ]
    of_version = [record for record in ended if record.key == key]
    last = of_version[0] if of_version else max(ended, key=lambda record: record.updated_at, default=None)
    return last if last is not None and last.status is InitStatus.FAILED else None


def failed_init(record: InitRecord) -> FailedInit:
    return FailedInit(job_id=record.job_id, error=record.error, at=timestamp(record.updated_at))


async def list_unhealthy_plugins(context: OperationContext, _request: NoFields) -> UnhealthyPlugins:
    """Return the plugins whose last `init` failed."""
    unhealthy = await unhealthy_plugins(context)
    return UnhealthyPlugins(unhealthy={name: failed_init(record) for name, record in unhealthy.items()})
