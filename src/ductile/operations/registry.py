"""Every operation that can be asked for by name, whichever surface asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from ductile.core.jobs import SubmittedBy
from ductile.core.json_values import JsonObject
from ductile.operations import jobs, log, pipelines, plugin_records, queue, rerun, schedules, system, webhooks
from ductile.operations.desk import Desk
from ductile.operations.doctor import doctor
from ductile.operations.explain_job import explain_job
from ductile.operations.explain_schedule import explain_schedule
from ductile.operations.intake import Door
from ductile.operations.selfcheck import selfcheck

Operation = Callable[[Desk, JsonObject], Awaitable[JsonObject]]


async def _submit_from_cli(desk: Desk, given: JsonObject) -> JsonObject:
    return await jobs.submit(desk, Door(submitted_by=SubmittedBy.CLI), given)


async def _rerun_from_cli(desk: Desk, given: JsonObject) -> JsonObject:
    return await rerun.retry_from_step(desk, Door(submitted_by=SubmittedBy.CLI), given)


OPERATIONS: Mapping[str, Operation] = {
    "plugin.run": _submit_from_cli,
    "plugin.state": plugin_records.plugin_state,
    "plugin.facts": plugin_records.plugin_facts,
    "job.list": jobs.list_jobs,
    "job.show": jobs.show_job,
    "job.tree": jobs.job_tree,
    "job.explain": explain_job,
    "job.logs": jobs.job_logs,
    "job.wait": jobs.wait_for_job,
    "job.cancel": jobs.cancel_job,
    "job.retry": jobs.retry_job,
    "job.rerun": _rerun_from_cli,
    "pipeline.run": pipelines.run_from_cli,
    "pipeline.list": pipelines.list_pipelines,
    "pipeline.follow": pipelines.follow_run,
    "pipeline.explain": pipelines.explain_run,
    "event.send": pipelines.send_from_cli,
    "log.list": log.list_log,
    "log.follow": log.follow_log,
    "ledger.tail": log.tail_ledger,
    "ledger.follow": log.follow_ledger,
    "queue.status": queue.queue_status,
    "queue.list": queue.queue_list,
    "queue.purge": queue.queue_purge,
    "schedule.list": schedules.list_schedules,
    "schedule.next": schedules.schedule_next,
    "schedule.history": schedules.schedule_history,
    "schedule.explain": explain_schedule,
    "schedule.pause": schedules.pause_schedule,
    "schedule.resume": schedules.resume_schedule,
    "schedule.run": schedules.run_schedule,
    "webhook.list": webhooks.list_webhooks,
    "webhook.deliveries": webhooks.list_deliveries,
    "webhook.resend": webhooks.resend_delivery,
    "system.status": system.status,
    "system.health": system.check_health,
    "system.doctor": doctor,
    "system.selfcheck": selfcheck,
    "system.reload": system.reload,
    "system.stop": system.stop,
    "system.breaker": system.show_breaker,
    "system.reset": system.reset_breaker,
}


def at(desk: Desk) -> Mapping[str, Callable[[JsonObject], Awaitable[JsonObject]]]:
    """The operations, each bound to a desk."""
    return {name: partial(operation, desk) for name, operation in OPERATIONS.items()}
