"""Trying again: a job, a run in its place, or a new run that takes up an old one from one of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from ductile.core.events.model import NewEvent, OutgoingEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import TERMINAL, Hold, Job, JobReason, JobStatus, Transition
from ductile.core.jobs.settlement import CallbackEvent, CallbackState
from ductile.core.policy import Policy
from ductile.core.runs.graph import RUN_PLUGIN, Graph, SplitNode
from ductile.core.runs.progress import advance_run, start_tokens
from ductile.core.runs.state import (
    BranchResult,
    JoinScope,
    JoinScopeView,
    NewRun,
    RunInfo,
    TokenPosition,
    TokenResult,
    TokenStart,
)
from ductile.protocol.plugin_messages import result_in
from ductile.store.model.jobs import RetryResult
from ductile.store.model.submission import Accepted, EnqueueResult
from ductile.store.notifier import JOBS_READY, JobsEnqueued
from ductile.store.rows import object_or_none, read_event, read_job
from ductile.store.session import Session
from ductile.store.verbs.holds import hold_for
from ductile.store.verbs.insert import submit_job
from ductile.store.verbs.ledger import write_callback, write_transition
from ductile.store.verbs.runs import (
    baggage_of,
    branch_ends,
    earlier_run,
    insert_leaf,
    insert_run,
    leaves_of,
    place_of,
    read_run_view,
    read_scope,
    reopen_line,
)
from ductile.store.verbs.settle import continue_run, write_steps
from ductile.struct import replace


def retry(session: Session, job_id: str, rules: Policy, *, ended_at: datetime | None = None) -> RetryResult:
    """Put a failed or dead job back with fresh attempts; its executions go on counting."""
    found = _retryable(session, job_id, ended_at)
    if isinstance(found, RetryResult):
        return found
    if found.plugin == RUN_PLUGIN:
        _retry_run(session, found, rules)
    else:
        _requeue(session, found)
    return RetryResult.QUEUED


def check_retry(session: Session, job_id: str) -> RetryResult:
    """What a retry would answer. Changes nothing."""
    found = _retryable(session, job_id, None)
    return found if isinstance(found, RetryResult) else RetryResult.QUEUED


def _retryable(session: Session, job_id: str, ended_at: datetime | None) -> Job | RetryResult:
    """The job, or the answer that refuses its retry."""
    found = _ended_job(session, job_id)
    if isinstance(found, RetryResult):
        return found
    if ended_at is not None and found.completed_at != ended_at:
        return RetryResult.ENDED_AGAIN
    if found.plugin == RUN_PLUGIN:
        failed = session.all("retryable_members", run_id=found.id)
        halted = () if failed else session.all("halted_members", run_id=found.id)
        return found if failed or halted else RetryResult.NOTHING_TO_RETRY
    if found.run_id is not None and (refusal := _refuse_step(session, found, found.run_id)) is not None:
        return refusal
    return found


def _refuse_step(session: Session, step: Job, run_id: str) -> RetryResult | None:
    """Why a step of a run cannot be retried by itself, or None."""
    row = session.one("job_for_settle", id=run_id)
    run = None if row is None else read_job(row)
    if run is None or run.status in TERMINAL:
        return RetryResult.RUN_ENDED
    if run.cancel_requested_at is not None:
        return RetryResult.RUN_CANCELLED
    return RetryResult.NOTHING_TO_RETRY if step.reason in _CANNOT_CHANGE else None


#: A step that failed for one of these was never made, and what it would be made from stays as it is.
_CANNOT_CHANGE = frozenset({JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE, JobReason.BAD_CONDITION})


def _ended_job(session: Session, job_id: str) -> Job | RetryResult:
    row = session.one("job_for_settle", id=job_id)
    if row is None:
        logged = session.one("job_was_logged", job_id=job_id)
        return RetryResult.UNKNOWN_JOB if logged is None else RetryResult.RETAINED_NO_MORE
    job = read_job(row)
    if job.status not in TERMINAL:
        return RetryResult.NOT_ENDED
    return RetryResult.SUCCEEDED if job.status is JobStatus.SUCCEEDED else job


def _requeue(session: Session, job: Job) -> None:
    if job.run_id is not None and (place := place_of(session, job.id)) is not None:
        reopen_line(session, place)
    _reopen(session, job, Hold.RUN if job.plugin == RUN_PLUGIN else hold_for(session, job, suspect=False))


def _reopen(session: Session, job: Job, hold: Hold | None) -> None:
    session.change("reopen_job", seq=job.seq, from_status=job.status, hold=hold)
    if hold is None:
        session.publish(JOBS_READY)
    back = Transition(from_status=job.status, to_status=JobStatus.QUEUED, reason=JobReason.MANUAL_RETRY)
    write_transition(session, back, job, execution=job.execution)
    if job.callback is not None:
        told = CallbackEvent(state=CallbackState.QUEUED, reason=JobReason.MANUAL_RETRY)
        write_callback(session, told, job, attempt=1)


def _retry_run(session: Session, run: Job, rules: Policy) -> None:
    """The run keeps its id and its graph; the lines that failed in it are live again."""
    failed = [read_job(row) for row in session.all("retryable_members", run_id=run.id)]
    halted = [read_job(row) for row in session.all("halted_members", run_id=run.id)]
    earlier = earlier_run(session, run)
    _reopen(session, run, Hold.RUN)
    for job in failed:
        session.run("set_after", seq=job.seq, after_job_id=earlier)
        _requeue(session, job)
    for job in halted:
        _take_up_line(session, job, rules)


def _take_up_line(session: Session, job: Job, rules: Policy) -> None:
    """A step that succeeded while its run was being cancelled: its line goes on from what it emitted."""
    place = place_of(session, job.id)
    if place is None or job.run_id is None:
        return
    reopen_line(session, place)
    view = read_run_view(session, job, baggage_of(session, job.event_context_id))
    answered = session.one("last_answer", job_id=job.id)
    if view is None:
        return
    emitted = [
        OutgoingEvent(
            event=NewEvent(
                id=event_id,
                type=kind,
                source=source,
                payload=object_or_none(payload) or {},
                dedupe_key=dedupe_key,
            ),
            index=index or 0,
        )
        for event_id, kind, source, payload, index, dedupe_key in session.all("events_of_job", job_id=job.id)
    ]
    result = result_in(answered[0]) if answered else None
    budgeted = replace(rules, budget=session.budget)
    progress = advance_run(view, job, emitted, result, budgeted, session.now, session.rng)
    write_steps(session, job.run_id, progress, rules)


# ------------------------------------------------------------------------------ a new run, from a step


def rerun(
    session: Session, run_id: str, step_path: str, run: NewRun, rules: Policy
) -> EnqueueResult | RetryResult:
    """Begin `run` at a step of an ended one, with what that step was given and what its neighbours made."""
    plan = _plan_rerun(session, run_id, step_path, run.graph)
    if isinstance(plan, RetryResult):
        return plan
    copied, starts = plan
    answer = submit_job(session, run.job, rules.dedupe_ttl)
    if not isinstance(answer, Accepted):
        return answer
    insert_run(session, run)
    for leaf in copied.leaves:
        insert_leaf(session, run.job.id, leaf)
    facts = RunInfo(id=run.job.id, graph=run.graph, hops=run.job.hops, trace_id=run.job.trace_id)
    progress = start_tokens(
        facts,
        tuple(copied.views.values()),
        starts,
        replace(rules, budget=session.budget),
        session.now,
        session.rng,
    )
    result = continue_run(session, answer, progress, rules).enqueue_result()
    session.publish(JobsEnqueued(results=(result,)))
    return result


def check_rerun(session: Session, run_id: str, step_path: str, graph: Graph) -> RetryResult:
    """What a new run by this graph, from this step, would be refused for; `queued` if nothing."""
    plan = _plan_rerun(session, run_id, step_path, graph)
    return plan if isinstance(plan, RetryResult) else RetryResult.QUEUED


def _plan_rerun(
    session: Session, run_id: str, step_path: str, graph: Graph
) -> tuple[_CopiedScopes, tuple[TokenStart, ...]] | RetryResult:
    """What a new run begins with, or the answer that refuses it."""
    found = _ended_job(session, run_id)
    if isinstance(found, RetryResult):
        return found
    jobs = [read_job(row) for row in session.all("members_at_step", run_id=run_id, step_path=step_path)]
    if not jobs or graph.step(step_path) is None:
        return RetryResult.UNKNOWN_STEP
    again = [job for job in jobs if job.status is not JobStatus.SUCCEEDED] or jobs
    copied = _CopiedScopes(session=session, graph=graph)
    starts = [_start_at(session, job, step_path, copied) for job in again]
    if copied.changed or None in starts:
        return RetryResult.CHANGED
    return copied, tuple(start for start in starts if start is not None)


def _start_at(session: Session, job: Job, path: str, copied: _CopiedScopes) -> TokenStart | None:
    place = place_of(session, job.id)
    row = None if job.source_event_id is None else session.one("event_by_id", id=job.source_event_id)
    if place is None or row is None:
        return None
    event = read_event(row)
    context_id = _context_before(session, job)
    return TokenStart(
        path=path,
        position=copied.place(place, lines=1),
        event=NewEvent(
            id=event.id,
            type=event.type,
            source=event.source,
            payload=event.payload,
            headers=event.header_texts,
            dedupe_key=event.dedupe_key,
        ),
        context_id=context_id,
        baggage=baggage_of(session, context_id),
    )


def _context_before(session: Session, job: Job) -> str | None:
    """The context that the step was given: its own may hold what the step itself has claimed."""
    row = None if job.event_context_id is None else session.one("context_by_id", id=job.event_context_id)
    if row is None:
        return None
    own, _baggage, parent_id, run_id, _pipeline, step_path, _hops = row
    before: str | None = parent_id if run_id == job.run_id and step_path == job.step_path else own
    return before


@dataclass(slots=True)
class _CopiedScopes:
    """The scopes around the steps that a run is taken up from, as the new run has them.

    What other branches had made is kept; what had come of the lines that are taken up is left behind.
    """

    session: Session
    graph: Graph
    views: dict[str, JoinScopeView] = field(default_factory=dict)
    leaves: list[TokenResult] = field(default_factory=list)
    changed: bool = False

    def place(self, old: TokenPosition, *, lines: int) -> TokenPosition:
        """The same place in the new run; `lines` more are live there."""
        known = self.views.get(old.scope_id)
        if known is None:
            known = self._copy(old.scope_id)
        scope = replace(known.scope, live=known.scope.live + lines)
        ends = tuple(end for end in known.results if not _comes_from(end, old))
        self.views[old.scope_id] = replace(known, scope=scope, results=ends)
        self.leaves = [
            leaf
            for leaf in self.leaves
            if not (leaf.position.scope_id == scope.id and _comes_from_leaf(leaf, old))
        ]
        return replace(old, scope_id=scope.id)

    def _copy(self, scope_id: str) -> JoinScopeView:
        old = read_scope(self.session, scope_id)
        node = None if old.split is None else self.graph.nodes.get(old.split)
        self.changed |= old.split is not None and not isinstance(node, SplitNode)
        scope = JoinScope(
            id=make_id(self.session.now, self.session.rng),
            live=0,
            split=old.split,
            parent=None if old.parent is None else self.place(old.parent, lines=1),
            entry_job_id=None,
            context_id=old.context_id,
        )
        if isinstance(node, SplitNode):
            ends = branch_ends(self.session, scope_id)
            self.changed |= any(end.branch >= len(node.branches) for end in ends)
            self.leaves += [
                replace(leaf, position=replace(leaf.position, scope_id=scope.id))
                for leaf in leaves_of(self.session, scope_id)
            ]
        else:
            ends = ()
        view = JoinScopeView(scope=scope, results=ends, baggage=baggage_of(self.session, old.context_id))
        self.views[scope_id] = view
        return view


def _comes_from(end: BranchResult, place: TokenPosition) -> bool:
    return end.branch == place.branch and end.order.startswith(place.order)


def _comes_from_leaf(leaf: TokenResult, place: TokenPosition) -> bool:
    return leaf.position.branch == place.branch and leaf.position.order.startswith(place.order)
