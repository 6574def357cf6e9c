"""The queue compared with a model of it after each of many random verbs.

The model implements docs/reference/jobs.md in a few dictionaries, without SQL and transactions.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from builders.jobs import Clock, a_new_job, failed, ok, timed_out
from builders.stores import LEASE, STORE_KINDS, StoreFactory, StoreKind, submit
from ductile.core.jobs.admission import Caps
from ductile.core.jobs.failures import RetryPolicy
from ductile.core.jobs.model import TERMINAL, Hold, Job, JobReason, JobStatus, Outcome, Requeued
from ductile.core.policy import PluginPolicy, Policy
from ductile.store.model.jobs import (
    Accepted,
    CancelStatus,
    ClaimedJob,
    Deduplicated,
    NotSettled,
    RetryResult,
    Settled,
)
from ductile.store.model.records import JobFilter
from ductile.store.port import Store

WAIT = timedelta(seconds=20)
WINDOW = timedelta(seconds=100)
EVEN = PluginPolicy(retry=RetryPolicy(backoff_base=WAIT, backoff_max=WAIT))
POLICY = Policy(plugins={"a": EVEN, "b": EVEN})

OUTCOMES: dict[str, Outcome] = {
    "ok": ok(),
    "failed": failed(),
    "permanent": failed(permanent=True),
    "timed_out": timed_out(),
    "interrupted": Requeued(),
}
Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)
class ModelJob:
    id: str
    plugin: str
    key: str | None
    max_attempts: int
    status: JobStatus = JobStatus.QUEUED
    hold: Hold | None = None
    attempt: int = 1
    execution: int = 0
    suspect: bool = False
    cancelled: bool = False
    due: datetime | None = None
    ended_at: datetime | None = None

    @property
    def active(self) -> bool:
        return self.status is JobStatus.RUNNING or (self.status is JobStatus.QUEUED and self.hold is None)


@dataclass(slots=True)
class Model:
    """Jobs in order of their sequence, and the effect of each verb."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)

    def same_key(self, job: ModelJob) -> list[ModelJob]:
        return [
            other
            for other in self.jobs.values()
            if job.key is not None and (other.key, other.plugin) == (job.key, job.plugin)
        ]

    def admit(self, job: ModelJob) -> None:
        """Make a job ready, unless its key is held or another suspect is active."""
        job.due = None
        if any(other.active for other in self.same_key(job) if other is not job):
            job.hold = Hold.KEY
        elif job.suspect and any(
            other.active and other.suspect for other in self.jobs.values() if other is not job
        ):
            job.hold = Hold.SUSPECT
        else:
            job.hold = None

    def release_waiting(self, job: ModelJob, *, held: bool, was_suspect: bool) -> None:
        """Release the oldest job that waited for a job which has stopped running or ended."""
        waiting = [other for other in self.same_key(job) if other.hold is Hold.KEY] if held else []
        suspects = [other for other in self.jobs.values() if was_suspect and other.hold is Hold.SUSPECT]
        for line in (waiting, suspects):
            for other in line:
                waited_for = other.hold
                self.admit(other)
                if other.hold in (None, waited_for):
                    break

    def start(self, job: ModelJob) -> None:
        job.status = JobStatus.RUNNING
        job.execution += 1

    def end(self, job: ModelJob, status: JobStatus, now: datetime) -> None:
        held, was_suspect = job.active, job.suspect
        job.status, job.hold, job.due, job.suspect, job.ended_at = status, None, None, False, now
        self.release_waiting(job, held=held, was_suspect=was_suspect)

    def wait(self, job: ModelJob, now: datetime, *, suspect: bool) -> None:
        was_suspect = job.suspect
        job.status, job.hold, job.due, job.suspect = JobStatus.QUEUED, Hold.RETRY, now + WAIT, suspect
        job.attempt += 1
        self.release_waiting(job, held=True, was_suspect=was_suspect)

    def settle(self, job: ModelJob, outcome: str, now: datetime) -> None:
        if job.cancelled:
            self.end(job, JobStatus.DEAD, now)
        elif outcome == "ok":
            self.end(job, JobStatus.SUCCEEDED, now)
        elif outcome == "permanent":
            self.end(job, JobStatus.FAILED, now)
        elif outcome == "interrupted":
            job.status = JobStatus.QUEUED
        elif job.attempt >= job.max_attempts:
            self.end(job, JobStatus.DEAD, now)
        else:
            self.wait(job, now, suspect=outcome == "orphaned")

    def eligible(self, caps: Caps, limit: int) -> list[ModelJob]:
        running = [job for job in self.jobs.values() if job.status is JobStatus.RUNNING]
        counts = {plugin: sum(job.plugin == plugin for job in running) for plugin in ("a", "b")}
        chosen: list[ModelJob] = []
        for job in self.jobs.values():
            full = len(running) + len(chosen) >= caps.workers or len(chosen) >= limit
            ready = job.status is JobStatus.QUEUED and job.hold is None
            if ready and not full and counts[job.plugin] < caps.of(job.plugin):
                counts[job.plugin] += 1
                chosen.append(job)
        return chosen


