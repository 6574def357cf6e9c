"""Retrying a job or an ended run in place, and starting a new run at a step of an ended one."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ductile.core.events.model import IndexedEvent, NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import TERMINAL, Hold, Job, JobReason, JobStatus, Transition
from ductile.core.jobs.settlement import StateChange, WebhookState
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN, Graph, SplitNode
from ductile.core.runs.progress import advance_run, start_tokens
from ductile.core.runs.state import (
    JoinScope,
    JoinScopeView,
    NewRun,
    TokenPosition,
    TokenResult,
    TokenStart,
)
from ductile.core.token_limits import target_of
from ductile.store.model.jobs import Accepted, EnqueueResult, RetryResult, TokenCharge
from ductile.store.notifier import JOBS_READY, JobsEnqueued
from ductile.store.rows import find_job, find_jobs, from_json, last_result, row_reader
from ductile.store.session import Session
from ductile.store.verbs.jobs.insert import hold_for, submit_job
from ductile.store.verbs.jobs.read import get_event_context
from ductile.store.verbs.jobs.settle import with_first_steps, write_steps
from ductile.store.verbs.ledger import write_transition
from ductile.store.verbs.outbox import write_state_webhooks
from ductile.store.verbs.runs import (
    baggage_of,
    insert_run,
    insert_token_result,
    position_of,
    predecessor_run,
    read_run_view,
    read_scope,
    reopen_token,
    token_results,
)
from ductile.store.verbs.token_usage import charge_jobs, charge_started
from ductile.struct import replace

#: A step that failed for one of these was never created, and a retry would fail in the same way.
_PERMANENT = frozenset({JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE, JobReason.BAD_CONDITION})
_QUEUED = StateChange(state=WebhookState.QUEUED, reason=JobReason.MANUAL_RETRY)

_read_new_event = row_reader(NewEvent, payload=from_json, headers=from_json)


def retry(
    session: Session,
    job_id: str,
    policy: Policy,
    *,
    ended_at: datetime | None = None,
    charge: TokenCharge | None = None,
) -> RetryResult:
    """Put a failed or dead job back on the queue with fresh attempts; for a run, its failed steps.

    With `ended_at`, only if the job ended at that instant: a later cancel is kept. With `charge`, it counts
    as a new job of that token. Raises `LimitReachedError`.
    """
    job = _retryable(session, job_id, ended_at)
    if isinstance(job, RetryResult):
        return job
    if job.plugin == RUN_PLUGIN:
        _reopen_run(session, job, policy)
    else:
        if job.run_id is not None:
            # The step waits for the same run as the other steps of its run: the one that it waited for when
            # it ended may itself wait for its run by now.
            predecessor = session.fetch_value("awaited_by_steps", run_id=job.run_id)
            session.execute("set_predecessor", seq=job.seq, after_job_id=predecessor)
        _requeue(session, job)
    if charge is not None:
        # From now on the job counts as unfinished, also if it was started before the token had limits.
        session.execute("charge_job", seq=job.seq, token=charge.token)
        target, is_own = target_of(job.plugin, job.command), job.token == charge.token
        charge_jobs(session, charge, {target: 1}, are_of_token=is_own)
    return RetryResult.QUEUED


def _reopen_run(session: Session, run: Job, policy: Policy) -> None:
    """Continue an ended run. It keeps its id and graph; its failed tokens are reopened."""
    failed = find_jobs(session, "retryable_members", run_id=run.id)
    stopped = find_jobs(session, "members_stopped_by_cancel", run_id=run.id)
    predecessor = predecessor_run(session, run)
    if predecessor is not None:
        session.execute(
            "forget_predecessor", id=run.id, dedupe_key=run.dedupe_key, plugin=run.plugin, command=run.command
        )
    _reopen(session, run, Hold.RUN)
    for job in failed:
        session.execute("set_predecessor", seq=job.seq, after_job_id=predecessor)
        _requeue(session, job)
    for job in stopped:
        _continue_token(session, job, policy)


def check_retry(session: Session, job_id: str) -> RetryResult:
    """Return the result that `retry` would have now. Changes nothing."""
    job = _retryable(session, job_id, None)
    return job if isinstance(job, RetryResult) else RetryResult.QUEUED


def _retryable(session: Session, job_id: str, ended_at: datetime | None) -> Job | RetryResult:
    """Return the job, or why it cannot be retried."""
    job = _ended_job(session, job_id)
    if isinstance(job, RetryResult):
        return job
    if ended_at is not None and job.completed_at != ended_at:
        return RetryResult.CHANGED_SINCE_READ
    if job.plugin == RUN_PLUGIN:
        failed = session.fetch_all("retryable_members", run_id=job.id)
        stopped = () if failed else session.fetch_all("members_stopped_by_cancel", run_id=job.id)
        return job if failed or stopped else RetryResult.NOT_RETRYABLE
    if job.run_id is None:
        return job
    run = find_job(session, job.run_id)
    if run is None or run.status in TERMINAL:
        return RetryResult.RUN_ENDED
    if run.cancel_requested_at is not None:
        return RetryResult.RUN_CANCELLED
    return RetryResult.NOT_RETRYABLE if job.reason in _PERMANENT else job


def _ended_job(session: Session, job_id: str) -> Job | RetryResult:
    job = find_job(session, job_id)
    if job is None:
        logged = session.fetch_one("job_was_logged", job_id=job_id)
        return RetryResult.UNKNOWN_JOB if logged is None else RetryResult.PRUNED
    if job.status not in TERMINAL:
        return RetryResult.NOT_ENDED
    return RetryResult.SUCCEEDED if job.status is JobStatus.SUCCEEDED else job


def _requeue(session: Session, job: Job) -> None:
    if job.run_id is not None and (position := position_of(session, job.id)) is not None:
        reopen_token(session, position)
    _reopen(session, job, hold_for(session, job, suspect=False))


def _reopen(session: Session, job: Job, hold: Hold | None) -> None:
    session.update_one("reopen_job", seq=job.seq, from_status=job.status, hold=hold)
    if hold is None:
        session.publish(JOBS_READY)
    transition = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=JobReason.MANUAL_RETRY)
    write_transition(session, transition, job, execution=job.execution)
    if job.callback is not None:
        write_state_webhooks(session, _QUEUED, job, attempt=1)


def _continue_token(session: Session, job: Job, policy: Policy) -> None:
    """Continue the token of a step that succeeded while its run was being cancelled."""
    position = position_of(session, job.id)
    if position is None or job.run_id is None:
        return
    reopen_token(session, position)
    view = read_run_view(session, job, baggage_of(session, job.event_context_id))
    if view is None:
        return
    emitted = [
        IndexedEvent(event=_read_new_event(row[:-1]), index=row[-1] or 0)
        for row in session.fetch_all("events_of_job", job_id=job.id)
    ]
    result = last_result(session, job.id)
    budgeted = replace(policy, budget=session.regex_budget)
    progress = advance_run(view, job, emitted, result, budgeted, session.now, session.rng)
    write_steps(session, job.run_id, progress, policy)


# -- a new run, from a step


def rerun(
    session: Session,
    run_id: str,
    step_path: str,
    run: NewRun,
    policy: Policy,
    *,
    charge: TokenCharge | None = None,
) -> EnqueueResult | RetryResult:
    """Begin `run` at a step of an ended run, with that step's input and the results of its neighbours.

    With `charge`, it counts as a new job of that token. Raises `LimitReachedError`.
    """
    plan = _plan_rerun(session, run_id, step_path, run.graph)
    if isinstance(plan, RetryResult):
        return plan
    copied, starts = plan
    accepted = submit_job(session, run.job, policy.dedupe_ttl)
    if not isinstance(accepted, Accepted):
        return accepted
    insert_run(session, run)
    for view in copied.views.values():
        for result in view.results:
            insert_token_result(session, run.job.id, result)
    views, budgeted = tuple(copied.views.values()), replace(policy, budget=session.regex_budget)
    progress = start_tokens(run.info(), views, starts, budgeted, session.now, session.rng)
    started = with_first_steps(accepted, write_steps(session, run.job.id, progress, policy))
    if charge is not None:
        charge_started(session, charge, (started,))
    session.publish(JobsEnqueued(results=(started,)))
    return started


def check_rerun(session: Session, run_id: str, step_path: str, graph: Graph) -> RetryResult:
    """Return why `rerun` by this graph would be refused now, or `QUEUED`. Changes nothing."""
    plan = _plan_rerun(session, run_id, step_path, graph)
    return plan if isinstance(plan, RetryResult) else RetryResult.QUEUED


def _plan_rerun(
    session: Session, run_id: str, step_path: str, graph: Graph
) -> tuple[_CopiedScopes, tuple[TokenStart, ...]] | RetryResult:
    """Return the scopes and tokens that a new run begins with, or why it is refused."""
    run = _ended_job(session, run_id)
    if isinstance(run, RetryResult):
        return run
    jobs = find_jobs(session, "members_at_step", run_id=run_id, step_path=step_path)
    if not jobs or graph.step(step_path) is None:
        return RetryResult.UNKNOWN_STEP
    repeated = [job for job in jobs if job.status is not JobStatus.SUCCEEDED] or jobs
    copied = _CopiedScopes(session=session, graph=graph)
    starts = [_start_at(session, job, step_path, copied) for job in repeated]
    if copied.graph_has_changed or None in starts:
        return RetryResult.CHANGED
    return copied, tuple(start for start in starts if start is not None)


def _start_at(session: Session, job: Job, path: str, copied: _CopiedScopes) -> TokenStart | None:
    position = position_of(session, job.id)
    row = None if job.source_event_id is None else session.fetch_one("event_by_id", id=job.source_event_id)
    if position is None or row is None:
        return None
    context = None if job.event_context_id is None else get_event_context(session, job.event_context_id)
    context_id = None if context is None else context.id
    if context is not None and context.run_id == job.run_id and context.step_path == job.step_path:
        # The step's own context may have baggage that the step has claimed. The step began with its parent.
        context_id = context.parent_id
    return TokenStart(
        path=path,
        position=copied.copy_position(position, tokens=1),
        event=_read_new_event(row[:-1]),
        context_id=context_id,
        baggage=baggage_of(session, context_id),
    )


@dataclass(slots=True)
class _CopiedScopes:
    """The scopes around the repeated steps, copied for the new run.

    Results of other branches are kept; those of the repeated tokens are dropped.
    """

    session: Session
    graph: Graph
    #: The copies, by the id of the scope that was copied.
    views: dict[str, JoinScopeView] = field(default_factory=dict)
    #: Whether the graph has no place for one of the scopes any more.
    graph_has_changed: bool = False

    def copy_position(self, old: TokenPosition, *, tokens: int) -> TokenPosition:
        """Copy the scopes around a position, and return it in the new run, where `tokens` more are live."""
        view = self.views.get(old.scope_id) or self._copy_scope(old.scope_id)
        scope = replace(view.scope, live=view.scope.live + tokens)
        results = tuple(
            result
            for result in view.results
            if result.position.branch != old.branch or not result.position.sort_key.startswith(old.sort_key)
        )
        self.views[old.scope_id] = replace(view, scope=scope, results=results)
        return replace(old, scope_id=scope.id)

    def _copy_scope(self, scope_id: str) -> JoinScopeView:
        old = read_scope(self.session, scope_id)
        node = None if old.split is None else self.graph.nodes.get(old.split)
        self.graph_has_changed |= old.split is not None and not isinstance(node, SplitNode)
        scope = JoinScope(
            id=make_id(self.session.now, self.session.rng),
            live=0,
            split=old.split,
            parent=None if old.parent is None else self.copy_position(old.parent, tokens=1),
            entry_job_id=None,
            context_id=old.context_id,
        )
        results: tuple[TokenResult, ...] = ()
        if isinstance(node, SplitNode):
            results = tuple(
                replace(result, position=replace(result.position, scope_id=scope.id))
                for result in token_results(self.session, scope_id)
            )
            self.graph_has_changed |= any(result.position.branch >= len(node.branches) for result in results)
        view = JoinScopeView(scope=scope, results=results, baggage=baggage_of(self.session, old.context_id))
        self.views[scope_id] = view
        return view
