"""Enqueueing and claiming jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ductile.core.events.model import NewContext
from ductile.core.jobs.admission import Caps, choose_next_plugin
from ductile.core.jobs.model import JobReason, JobStatus, LedgerKind, NewJob
from ductile.core.jobs.settlement import StateChange, WebhookState
from ductile.core.timestamps import format_timestamp
from ductile.errors import ContendedError, StoreError
from ductile.store.model.jobs import Accepted, ClaimedJob, Deduplicated, EnqueueResult, Submission
from ductile.store.notifier import JobsEnqueued
from ductile.store.rows import find_job, json_object_or_none, read_event, read_job
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.jobs.insert import insert_context, insert_event, submit_job
from ductile.store.verbs.jobs.settle import (
    CLAIMED,
    LOADING,
    insert_run_with_steps,
    mark_run_started,
    with_first_steps,
)
from ductile.store.verbs.ledger import next_ledger_seq, write_ledger, write_transition
from ductile.store.verbs.outbox import write_state_webhooks
from ductile.store.verbs.runs import baggage_of, graph_of
from ductile.store.verbs.token_usage import charge_started

_WORKING = StateChange(state=WebhookState.WORKING, reason=JobReason.CLAIMED)


def enqueue(session: Session, submission: Submission) -> tuple[EnqueueResult, ...]:
    """Enqueue jobs and runs, all or none. Returns a result for each job, then for each run, in order.

    Raises `LimitReachedError` if they exceed a limit of the token that submits them.
    """
    if submission.event is not None:
        insert_event(session, submission.event)
    window = submission.dedupe_window
    results = tuple([submit_job(session, job, window) for job in submission.jobs])
    if submission.contexts:
        for context in _needed_contexts(submission, results):
            insert_context(session, context)
    if submission.runs:
        results += tuple(
            with_first_steps(*insert_run_with_steps(session, run, submission.policy, window))
            for run in submission.runs
        )
    if submission.charge is not None:
        charge_started(session, submission.charge, results)
    if submission.ledger:
        # A rerun that is a duplicate starts no job, so its ledger entry is left out.
        started = not any(isinstance(result, Deduplicated) for result in results)
        entries = (entry for entry in submission.ledger if started or entry.kind is not LedgerKind.JOB_RERUN)
        write_ledger(session, entries)
    session.publish(JobsEnqueued(results=results))
    return results


def _needed_contexts(submission: Submission, results: tuple[EnqueueResult, ...]) -> list[NewContext]:
    """Return the contexts of accepted jobs, with their ancestors in the submission.

    A duplicate needs none.
    """
    accepted = {result.job_id for result in results if isinstance(result, Accepted)}
    by_id = {context.id: context for context in submission.contexts}
    needed: dict[str, NewContext] = {}
    for job in submission.jobs:
        context = by_id.get(job.event_context_id or "") if job.id in accepted else None
        while context is not None and context.id not in needed:
            needed[context.id] = context
            context = by_id.get(context.parent_id or "")
    return list(needed.values())


def claim(
    session: Session, *, owner: str, caps: Caps, limit: int, lease: timedelta
) -> tuple[ClaimedJob, ...]:
    """Claim up to `limit` ready jobs, oldest first. Returns fewer if caps are reached.

    Raises `ContendedError` if `owner` is a node that has ended.
    """
    ready, counts = session.fetch_each(
        [("ready_heads", {"limit": limit, "node": caps.node}), ("running_counts", {"owner": owner})]
    )
    heads: dict[str, list[int]] = {}
    for plugin, seq in ready:
        if seq is not None:  # None: the jobs of this plugin belong to other nodes
            heads.setdefault(plugin, []).append(seq)
    running: dict[str, int] = {plugin: count for plugin, count, _ in counts}
    busy = sum(own_count for *_, own_count in counts)
    chosen = _choose_jobs(session, heads, running, caps, busy=busy, limit=limit)
    return _claim_each(session, chosen, owner=owner, lease=lease)


def _choose_jobs(
    session: Session,
    heads: dict[str, list[int]],
    running: dict[str, int],
    caps: Caps,
    *,
    busy: int,
    limit: int,
) -> list[int]:
    """Return the jobs to claim.

    `heads` has the oldest ready jobs of each plugin: one on SQLite, several on PostgreSQL. This function
    removes them from it.
    """
    chosen: list[int] = []
    oldest = {plugin: seqs.pop(0) for plugin, seqs in heads.items()}
    while len(chosen) < limit:
        plugin = choose_next_plugin(oldest, running, caps, busy=busy + len(chosen))
        if plugin is None:
            break
        seq = oldest.pop(plugin)
        chosen.append(seq)
        running[plugin] = running.get(plugin, 0) + 1
        if heads[plugin]:
            oldest[plugin] = heads[plugin].pop(0)
        elif len(chosen) < limit:
            next_head = session.fetch_value("next_head", plugin=plugin, seq=seq, node=caps.node)
            if next_head is not None:
                oldest[plugin] = next_head
    return chosen


def claim_by_id(
    session: Session, job_ids: Sequence[str], *, owner: str, lease: timedelta
) -> tuple[ClaimedJob, ...]:
    """Claim the jobs with these ids that are ready, in the given order. Caps do not apply."""
    ready = [session.fetch_value("ready_job", id=job_id) for job_id in dict.fromkeys(job_ids)]
    return _claim_each(session, [seq for seq in ready if seq is not None], owner=owner, lease=lease)


def enqueue_and_claim(
    session: Session, job: NewJob, *, owner: str, lease: timedelta, limit: int | None
) -> tuple[ClaimedJob, ...]:
    """Enqueue and claim one job before all others; do nothing if `limit` jobs of its plugin run already."""
    if limit is not None:
        counts = session.fetch_all("running_counts", owner=owner)
        if any(plugin == job.plugin and count >= limit for plugin, count, _ in counts):
            return ()
    result = submit_job(session, job, timedelta(0))
    if not isinstance(result, Accepted):
        raise StoreError(f"the job {job.id} was not accepted")
    return _claim_each(session, [result.seq], owner=owner, lease=lease)


def _claim_each(
    session: Session, seqs: Sequence[int], *, owner: str, lease: timedelta
) -> tuple[ClaimedJob, ...]:
    """Claim ready jobs. Raises `ContendedError` if one is not ready any more, or the node has ended."""
    if not seqs:
        return ()
    rows = session.claim_jobs(
        {seq: next_ledger_seq(session) for seq in seqs},
        at=session.timestamp,
        owner=owner,
        lease_until=format_timestamp(session.now + lease),
    )
    if len(rows) != len(seqs):
        raise ContendedError("a job that was ready is claimed already, or the node has ended")
    return tuple(_complete_claim(session, row) for row in rows)


def _complete_claim(session: Session, row: tuple[SqlValue, ...]) -> ClaimedJob:
    """Write the history of a claimed job, and read the values that its execution needs."""
    job = read_job(row[:-2], json_object_or_none(row[-2]))
    state = json_object_or_none(row[-1]) or {}
    write_transition(session, CLAIMED, job, execution=job.execution, seq=job.claim_seq)
    if job.callback is not None:
        write_state_webhooks(session, LOADING, job, attempt=job.attempt)
    event = session.fetch_one("event_by_id", id=job.source_event_id) if job.source_event_id else None
    run = None if job.run_id is None else session.fetch_one("run_of_claim", run_id=job.run_id)
    fingerprint, status, has_subscribers = run or (None, None, False)
    if status == JobStatus.QUEUED:
        mark_run_started(session, str(job.run_id))  # a run starts with the first of its steps
    graph = None if fingerprint is None else graph_of(session, fingerprint)
    step = None if graph is None else graph.step(job.step_path)
    return ClaimedJob(
        job=job,
        event=None if event is None else read_event(event),
        state=state,
        baggage=baggage_of(session, job.event_context_id),
        pipeline=None if graph is None else graph.pipeline,
        timeout=None if step is None or step.timeout is None else timedelta(seconds=step.timeout),
        run_has_subscribers=bool(has_subscribers),
    )


def mark_working(session: Session, job_id: str, execution: int) -> None:
    """Write the state webhooks about `working`, if this execution still runs.

    The first step of a run to work also makes the run work.
    """
    job = find_job(session, job_id)
    if job is None or job.status is not JobStatus.RUNNING or job.execution != execution:
        return
    if job.callback is not None:
        write_state_webhooks(session, _WORKING, job, attempt=job.attempt)
    run = None if job.run_id is None else find_job(session, job.run_id)
    if run is None or run.callback is None:
        return
    # None: a duplicate subscribed the run's first URL while it ran, so no state was sent yet.
    if session.fetch_value("callback_of_job", job_id=run.id) in (WebhookState.LOADING, None):
        write_state_webhooks(session, _WORKING, run, attempt=run.attempt)
