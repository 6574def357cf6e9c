# ruff: noqa: COM819, E501
# fmt: off
"""The HTTP routes of operations, for --url. Written by `make docs` from the table: do not edit."""

from __future__ import annotations

from typing import NamedTuple


class Route(NamedTuple):
    method: str
    #: The one with the most parameters first.
    paths: tuple[str, ...]
    #: The fields that a POST has in its query; the others are in the body.
    query: tuple[str, ...] = ()
    #: Whether `message` is part of the response. HTTP adds one to all others.
    own_message: bool = False


ROUTES = {
    "config.apply": Route("POST", ("/config/apply", )),
    "config.changes": Route("GET", ("/config/changes", )),
    "config.diff": Route("GET", ("/config/diff", )),
    "config.history": Route("GET", ("/config/history", )),
    "config.plan_change": Route("POST", ("/config/plan", )),
    "config.rollback": Route("POST", ("/config/rollback", )),
    "config.value": Route("GET", ("/config/value", )),
    "event.explain": Route("POST", ("/event/explain", )),
    "event.send": Route("POST", ("/event", ), own_message=True),
    "job.cancel": Route("POST", ("/job/{job_id}/cancel", )),
    "job.cancel_many": Route("POST", ("/jobs/cancel", )),
    "job.explain": Route("GET", ("/job/{job_id}/explain", )),
    "job.export": Route("GET", ("/job/{job_id}/export", )),
    "job.follow": Route("GET", ("/job/{job_id}/follow", )),
    "job.list": Route("GET", ("/jobs", )),
    "job.logs": Route("GET", ("/job/{job_id}/log", )),
    "job.rerun": Route("POST", ("/job/{job_id}/rerun", )),
    "job.retry": Route("POST", ("/job/{job_id}/retry", )),
    "job.retry_from_step": Route("POST", ("/run/{job_id}/retry", )),
    "job.retry_many": Route("POST", ("/jobs/retry", )),
    "job.show": Route("GET", ("/job/{job_id}", "/jobs/{job_id}", )),
    "job.tree": Route("GET", ("/job/{job_id}/tree", )),
    "job.wait": Route("GET", ("/job/{job_id}/wait", )),
    "ledger.follow": Route("GET", ("/ledger/follow", )),
    "ledger.tail": Route("GET", ("/ledger", )),
    "log.figures": Route("GET", ("/analytics/summary", )),
    "log.follow": Route("GET", ("/job-logs/follow", )),
    "log.list": Route("GET", ("/job-logs", )),
    "log.series": Route("GET", ("/analytics/series", )),
    "pipeline.explain": Route("GET", ("/run/{job_id}/explain", )),
    "pipeline.follow": Route("GET", ("/run/{job_id}/follow", )),
    "pipeline.graph": Route("GET", ("/pipeline/{pipeline}/graph", )),
    "pipeline.list": Route("GET", ("/pipelines", )),
    "pipeline.record": Route("GET", ("/pipeline/{pipeline}/cases", )),
    "pipeline.run": Route("POST", ("/pipeline/{pipeline}", ), query=("async", "result", "strict", ), own_message=True),
    "pipeline.show": Route("GET", ("/pipeline/{pipeline}", )),
    "pipeline.test": Route("POST", ("/pipeline/{pipeline}/test", )),
    "pipeline.trigger": Route("POST", ("/trigger/{plugin}/{command}", ), query=("async", "result", "strict", ), own_message=True),
    "plugin.facts": Route("GET", ("/plugin/{plugin}/facts", )),
    "plugin.health": Route("GET", ("/plugins/unhealthy", )),
    "plugin.list": Route("GET", ("/plugins", )),
    "plugin.pending": Route("GET", ("/plugin/{plugin}/pending", )),
    "plugin.replay": Route("POST", ("/replay/{plugin}", )),
    "plugin.run": Route("POST", ("/plugin/{plugin}/{command}", "/plugin/{plugin}", )),
    "plugin.show": Route("GET", ("/plugin/{plugin}", )),
    "plugin.state": Route("GET", ("/plugin/{plugin}/state", )),
    "plugin.stats": Route("GET", ("/analytics/plugins", )),
    "queue.figures": Route("GET", ("/analytics/queue", )),
    "queue.list": Route("GET", ("/queue", )),
    "queue.purge": Route("POST", ("/queue/purge", )),
    "queue.status": Route("GET", ("/queue/status", )),
    "run.start": Route("POST", ("/run/{name}", )),
    "schedule.explain": Route("GET", ("/schedule/{plugin}/{schedule}/explain", "/schedule/{plugin}/explain", )),
    "schedule.history": Route("GET", ("/schedule/{plugin}/{schedule}/history", "/schedule/{plugin}/history", )),
    "schedule.list": Route("GET", ("/schedules", )),
    "schedule.next": Route("GET", ("/schedules/next", )),
    "schedule.pause": Route("POST", ("/schedule/{plugin}/{schedule}/pause", "/schedule/{plugin}/pause", )),
    "schedule.resume": Route("POST", ("/schedule/{plugin}/{schedule}/resume", "/schedule/{plugin}/resume", )),
    "schedule.run": Route("POST", ("/schedule/{plugin}/{schedule}/run", "/schedule/{plugin}/run", )),
    "system.breaker": Route("GET", ("/system/breaker/{plugin}", )),
    "system.config": Route("GET", ("/config/view", )),
    "system.digest": Route("GET", ("/system/digest", )),
    "system.doctor": Route("GET", ("/system/doctor", )),
    "system.health": Route("POST", ("/system/health", )),
    "system.reload": Route("POST", ("/system/reload", )),
    "system.reset": Route("POST", ("/system/breaker/{plugin}/reset", )),
    "system.selfcheck": Route("GET", ("/system/selfcheck", )),
    "system.status": Route("GET", ("/system/status", )),
    "system.sweep": Route("POST", ("/system/sweep", )),
    "system.topology": Route("GET", ("/topology", )),
    "token.create": Route("POST", ("/tokens", )),
    "token.list": Route("GET", ("/tokens", )),
    "token.revoke": Route("POST", ("/tokens/{name}/revoke", )),
    "token.rotate": Route("POST", ("/tokens/{name}/rotate", )),
    "token.show": Route("GET", ("/tokens/{name}", )),
    "tool.call": Route("POST", ("/tools/{tool}", )),
    "tool.list": Route("GET", ("/tools", )),
    "webhook.deliveries": Route("GET", ("/webhooks/deliveries", )),
    "webhook.list": Route("GET", ("/webhooks", )),
    "webhook.resend": Route("POST", ("/webhooks/deliveries/{delivery_id}/resend", )),
    "webhook.resend_many": Route("POST", ("/deliveries/resend", )),
}
