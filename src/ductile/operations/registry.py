"""Every operation that can be asked for by name, whichever surface asks.

Each is loaded when it is first asked for: a daemon that starts has no use for the doctor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module

from ductile.core.json_values import JsonObject
from ductile.operations.desk import Desk

Operation = Callable[[Desk, JsonObject], Awaitable[JsonObject]]


def _found(place: str) -> Operation:
    """The function at `module:name` of this package."""
    module, _, name = place.partition(":")

    async def operation(desk: Desk, given: JsonObject) -> JsonObject:
        loaded: Operation = getattr(import_module(f"ductile.operations.{module}"), name)
        return await loaded(desk, given)

    operation.__qualname__ = place
    return operation


OPERATIONS: Mapping[str, Operation] = {
    "plugin.run": _found("jobs:submit_from_cli"),
    "plugin.state": _found("plugin_records:plugin_state"),
    "plugin.health": _found("plugin_health:plugin_health"),
    "plugin.pending": _found("draining:pending_work"),
    "plugin.drain": _found("draining:drain_plugin"),
    "plugin.facts": _found("plugin_records:plugin_facts"),
    "job.list": _found("jobs:list_jobs"),
    "job.show": _found("jobs:show_job"),
    "job.tree": _found("jobs:job_tree"),
    "job.explain": _found("explain_job:explain_job"),
    "job.logs": _found("jobs:job_logs"),
    "job.wait": _found("jobs:wait_for_job"),
    "job.cancel": _found("jobs:cancel_job"),
    "job.retry": _found("jobs:retry_job"),
    "job.rerun": _found("rerun:retry_from_cli"),
    "pipeline.run": _found("pipelines:run_from_cli"),
    "pipeline.list": _found("pipelines:list_pipelines"),
    "pipeline.follow": _found("pipelines:follow_run"),
    "pipeline.explain": _found("pipelines:explain_run"),
    "event.send": _found("pipelines:send_from_cli"),
    "log.list": _found("log:list_log"),
    "log.follow": _found("log:follow_log"),
    "ledger.tail": _found("log:tail_ledger"),
    "ledger.follow": _found("log:follow_ledger"),
    "queue.status": _found("queue:queue_status"),
    "queue.list": _found("queue:queue_list"),
    "queue.purge": _found("queue:queue_purge"),
    "schedule.list": _found("schedules:list_schedules"),
    "schedule.next": _found("schedules:schedule_next"),
    "schedule.history": _found("schedules:schedule_history"),
    "schedule.explain": _found("explain_schedule:explain_schedule"),
    "schedule.pause": _found("schedules:pause_schedule"),
    "schedule.resume": _found("schedules:resume_schedule"),
    "schedule.run": _found("schedules:run_schedule"),
    "webhook.list": _found("webhooks:list_webhooks"),
    "webhook.deliveries": _found("webhooks:list_deliveries"),
    "webhook.resend": _found("webhooks:resend_delivery"),
    "system.status": _found("system:status"),
    "system.health": _found("system:check_health"),
    "system.doctor": _found("doctor:doctor"),
    "system.selfcheck": _found("selfcheck:selfcheck"),
    "system.sweep": _found("sweeping:sweep"),
    "system.reload": _found("system:reload"),
    "system.stop": _found("system:stop"),
    "system.breaker": _found("system:show_breaker"),
    "system.reset": _found("system:reset_breaker"),
}


#: Those that only read: they are answered beside whoever writes.
LOOKING = frozenset(
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


def at(desk: Desk) -> Mapping[str, Callable[[JsonObject], Awaitable[JsonObject]]]:
    """The operations, each bound to a desk."""
    return {name: partial(operation, desk) for name, operation in OPERATIONS.items()}
