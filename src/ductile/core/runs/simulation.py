"""Simulate a pipeline run in memory: real decisions, with responses from a function instead of processes.

This module decides nothing. Steps start and end by `ductile.core.runs.progress` and
`ductile.core.jobs.settlement`, as in the store; this module keeps the values that the store keeps in rows.
Steps run one after the other, the oldest first. The clock moves only when a retry is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from heapq import heappop, heappush
from random import Random
from typing import TypeAlias

from ductile.core.events.model import NewEvent
from ductile.core.expressions.regex import MatchBudget
from ductile.core.jobs.model import (
    TERMINAL,
    Job,
    JobReason,
    JobStatus,
    LedgerEntry,
    NewJob,
    Outcome,
    RunEnded,
    StepNotStarted,
)
from ductile.core.jobs.settlement import Settlement, SettleView, decide_settlement
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import Policy
from ductile.core.runs.progress import (
    combine_artifacts,
    final_results,
    last_job,
    start_first_steps,
    summarise_run,
    view_closable_scopes,
)
from ductile.core.runs.state import (
    JoinScope,
    NewRun,
    RunProgress,
    RunView,
    TokenPosition,
    TokenResult,
)
from ductile.struct import Value, replace

#: The most executions of one simulated run. With endless retries a run would never end.
MAX_EXECUTIONS = 20_000


class SimulationTooLongError(ValueError):
    """The run needs more executions than are allowed."""


class SimulatedExecution(Value):
    """A step that is about to run, with the input of its plugin."""

    job: Job
    event: NewEvent
    baggage: JsonObject

    @property
    def payload(self) -> JsonObject:
        """The step's payload: that of its event, unless `with` has made another."""
        return self.event.payload if self.job.payload is None else self.job.payload


class SimulatedStep(Value):
    """A job of the run as it ended."""

    execution: SimulatedExecution
    #: The outcome of each execution; none if the step could not be created.
    outcomes: tuple[Outcome, ...]
    #: The events of its last execution.
    events: tuple[NewEvent, ...]

    @property
    def job(self) -> Job:
        return self.execution.job


class SimulatedRun(Value):
    #: The job that represents the run, as it ended.
    job: Job
    result: JsonValue
    #: In the order in which they first ran; a step that could not be created has its place by its creation.
    steps: tuple[SimulatedStep, ...]
    #: Bypassed steps, errors of blocks and splits, dropped events.
    ledger: tuple[LedgerEntry, ...]
    #: The jobs and runs that the run would start outside of itself. They are not simulated.
    jobs: tuple[NewJob, ...]
    runs: tuple[NewRun, ...]


#: Returns how an execution ends.
Respond: TypeAlias = Callable[[SimulatedExecution], Outcome]


class SimulationSettings(Value):
    """The parameters of a simulation besides the run."""

    policy: Policy
    now: datetime
    rng: Random
    respond: Respond
    #: Returns the result in the output of a job's last execution, as it is read from the log.
    read_result: Callable[[Outcome], JsonValue]
    #: Returns the time limit for the conditions of one settlement.
    make_budget: Callable[[], MatchBudget | None] = lambda: None
    max_executions: int = MAX_EXECUTIONS


def simulate_run(run: NewRun, baggage: JsonObject, settings: SimulationSettings) -> SimulatedRun:
    """Return what becomes of a run whose executions end as `settings.respond` returns.

    `baggage` is that of the run's own context. Raises `SimulationTooLongError`.
    """
    return _Simulation(run, baggage, settings).run_to_end()


