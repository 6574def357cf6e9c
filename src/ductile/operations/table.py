"""Every operation that can be asked for by name, whichever surface asks.

Each is loaded when it is first asked for: a daemon that starts has no use for the doctor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module

from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext

Operation = Callable[[OperationContext, JsonObject], Awaitable[JsonObject]]


def _found(place: str) -> Operation:
    """The function at `module:name` of this package."""
    module, _, name = place.partition(":")

    async def operation(context: OperationContext, given: JsonObject) -> JsonObject:
        loaded: Operation = getattr(import_module(f"ductile.operations.{module}"), name)
        return await loaded(context, given)

    operation.__qualname__ = place
    return operation


OPERATIONS: Mapping[str, Operation] = {
    "plugin.run": _found("jobs.query:submit_from_cli"),
    "plugin.state": _found("plugins.records:plugin_state"),
    "plugin.health": _found("plugins.health:plugin_health"),
    "plugin.pending": _found("plugins.draining:pending_work"),
    "plugin.drain": _found("plugins.draining:drain_plugin"),
    "plugin.facts": _found("plugins.records:plugin_facts"),
    "job.list": _found("jobs.query:list_jobs"),
    "job.show": _found("jobs.query:show_job"),
    "job.tree": _found("jobs.query:job_tree"),
    "job.explain": _found("diagnose.explain_job:explain_job"),
    "job.logs": _found("jobs.query:job_logs"),
    "job.wait": _found("jobs.query:wait_for_job"),
    "job.cancel": _found("jobs.query:cancel_job"),
    "job.retry": _found("jobs.query:retry_job"),
    "job.rerun": _found("runs.rerun:retry_from_cli"),
    "pipeline.run": _found("runs.pipelines:run_from_cli"),
    "pipeline.list": _found("runs.pipelines:list_pipelines"),
    "pipeline.follow": _found("runs.pipelines:follow_run"),
    "pipeline.explain": _found("runs.pipelines:explain_run"),
    "event.send": _found("runs.pipelines:send_from_cli"),
    "log.list": _found("jobs.log:list_log"),
    "log.follow": _found("jobs.log:follow_log"),
    "ledger.tail": _found("jobs.log:tail_ledger"),
    "ledger.follow": _found("jobs.log:follow_ledger"),
    "queue.status": _found("jobs.queue:queue_status"),
    "queue.list": _found("jobs.queue:queue_list"),
    "queue.purge": _found("jobs.queue:queue_purge"),
    "schedule.list": _found("schedules.control:list_schedules"),
    "schedule.next": _found("schedules.control:schedule_next"),
    "schedule.history": _found("schedules.control:schedule_history"),
    "schedule.explain": _found("diagnose.explain_schedule:explain_schedule"),
    "schedule.pause": _found("schedules.control:pause_schedule"),
    "schedule.resume": _found("schedules.control:resume_schedule"),
    "schedule.run": _found("schedules.control:run_schedule"),
    "webhook.list": _found("webhooks.incoming:list_webhooks"),
    "webhook.deliveries": _found("webhooks.incoming:list_deliveries"),
    "webhook.resend": _found("webhooks.incoming:resend_delivery"),
    "system.status": _found("system.status:status"),
    "system.health": _found("system.status:check_health"),
    "system.doctor": _found("diagnose.doctor:doctor"),
    "system.selfcheck": _found("system.maintenance:selfcheck"),
    "system.sweep": _found("system.maintenance:sweep"),
    "system.reload": _found("system.status:reload"),
    "system.stop": _found("system.status:stop"),
    "system.breaker": _found("system.status:show_breaker"),
    "system.reset": _found("system.status:reset_breaker"),
}


#: Those that only read: they are answered beside whoever writes.
READ_ONLY = frozenset(
    {
        *("plugin.state", "plugin.facts", "plugin.health", "plugin.pending"),
        *("job.list", "job.show", "job.tree", "job.explain", "job.logs", "job.wait"),
        *("pipeline.list", "pipeline.explain", "log.list", "ledger.tail"),
        *("queue.status", "queue.list"),
        *("schedule.list", "schedule.next", "schedule.history", "schedule.explain"),
        *("webhook.list", "webhook.deliveries"),
        *("system.status", "system.breaker", "system.selfcheck", "system.doctor"),
    }
)


def bind_operations(context: OperationContext) -> Mapping[str, Callable[[JsonObject], Awaitable[JsonObject]]]:
    """The operations, each bound to a desk."""
    return {name: partial(operation, context) for name, operation in OPERATIONS.items()}
