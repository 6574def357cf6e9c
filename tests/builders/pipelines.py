"""Pipelines for tests: written as settings, compiled as the daemon compiles them, and started in a store."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.configs import a_config, a_discovery, a_manifest, loaded
from builders.jobs import a_new_job, an_event, ok
from builders.stores import LEASE, ROOMY, claim_all, settle, stored
from ductile.config.compile.compiler import compile_snapshot
from ductile.config.snapshot import Snapshot
from ductile.core.jobs.model import Job, JobReason, JobStatus, Outcome
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN, Graph
from ductile.core.runs.state import NewRun
from ductile.store.model.jobs import Accepted, ClaimedJob, EnqueueResult, Settled, Submission
from ductile.store.port import Store

#: Plugins that tests use; each takes `handle`.
PLUGINS = ("p", "q", "r", "source", "sink")
NO_WAIT = {"max_attempts": 2, "backoff_base": "1s", "backoff_max": "1s"}


def policy_of(*pipelines: Mapping[str, Any], **config: Any) -> Policy:
    """The rules of a configuration with these pipelines, through the loader and the compiler."""
    return snapshot_of(*pipelines, **config).policy


def snapshot_of(*pipelines: Mapping[str, Any], **config: Any) -> Snapshot:
    plugins = {name: {"retry": NO_WAIT} for name in PLUGINS} | config.pop("plugins", {})
    written = {"plugins": plugins, "pipelines": list(pipelines), **config}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        configuration = loaded(a_config(place, json.dumps(written)))
        return compile_snapshot(configuration, a_discovery(place, *map(a_manifest, plugins)))


def steps_policy(*steps: Mapping[str, Any], **config: Any) -> Policy:
    """The rules of a configuration whose one pipeline is `flow`, with these steps."""
    flow = {"name": "flow", "on": "go", "steps": list(steps)}
    return policy_of(flow, claiming("x", "y", "z"), **config)


def claiming(*names: str) -> dict[str, Any]:
    """A pipeline whose only purpose is that these names may be in the context of pipelines with `on`."""
    return {"name": "claims", "steps": [uses(baggage=dict.fromkeys(names, "payload.x"))]}


def graph_of(*steps: Mapping[str, Any], **config: Any) -> Graph:
    return steps_policy(*steps, **config).pipelines.by_name["flow"].graph


def uses(step_id: str | None = None, plugin: str = "p", **more: Any) -> dict[str, Any]:
    """A step; `if_` and `with_` stand for the words that Python keeps for itself."""
    named = {"id": step_id} if step_id is not None else {}
    return {**named, "uses": plugin, **{key.rstrip("_"): value for key, value in more.items()}}


def split(step_id: str, *branches: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": step_id, "split": list(branches), **{key.rstrip("_"): value for key, value in more.items()}}


def a_new_run(
    policy: Policy, payload: Mapping[str, Any] | None = None, *, pipeline: str = "flow", **job: Any
) -> NewRun:
    event = an_event("go", payload=dict(payload or {}))
    given = {"payload": None, "max_attempts": 1, "source_event_id": event.id} | job
    return NewRun(
        job=a_new_job(RUN_PLUGIN, pipeline, **given),
        graph=policy.pipelines.by_name[pipeline].graph,
        event=event,
    )


async def enqueue_run(store: Store, policy: Policy, run: NewRun) -> EnqueueResult:
    (answer,) = await store.enqueue(Submission(runs=(run,), event=run.event, policy=policy))
    return answer


async def begin_run(
    store: Store, policy: Policy, payload: Mapping[str, Any] | None = None, **given: Any
) -> str:
    """Start a run that must be accepted; its id."""
    run = a_new_run(policy, payload, **given)
    answer = await enqueue_run(store, policy, run)
    assert isinstance(answer, Accepted), answer
    return answer.job_id


async def claims_by_step(store: Store) -> dict[str, ClaimedJob]:
    """Claim all that is ready; by the path of the step. For runs of which no step is there twice."""
    claims = await store.claim(owner="me", caps=ROOMY, limit=1000, lease=LEASE)
    found = {claim.job.step_path or claim.job.plugin: claim for claim in claims}
    assert len(found) == len(claims), [claim.job.step_path for claim in claims]
    return found


async def members(store: Store, run_id: str) -> dict[str, Job]:
    """The steps of a run by their path. For runs of which no step is there twice."""
    listed = await all_members(store, run_id)
    found = {job.step_path or "": job for job in listed}
    assert len(found) == len(listed), [job.step_path for job in listed]
    return found


async def all_members(store: Store, run_id: str) -> Sequence[Job]:
    record = await store.get_run(run_id)
    assert record is not None
    return record.steps


def payload_of(claim: ClaimedJob) -> dict[str, Any]:
    """The request that the plugin gets."""
    payload = claim.job.payload
    if payload is None and claim.event is not None:
        payload = claim.event.payload
    return dict(payload or {})


async def settle_step(store: Store, policy: Policy, step: str, outcome: Outcome | None = None) -> Settled:
    """Claim what is ready, which must be this step alone, and end it."""
    claims = await claims_by_step(store)
    assert list(claims) == [step]
    return await settle(store, claims[step].job, ok() if outcome is None else outcome, policy)


async def run_out(store: Store, policy: Policy, outcomes: dict[str, Outcome] | None = None) -> list[str]:
    """Run everything that becomes ready until nothing is; the paths of the steps in the order they ran."""
    ran: list[str] = []
    while claims := await claim_all(store):
        for claim in claims:
            ran.append(claim.job.step_path or claim.job.plugin)
            await settle(store, claim.job, (outcomes or {}).get(ran[-1], ok()), policy)
    return ran


async def end_of(store: Store, run_id: str) -> tuple[JobStatus, JobReason]:
    job = await stored(store, run_id)
    return job.status, job.reason
