"""Where a job came from: from what submitted it, through runs, routes and parents, down to itself."""

from __future__ import annotations

from ductile.core.jobs.model import Job, SubmittedBy
from ductile.core.json import JsonObject, JsonValue
from ductile.core.runs.graph import RUN_PLUGIN
from ductile.operations.context import OperationContext

#: Hops are limited, but a step comes from the step before it, and a run may have thousands. In a chain that
#: is longer than this the steps between are left out.
_LONGEST = 50

_DOORS: dict[SubmittedBy, str] = {
    SubmittedBy.SCHEDULER: "the scheduler",
    SubmittedBy.WEBHOOK: "a webhook",
    SubmittedBy.ROUTE: "an event",
    SubmittedBy.CLI: "the command line",
    SubmittedBy.API: "the HTTP API",
    SubmittedBy.HOOK: "the end of a job",
    SubmittedBy.MCP: "an agent",
    SubmittedBy.CORE: "Ductile itself",
}


async def origin_chain(context: OperationContext, job: Job) -> list[JsonValue]:
    """The first cause first, the job itself last."""
    links: list[JsonObject] = [_link(job)]
    at, seen = job, {job.id}
    while (above := at.parent_job_id) is not None and above not in seen:
        if at.run_id is not None and above != at.run_id and len(links) >= _LONGEST:
            links.append({"job_id": None, "what": "earlier steps, left out here", "status": None})
            above = at.run_id
        seen.add(above)
        parent = await context.store.job(above)
        if parent is None:
            links.append({"job_id": above, "what": "a job that is no longer kept", "status": None})
            break
        links.append(_link(parent))
        at = parent
    links.append({"job_id": None, "what": _door(at), "status": None})
    return [*reversed(links)]


def _link(job: Job) -> JsonObject:
    name = f"run of pipeline {job.command}" if job.plugin == RUN_PLUGIN else f"{job.plugin} {job.command}"
    step = f", step {job.step_path}" if job.step_path else ""
    return {"job_id": job.id, "what": f"{name}{step}", "status": job.status.value}


def _door(first: Job) -> str:
    detail = f" ({first.submitted_detail})" if first.submitted_detail else ""
    return f"{_DOORS[first.submitted_by]}{detail}, at {first.created_at:%Y-%m-%dT%H:%M:%SZ}"