class QueueMachine(RuleBasedStateMachine):
    kind: ClassVar[StoreKind]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.factory = StoreFactory(kind=self.kind, directory=Path(self.directory.name), clock=Clock())
        self.clock = self.factory.clock
        self.store: Store = self.run(self.factory.open())
        self.model = Model()
        self.past: list[Job] = []
        self.claimed: dict[str, Job] = {}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    def teardown(self) -> None:
        try:
            self.run(self.factory.check_invariants())
        finally:
            self.run(self.factory.close())
            self.runner.close()
            self.directory.cleanup()

    def pick(self, data: st.DataObject, *statuses: JobStatus) -> ModelJob:
        jobs = [job for job in self.model.jobs.values() if not statuses or job.status in statuses]
        return data.draw(st.sampled_from(jobs))

    def has(self, *statuses: JobStatus) -> bool:
        return any(job.status in statuses for job in self.model.jobs.values())

    # -- verbs

    @initialize()
    def two_to_begin_with(self) -> None:
        for plugin in ("a", "b"):
            self.enqueue(plugin, None, False, 2)

    @rule(
        plugin=st.sampled_from(["a", "b"]),
        key=st.sampled_from([None, "k", "l"]),
        override=st.booleans(),
        attempts=st.integers(1, 3),
    )
    def enqueue(self, plugin: str, key: str | None, override: bool, attempts: int) -> None:
        new = a_new_job(
            plugin,
            dedupe_key=key,
            dedupe_ttl=WINDOW.total_seconds() if override and key else None,
            max_attempts=attempts,
        )
        job = ModelJob(id=new.id, plugin=plugin, key=key, max_attempts=attempts)
        same = self.model.same_key(job)
        live = {other.id for other in same if other.status not in TERMINAL} if override else set()
        recent = {
            other.id
            for other in same
            if other.status is JobStatus.SUCCEEDED
            and other.ended_at is not None
            and self.clock.now - other.ended_at <= WINDOW
        }
        (result,) = self.run(submit(self.store, new, dedupe_window=WINDOW))
        if live or recent:
            assert isinstance(result, Deduplicated)
            assert result.job_id in (live or recent)
            return
        self.model.admit(job)
        self.model.jobs[job.id] = job
        assert isinstance(result, Accepted)
        assert result.ready == (job.hold is None)

    @rule(limit=st.integers(0, 4), workers=st.integers(0, 5), cap=st.integers(0, 3))
    def claim(self, limit: int, workers: int, cap: int) -> None:
        caps = Caps(workers=workers, plugins={"a": cap})
        expected = self.model.eligible(caps, limit)

        async def take() -> tuple[ClaimedJob, ...]:
            return await self.store.claim(owner="me", caps=caps, limit=limit, lease=LEASE)

        claims = self.run(take())
        assert [claim.job.id for claim in claims] == [job.id for job in expected]
        for job, claim in zip(expected, claims, strict=True):
            self.model.start(job)
            self.claimed[job.id] = claim.job
            self.past.append(claim.job)

    @precondition(lambda self: self.has(JobStatus.RUNNING))
    @rule(data=st.data(), outcome=st.sampled_from(sorted(OUTCOMES)))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        job = self.pick(data, JobStatus.RUNNING)
        result = self.run(self.store.settle(self.claimed[job.id], OUTCOMES[outcome], POLICY))
        assert isinstance(result, Settled)
        self.model.settle(job, outcome, self.clock.now)

    @precondition(lambda self: self.past)
    @rule(data=st.data(), outcome=st.sampled_from(sorted(OUTCOMES)))
    def settle_something_past(self, data: st.DataObject, outcome: str) -> None:
        past = data.draw(st.sampled_from(self.past))
        job = self.model.jobs[past.id]
        if job.status is JobStatus.RUNNING and job.execution == past.execution:
            return
        result = self.run(self.store.settle(past, OUTCOMES[outcome], POLICY))
        assert isinstance(result, NotSettled)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.pick(data)
        result = self.run(self.store.cancel(job.id, POLICY)).status
        if job.status in TERMINAL:
            assert result is CancelStatus.ALREADY_ENDED
        elif job.status is JobStatus.RUNNING:
            assert result is CancelStatus.REQUESTED
            job.cancelled = True
        else:
            assert result is CancelStatus.CANCELLED
            self.model.end(job, JobStatus.DEAD, self.clock.now)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        job = self.pick(data)
        result = self.run(self.store.retry(job.id, POLICY))
        if job.status in (JobStatus.FAILED, JobStatus.DEAD):
            assert result is RetryResult.QUEUED
            job.attempt, job.cancelled, job.ended_at = 1, False, None
            job.status = JobStatus.QUEUED
            self.model.admit(job)
        else:
            succeeded = job.status is JobStatus.SUCCEEDED
            assert result is (RetryResult.SUCCEEDED if succeeded else RetryResult.NOT_ENDED)

    @rule(seconds=st.sampled_from([1, 10, 20, 21, 60]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds=seconds)

    @rule()
    def release(self) -> None:
        released = self.run(self.store.release_due())
        waiting = sorted(
            (job for job in self.model.jobs.values() if job.due is not None),
            key=lambda job: job.due or self.clock.now,
        )
        due = [job for job in waiting if job.due is not None and job.due <= self.clock.now]
        for job in due:
            self.model.admit(job)
        due_times = [job.due for job in waiting if job.due is not None]
        assert released.count == len(due)
        assert released.next_due_at == min(due_times, default=None)

    @rule()
    def crash(self) -> None:
        """Reopen the store, and recover the running jobs."""
        self.store = self.run(self.factory.reopen())
        running = [job for job in self.model.jobs.values() if job.status is JobStatus.RUNNING]
        recovery = self.run(self.store.recover(POLICY))
        assert [job.id for job in recovery.jobs] == [job.id for job in running]
        for job in running:
            self.model.settle(job, "orphaned", self.clock.now)

    @rule(plugin=st.sampled_from(["a", "b"]), keep=st.booleans())
    def end_queued(self, plugin: str, keep: bool) -> None:
        ended = [
            job
            for job in self.model.jobs.values()
            if job.status is JobStatus.QUEUED and (job.plugin == plugin) != keep
        ]
        moved = self.run(self.store.end_queued(JobReason.PURGED, POLICY, plugins=[plugin], keep=keep))
        assert [job.id for job in moved.jobs] == [job.id for job in ended]
        for job in ended:
            self.model.end(job, JobStatus.DEAD, self.clock.now)

    # -- the comparison

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        rows = self.run(self.store.list_jobs(JobFilter(), limit=200)).rows
        stored = [
            (job.id, job.status, job.hold, job.attempt, job.execution, job.next_retry_at, job.suspect)
            for job in reversed(rows)
        ]
        assert stored == [
            (job.id, job.status, job.hold, job.attempt, job.execution, job.due, job.suspect)
            for job in list(self.model.jobs.values())[-200:]
        ]


@pytest.mark.parametrize("database", STORE_KINDS, ids=lambda kind: kind.name)
def test_the_store_behaves_as_the_model(database: StoreKind) -> None:
    """The verbs come in any order, also with restarts."""

    class Machine(QueueMachine):
        kind = database

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
