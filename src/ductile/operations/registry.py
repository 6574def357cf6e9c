"""Every operation that can be asked for by name, whichever surface asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from ductile.core.jobs import SubmittedBy
from ductile.core.json_values import JsonObject
from ductile.operations import jobs, log, queue, schedules, system
from ductile.operations.desk import Desk

Operation = Callable[[Desk, JsonObject], Awaitable[JsonObject]]


async def _submit_from_cli(desk: Desk, given: JsonObject) -> JsonObject:
    return await jobs.submit(desk, jobs.Door(submitted_by=SubmittedBy.CLI), given)


OPERATIONS: Mapping[str, Operation] = {
    "plugin.run": _submit_from_cli,
    "job.list": jobs.list_jobs,
    "job.show": jobs.show_job,
    "job.tree": jobs.job_tree,
    "job.logs": jobs.job_logs,
    "job.wait": jobs.wait_for_job,
    "job.cancel": jobs.cancel_job,
    "job.retry": jobs.retry_job,
    "log.list": log.list_log,
    "log.follow": log.follow_log,
    "ledger.tail": log.tail_ledger,
    "queue.status": queue.queue_status,
    "queue.list": queue.queue_list,
    "queue.purge": queue.queue_purge,
    "schedule.list": schedules.list_schedules,
    "schedule.next": schedules.schedule_next,
    "schedule.history": schedules.schedule_history,
    "schedule.pause": schedules.pause_schedule,
    "schedule.resume": schedules.resume_schedule,
    "schedule.run": schedules.run_schedule,
    "system.status": system.status,
    "system.health": system.check_health,
    "system.reload": system.reload,
    "system.stop": system.stop,
    "system.breaker": system.show_breaker,
    "system.reset": system.reset_breaker,
}


def at(desk: Desk) -> Mapping[str, Callable[[JsonObject], Awaitable[JsonObject]]]:
    """The operations, each bound to a desk."""
    return {name: partial(operation, desk) for name, operation in OPERATIONS.items()}
