"""Pipelines for tests: compiled from settings as in the daemon, and started in a store."""

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
    """Return the policy of a configuration with these pipelines."""
    return snapshot_of(*pipelines, **config).policy


def snapshot_of(*pipelines: Mapping[str, Any], **config: Any) -> Snapshot:
    plugins = {name: {"retry": NO_WAIT} for name in PLUGINS} | config.pop("plugins", {})
    settings = {"plugins": plugins, "pipelines": list(pipelines), **config}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        configuration = loaded(a_config(root, json.dumps(settings)))
        return compile_snapshot(configuration, a_discovery(root, *map(a_manifest, plugins)))


def steps_policy(*steps: Mapping[str, Any], **config: Any) -> Policy:
    """Return the policy of a configuration with a pipeline `flow` of these steps."""
    flow = {"name": "flow", "on": "go", "steps": list(steps)}
    return policy_of(flow, claiming("x", "y", "z"), **config)


def claiming(*names: str) -> dict[str, Any]:
    """Return a pipeline that claims these names, so that other pipelines may refer to them in `context`."""
    return {"name": "claims", "steps": [uses(baggage=dict.fromkeys(names, "payload.x"))]}


def graph_of(*steps: Mapping[str, Any], **config: Any) -> Graph:
    return steps_policy(*steps, **config).pipelines.by_name["flow"].graph


def uses(step_id: str | None = None, plugin: str = "p", **more: Any) -> dict[str, Any]:
    """Return a step. `if_` and `with_` stand for the keys that are keywords of Python."""
    named = {"id": step_id} if step_id is not None else {}
    return {**named, "uses": plugin, **{key.rstrip("_"): value for key, value in more.items()}}


def split(step_id: str, *branches: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": step_id, "split": list(branches), **{key.rstrip("_"): value for key, value in more.items()}}


def a_new_run(
    policy: Policy, payload: Mapping[str, Any] | None = None, *, pipeline: str = "flow", **job: Any
) -> NewRun:
    event = an_event("go", payload=dict(payload or {}))
    fields = {"payload": None, "max_attempts": 1, "source_event_id": event.id} | job
    return NewRun(
        job=a_new_job(RUN_PLUGIN, pipeline, **fields),
        graph=policy.pipelines.by_name[pipeline].graph,
        event=event,
    )


async def enqueue_run(store: Store, policy: Policy, run: NewRun) -> EnqueueResult:
    (result,) = await store.enqueue(Submission(runs=(run,), event=run.event, policy=policy))
    return result


async def begin_run(
    store: Store, policy: Policy, payload: Mapping[str, Any] | None = None, **fields: Any
) -> str:
    """Start a run that must be accepted, and return its id."""
    run = a_new_run(policy, payload, **fields)
    result = await enqueue_run(store, policy, run)
    assert isinstance(result, Accepted), result
    return result.job_id


async def claims_by_step(store: Store) -> dict[str, ClaimedJob]:
    """Claim all ready jobs and return them by the path of their step, which must be unique."""
    claims = await store.claim(owner="me", caps=ROOMY, limit=1000, lease=LEASE)
    by_step = {claim.job.step_path or claim.job.plugin: claim for claim in claims}
    assert len(by_step) == len(claims), [claim.job.step_path for claim in claims]
    return by_step


async def members(store: Store, run_id: str) -> dict[str, Job]:
    """Return the steps of a run by their path, which must be unique."""
    listed = await all_members(store, run_id)
    by_path = {job.step_path or "": job for job in listed}
    assert len(by_path) == len(listed), [job.step_path for job in listed]
    return by_path


async def all_members(store: Store, run_id: str) -> Sequence[Job]:
    record = await store.get_run(run_id)
    assert record is not None
    return record.steps


def payload_of(claim: ClaimedJob) -> dict[str, Any]:
    """Return the payload that the plugin gets: that of the job, or that of its event."""
    payload = claim.job.payload
    if payload is None and claim.event is not None:
        payload = claim.event.payload
    return dict(payload or {})


async def settle_step(store: Store, policy: Policy, step: str, outcome: Outcome | None = None) -> Settled:
    """Claim this step, which must be the only ready job, and settle it."""
    claims = await claims_by_step(store)
    assert list(claims) == [step]
    return await settle(store, claims[step].job, ok() if outcome is None else outcome, policy)


async def run_until_idle(
    store: Store, policy: Policy, outcomes: dict[str, Outcome] | None = None
) -> list[str]:
    """Run jobs until none is ready, and return the paths of their steps in order."""
    paths: list[str] = []
    while claims := await claim_all(store):
        for claim in claims:
            paths.append(claim.job.step_path or claim.job.plugin)
            await settle(store, claim.job, (outcomes or {}).get(paths[-1], ok()), policy)
    return paths


async def end_of(store: Store, run_id: str) -> tuple[JobStatus, JobReason]:
    job = await stored(store, run_id)
    return job.status, job.reason
