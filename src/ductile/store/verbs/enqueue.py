"""What comes in from outside: events, jobs and pipeline runs, accepted together or not at all."""

from __future__ import annotations

from ductile.core.events.model import NewContext
from ductile.store.model.submission import Accepted, EnqueueResult, Submission
from ductile.store.notifier import JobsEnqueued
from ductile.store.session import Session
from ductile.store.verbs.insert import insert_context, insert_event, submit_job
from ductile.store.verbs.ledger import write_ledger
from ductile.store.verbs.settle import start_run


def enqueue(session: Session, submission: Submission) -> tuple[EnqueueResult, ...]:
    """An answer for each job, then for each run, in the order they were given."""
    if submission.event is not None:
        insert_event(session, submission.event)
    window = submission.dedupe_window
    answers = tuple([submit_job(session, job, window) for job in submission.jobs])
    if submission.contexts:
        for context in _contexts_of(submission, answers):
            insert_context(session, context)
    if submission.runs:
        answers += tuple(
            start_run(session, run, submission.rules, window).enqueue_result() for run in submission.runs
        )
    if submission.ledger:
        write_ledger(session, submission.ledger)
    session.publish(JobsEnqueued(results=answers))
    return answers


def _contexts_of(submission: Submission, answers: tuple[EnqueueResult, ...]) -> list[NewContext]:
    """The contexts of what was accepted and, among those submitted with it, the ones they descend from.

    A duplicate leaves no context behind.
    """
    accepted = {answer.job_id for answer in answers if isinstance(answer, Accepted)}
    by_id = {context.id: context for context in submission.contexts}
    wanted: dict[str, NewContext] = {}
    for job in submission.jobs:
        context = by_id.get(job.event_context_id or "") if job.id in accepted else None
        while context is not None and context.id not in wanted:
            wanted[context.id] = context
            context = by_id.get(context.parent_id or "")
    return list(wanted.values())