class _Simulation:
    """Advances one run, and keeps the values that the store would keep in rows."""

    def __init__(self, run: NewRun, baggage: JsonObject, settings: SimulationSettings) -> None:
        self._run, self._settings, self._now = run, settings, settings.now
        self._info = run.info()
        self._run_job = _new_job_row(run.job, seq=0, now=self._now)
        self._created = 0
        self._jobs: dict[str, Job] = {}
        self._positions: dict[str, TokenPosition] = {}
        self._events = {run.event.id: run.event}
        self._baggage: dict[str | None, JsonObject] = {run.job.event_context_id: baggage}
        self._scopes: dict[str, JoinScope] = {}
        self._results: dict[str, list[TokenResult]] = {}
        self._plugin_states: dict[str, JsonObject] = {}
        #: Queued jobs: those that are ready by their number, the others by the instant of their retry.
        self._ready: list[tuple[int, str]] = []
        self._waiting: list[tuple[datetime, int, str]] = []
        self._outcomes: dict[str, list[Outcome]] = {}
        self._emitted: dict[str, tuple[NewEvent, ...]] = {}
        self._ledger: list[LedgerEntry] = []
        self._started_jobs: list[NewJob] = []
        self._started_runs: list[NewRun] = []
        self._ended = False

    def run_to_end(self) -> SimulatedRun:
        baggage = self._baggage[self._run.job.event_context_id]
        self._write_progress(
            start_first_steps(self._run, self._info, baggage, self._policy(), self._now, self._settings.rng)
        )
        executions = 0
        while not self._ended:
            executions += 1
            if executions > self._settings.max_executions:
                limit = self._settings.max_executions
                raise SimulationTooLongError(f"the run needs more than {limit} executions of steps")
            job = self._claim_next()
            outcome = self._settings.respond(self._execution(job))
            self._outcomes.setdefault(job.id, []).append(outcome)
            self._settle(job, outcome)
        return self._end_run()

    def _policy(self) -> Policy:
        return replace(self._settings.policy, budget=self._settings.make_budget())

    def _claim_next(self) -> Job:
        """Return the oldest ready job as running; if none is ready, the one whose retry is due first."""
        if not self._ready:
            self._now = max(self._now, self._waiting[0][0])
            while self._waiting and self._waiting[0][0] <= self._now:
                _due, seq, job_id = heappop(self._waiting)
                heappush(self._ready, (seq, job_id))
        _seq, job_id = heappop(self._ready)
        queued = self._jobs[job_id]
        return replace(
            queued,
            status=JobStatus.RUNNING,
            reason=JobReason.CLAIMED,
            execution=queued.execution + 1,
            started_at=self._now,
        )

    def _execution(self, job: Job) -> SimulatedExecution:
        return SimulatedExecution(
            job=job,
            event=self._events[job.source_event_id or ""],
            baggage=self._baggage[job.event_context_id],
        )

    def _settle(self, job: Job, outcome: Outcome) -> None:
        baggage, position = self._baggage[job.event_context_id], self._positions[job.id]
        scopes = view_closable_scopes(
            position.scope_id, self._scopes.__getitem__, self._results.__getitem__, self._baggage.__getitem__
        )
        view = SettleView(
            job=job,
            state=self._plugin_states.get(job.plugin, {}),
            baggage=baggage,
            run=RunView(
                info=self._info,
                jobs=self._created,
                cancelled=False,
                position=position,
                baggage=baggage,
                scopes=scopes,
            ),
        )
        settlement = decide_settlement(view, outcome, self._policy(), self._now, self._settings.rng)
        self._write_end(job, settlement)
        if settlement.state is not None:
            self._plugin_states[job.plugin] = settlement.state
        events = tuple(indexed_event.event for indexed_event in settlement.events)
        self._emitted[job.id] = events
        self._events |= {event.id: event for event in events}
        self._write_starts(settlement)
        if settlement.progress is not None:
            self._write_progress(settlement.progress)

    def _write_end(self, job: Job, settlement: Settlement) -> None:
        job = replace(
            job,
            status=settlement.status,
            reason=settlement.reason,
            attempt=settlement.attempt,
            next_retry_at=settlement.next_retry_at,
            last_error=settlement.last_error,
            artifacts=settlement.artifacts,
            completed_at=self._now if settlement.is_terminal else None,
        )
        self._jobs[job.id] = job
        if job.status not in TERMINAL:
            heappush(self._waiting, (settlement.next_retry_at or self._now, job.seq, job.id))

    def _write_starts(self, settlement: Settlement) -> None:
        self._started_jobs += settlement.children
        self._started_runs += settlement.runs
        self._ledger += settlement.ledger

    def _write_progress(self, progress: RunProgress) -> None:
        self._events |= {event.id: event for event in progress.events}
        self._baggage |= {context.id: context.baggage for context in progress.contexts}
        for scope in progress.opened_scopes:
            self._scopes[scope.id] = scope
            self._results[scope.id] = []
        for scope_id, live in progress.live_counts:
            self._scopes[scope_id] = replace(self._scopes[scope_id], live=live)
        for scope_id, state in progress.closed_scopes:
            self._scopes[scope_id] = replace(self._scopes[scope_id], state=state)
        for result in progress.results:
            self._results[result.position.scope_id].append(result)
        for step in progress.steps:
            self._created += 1
            job = _new_job_row(step.job, seq=self._created, now=self._now)
            self._jobs[job.id], self._positions[job.id] = job, step.position
            if step.fault is None:
                heappush(self._ready, (job.seq, job.id))
                continue
            # The step failed before it could run. The run has counted its end already.
            self._outcomes[job.id] = [step.fault]
            view = SettleView(job=job, state={})
            settlement = decide_settlement(view, step.fault, self._policy(), self._now, self._settings.rng)
            self._write_end(job, settlement)
        self._ledger += progress.ledger
        self._ended = progress.ended

    def _end_run(self) -> SimulatedRun:
        ends = final_results(
            (result, self._scopes[scope_id].split, self._scopes[scope_id].state)
            for scope_id, results in self._results.items()
            for result in results
        )
        last = last_job(ends)
        outcomes = () if last is None else self._outcomes.get(last, ())
        artifacts = combine_artifacts(
            (job.step_path or "", job.artifacts) for job in self._jobs.values() if job.artifacts
        )
        result = self._settings.read_result(outcomes[-1]) if outcomes else None
        job = replace(self._run_job, status=JobStatus.RUNNING, execution=1, started_at=self._settings.now)
        outcome: RunEnded = replace(summarise_run(ends), artifacts=artifacts, result=result)
        view = SettleView(job=job, state={}, baggage=self._baggage[job.event_context_id])
        settlement = decide_settlement(view, outcome, self._policy(), self._now, self._settings.rng)
        self._write_starts(settlement)
        ended = replace(
            job,
            status=settlement.status,
            reason=settlement.reason,
            last_error=settlement.last_error,
            artifacts=settlement.artifacts,
            completed_at=self._now,
        )
        steps = [
            SimulatedStep(
                execution=self._execution(self._jobs[job_id]),
                outcomes=tuple(outcome for outcome in outcomes if not isinstance(outcome, StepNotStarted)),
                events=self._emitted.get(job_id, ()),
            )
            for job_id, outcomes in self._outcomes.items()
        ]
        return SimulatedRun(
            job=ended,
            result=result,
            steps=tuple(steps),
            ledger=tuple(self._ledger),
            jobs=tuple(self._started_jobs),
            runs=tuple(self._started_runs),
        )


def _new_job_row(new: NewJob, *, seq: int, now: datetime) -> Job:
    """Return a job as it is stored when it is accepted."""
    submitted: Mapping[str, object] = {
        name: getattr(new, name) for name in NewJob.__struct_fields__ if name in Job.__struct_fields__
    }
    return Job(
        **submitted,  # type: ignore[arg-type]  # the fields of both have the same types
        seq=seq,
        status=JobStatus.QUEUED,
        reason=JobReason.SUBMITTED,
        hold=None,
        attempt=1,
        execution=0,
        created_at=now,
        started_at=None,
        completed_at=None,
        next_retry_at=None,
        last_error=None,
        cancel_requested_at=None,
        owner=None,
        lease_until=None,
        claim_seq=0,
        suspect=False,
    )
