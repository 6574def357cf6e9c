"""Hooks: which one the end of a job fires, the pipelines it starts, and their payload."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders.jobs import START, a_job, some_rng
from builders.pipelines import policy_of, uses
from ductile.core.events.model import Hook
from ductile.core.events.routing import Fanout, JobEnding, fire_hooks
from ductile.core.jobs.model import Job, JobStatus, LedgerKind, SubmittedBy

POLICY = policy_of(
    *(
        {"name": hook.replace("job.", "on_"), "on-hook": hook, "steps": [uses()]}
        for hook in ("job.completed", "job.failed", "job.timed_out")
    ),
    {"name": "loud", "notify_on_complete": True, "steps": [uses()]},
    {"name": "quiet", "steps": [uses()]},
    plugins={"source": {"notify_on_complete": True}},
    service={"max_hops": 3},
)


def fire(job: Job, *, baggage: dict[str, Any] | None = None, **ending: Any) -> Fanout:
    defaults: dict[str, Any] = {
        "status": JobStatus.SUCCEEDED,
        "timed_out": False,
        "error": None,
        "attempt": 1,
    }
    hook_input = JobEnding(duration=timedelta(milliseconds=1500), **(defaults | ending))
    return fire_hooks(job, hook_input, baggage or {}, POLICY, START, some_rng())


@pytest.mark.parametrize(
    ("ending", "hook"),
    [
        ({}, Hook.COMPLETED),
        ({"status": JobStatus.FAILED}, Hook.FAILED),
        ({"status": JobStatus.DEAD}, Hook.FAILED),
        ({"status": JobStatus.DEAD, "timed_out": True}, Hook.TIMED_OUT),
    ],
)
def test_one_end_fires_one_hook(ending: dict[str, Any], hook: Hook) -> None:
    """The hook is `job.timed_out` if the last execution timed out, and otherwise `job.failed`; never both."""
    (run,) = fire(a_job("source"), **ending).runs
    assert (run.event.type, run.job.submitted_by, run.event_is_new) == (hook, SubmittedBy.HOOK, True)
    assert run.job.source_event_id == run.event.id


def test_a_hook_gets_these_values() -> None:
    job = a_job("source", "poll", hops=1, trace_id="t")
    (run,) = fire(job, status=JobStatus.DEAD, error="no luck", attempt=4).runs
    assert run.event.payload == {
        "job_id": job.id,
        "plugin": "source",
        "command": "poll",
        "status": "dead",
        "attempt": 4,
        "error": "no luck",
        "message": "source.poll dead: no luck",
        "text": "source.poll dead: no luck",
        "duration_ms": 1500.0,
        "pipeline": None,
    }
    assert (run.job.parent_job_id, run.job.hops, run.job.trace_id) == (job.id, 2, "t")


def test_a_hook_gets_these_values_of_a_run() -> None:
    (run,) = fire(a_job("pipeline", "loud")).runs
    assert (run.event.source, run.event.payload["pipeline"]) == ("loud", "loud")
    assert run.event.payload["message"] == "pipeline loud succeeded"


@pytest.mark.parametrize(
    "job",
    [
        a_job("p"),
        a_job("pipeline", "quiet"),
        a_job("pipeline", "gone"),
        a_job("source", parent_job_id="parent"),
        a_job("source", run_id="a run", step_path="a"),
        a_job("source", submitted_by=SubmittedBy.CORE),
        a_job("source", submitted_by=SubmittedBy.HOOK),
        a_job("pipeline", "loud", submitted_by=SubmittedBy.HOOK),
    ],
    ids=["not asked for", "quiet", "gone", "child", "step", "core", "hook's job", "hook's run"],
)
def test_these_jobs_fire_no_hook(job: Job) -> None:
    """Only root jobs and runs with `notify_on_complete` fire hooks; a job that a hook started fires none."""
    assert fire(job) == Fanout()


def test_a_run_need_not_be_the_root() -> None:
    assert len(fire(a_job("pipeline", "loud", parent_job_id="parent")).runs) == 1


@pytest.mark.parametrize(("hops", "dropped"), [(2, False), (3, True)])
def test_a_hook_that_goes_too_far_is_dropped_and_recorded(hops: int, dropped: bool) -> None:
    fanout = fire(a_job("source", hops=hops))
    assert (fanout.runs == ()) == dropped
    assert [entry.kind for entry in fanout.ledger] == ([LedgerKind.EVENT_DROPPED] if dropped else [])


def test_an_end_without_an_execution_has_no_identity_to_be_mistaken_for() -> None:
    """A job can end in the queue, be retried and end there again. These are two ends."""
    (executed,) = fire(a_job("source")).runs
    assert executed.job.origin is not None
    (queued,) = fire(a_job("source", status=JobStatus.QUEUED), status=JobStatus.DEAD).runs
    assert queued.job.origin is None
