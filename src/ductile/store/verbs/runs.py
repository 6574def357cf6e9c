"""Pipeline runs in the store: reading where a run stands, and writing how far it got.

What happens next in a run is decided by `ductile.core.runs.progress`; here it is only read and written.
"""

from __future__ import annotations

from typing import TypeVar

from ductile.core.jobs.model import Job, NewJob
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN, Graph, graph_from_json, graph_to_json
from ductile.core.runs.state import (
    BranchResult,
    FinalTokenResult,
    JoinScope,
    JoinScopeState,
    JoinScopeView,
    NewRun,
    RunInfo,
    RunProgress,
    RunView,
    TokenPosition,
    TokenResult,
    TokenStatus,
)
from ductile.core.timestamps import format_timestamp
from ductile.store.notifier import DeadlineSet
from ductile.store.rows import object_or_none, storable, text_or_none, to_json
from ductile.store.session import Cell, Session
from ductile.store.verbs.insert import insert_context, insert_event

Kept = TypeVar("Kept")

#: Graphs that are kept compiled, by fingerprint: a run asks for its graph at every step. And as they are
#: stored, which a run asks for when it starts.
_MOST_GRAPHS = 256
_graphs: dict[str, Graph] = {}
_texts: dict[str, str] = {}


# ---------------------------------------------------------------------------------------- reading


def graph_of(session: Session, fingerprint: str) -> Graph:
    known = _graphs.get(fingerprint)
    if known is not None:
        return known
    row = session.one("graph_by_fingerprint", fingerprint=fingerprint)
    assert row is not None  # noqa: S101 - kept as long as a run follows it
    graph = graph_from_json(object_or_none(row[0]) or {}, fingerprint)
    _keep(_graphs, fingerprint, graph)
    return graph


def _text_of(graph: Graph) -> str:
    known = _texts.get(graph.fingerprint)
    if known is not None:
        return known
    text = to_json(graph_to_json(graph))
    _keep(_texts, graph.fingerprint, text)
    return text


def _keep(known: dict[str, Kept], fingerprint: str, kept: Kept) -> None:
    if len(known) >= _MOST_GRAPHS:
        known.clear()
    known[fingerprint] = kept


def read_run_view(session: Session, job: Job, baggage: JsonObject) -> RunView | None:
    """The run around a step; None for a job that is none, or is not as in `job` any more."""
    if job.run_id is None:
        return None
    row = session.one(
        "run_around_step",
        seq=job.seq,
        id=job.id,
        status=job.status,
        execution=job.execution,
        cancel_requested_at=text_or_none(job.cancel_requested_at),
    )
    if row is None:
        return None
    fingerprint, jobs, cancelled_at, hops, trace_id, scope_id, branch, order = row
    position = TokenPosition(scope_id=scope_id, branch=branch, order=order)
    return RunView(
        info=RunInfo(id=job.run_id, graph=graph_of(session, fingerprint), hops=hops, trace_id=trace_id),
        jobs=jobs,
        cancelled=cancelled_at is not None,
        position=position,
        baggage=baggage,
        scopes=tuple(_closable(session, position.scope_id)),
    )


def place_of(session: Session, job_id: str) -> TokenPosition | None:
    row = session.one("member_by_id", job_id=job_id)
    return None if row is None else TokenPosition(scope_id=row[0], branch=row[1], order=row[2])


def _closable(session: Session, scope_id: str) -> list[JoinScopeView]:
    """The scope and those above it, as far as the end of one line can close them."""
    views: list[JoinScopeView] = []
    at: str | None = scope_id
    while at is not None:
        scope = read_scope(session, at)
        closes = scope.live == 1 and scope.split is not None
        views.append(
            JoinScopeView(
                scope=scope,
                results=branch_ends(session, at) if closes else (),
                baggage=baggage_of(session, scope.context_id) if closes else None,
            )
        )
        at = scope.parent.scope_id if closes and scope.parent is not None else None
    return views


def read_scope(session: Session, scope_id: str) -> JoinScope:
    row = session.one("scope_by_id", id=scope_id)
    assert row is not None  # noqa: S101 - pruned together with its run
    found, split, parent, branch, order, live, state, entry_job_id, context_id = row
    return JoinScope(
        id=found,
        live=live,
        split=split,
        parent=None if parent is None else TokenPosition(scope_id=parent, branch=branch, order=order),
        entry_job_id=entry_job_id,
        context_id=context_id,
        state=JoinScopeState(state),
    )


def branch_ends(session: Session, scope_id: str) -> tuple[BranchResult, ...]:
    return tuple(
        BranchResult(
            branch=branch,
            order=order,
            status=TokenStatus(status),
            payload=object_or_none(payload),
            error=error,
            job_id=job_id,
        )
        for branch, order, status, payload, error, job_id, *_ in session.all(
            "leaves_of_scope", scope_id=scope_id
        )
    )


def leaves_of(session: Session, scope_id: str) -> tuple[TokenResult, ...]:
    return tuple(
        TokenResult(
            position=TokenPosition(scope_id=scope_id, branch=branch, order=order),
            step_position=position,
            step_path=step_path,
            status=TokenStatus(status),
            job_id=job_id,
            event_id=event_id,
            error=error,
        )
        for branch, order, status, _payload, error, job_id, position, step_path, event_id in session.all(
            "leaves_of_scope", scope_id=scope_id
        )
    )


def ends_of(session: Session, run_id: str) -> tuple[FinalTokenResult, ...]:
    return tuple(
        FinalTokenResult(
            status=TokenStatus(status),
            counts=split is None or state == JoinScopeState.BROKEN,
            job_id=job_id,
            step_path=step_path,
            error=error,
        )
        for status, job_id, error, step_path, state, split in session.all("ends_of_run", run_id=run_id)
    )


def baggage_of(session: Session, context_id: str | None) -> JsonObject:
    row = None if context_id is None else session.one("context_by_id", id=context_id)
    return {} if row is None else object_or_none(row[1]) or {}


def earlier_run(session: Session, job: NewJob | Job) -> str | None:
    """The last in line of the live runs of the same pipeline with the same key."""
    if job.dedupe_key is None:
        return None
    row = session.one(
        "last_in_line", dedupe_key=job.dedupe_key, plugin=RUN_PLUGIN, command=job.command, id=job.id
    )
    return None if row is None else str(row[0])


# ---------------------------------------------------------------------------------------- writing


def insert_run(session: Session, run: NewRun) -> None:
    graph = run.graph
    session.run(
        "keep_version",
        fingerprint=graph.fingerprint,
        name=graph.pipeline,
        graph=_text_of(graph),
        at=session.timestamp,
    )
    session.run(
        "insert_run",
        run_id=run.job.id,
        pipeline=graph.pipeline,
        fingerprint=graph.fingerprint,
        deadline_at=None if run.deadline_at is None else format_timestamp(run.deadline_at),
        deadline_wait=None if run.deadline_at is None else (run.deadline_at - session.now).total_seconds(),
        at=session.timestamp,
    )
    if run.deadline_at is not None:
        session.publish(DeadlineSet(due_at=run.deadline_at))


def write_progress(session: Session, run_id: str, progress: RunProgress) -> None:
    """Everything but the steps themselves, which are jobs, and the run's end, which is a settlement."""
    for event in progress.events:
        insert_event(session, event)
    for context in progress.contexts:
        insert_context(session, context)
    for scope in progress.opened_scopes:
        insert_scope(session, run_id, scope)
    for scope_id, live in progress.live_counts:
        session.change("set_live", id=scope_id, live=live)
    for scope_id, state in progress.closed_scopes:
        session.change("set_scope_state", id=scope_id, state=state)
    for leaf in progress.results:
        insert_leaf(session, run_id, leaf)
    if progress.steps:
        session.change("count_run_jobs", run_id=run_id, more=len(progress.steps))


def insert_scope(session: Session, run_id: str, scope: JoinScope) -> None:
    place = scope.parent
    session.run(
        "insert_scope",
        id=scope.id,
        run_id=run_id,
        split_path=scope.split,
        parent_id=None if place is None else place.scope_id,
        parent_branch=None if place is None else place.branch,
        parent_order=None if place is None else place.order,
        live=scope.live,
        entry_job_id=scope.entry_job_id,
        context_id=scope.context_id,
    )


def leave_line(session: Session, run: Job) -> None:
    """A run ends that never began: whoever waits for it waits for the one that it waited for itself."""
    row = None if run.dedupe_key is None else session.one("waited_for", run_id=run.id)
    if row is not None:
        session.run("wait_for_another", id=run.id, other_id=row[0])


def insert_leaf(session: Session, run_id: str, leaf: TokenResult) -> None:
    session.run(
        "insert_leaf",
        **_key(leaf.position),
        run_id=run_id,
        position=leaf.step_position,
        step_path=leaf.step_path,
        status=leaf.status,
        job_id=leaf.job_id,
        event_id=leaf.event_id,
        error=storable(leaf.error),
    )


def insert_member(session: Session, run_id: str, job_id: str, place: TokenPosition) -> None:
    session.run("insert_member", job_id=job_id, run_id=run_id, **_key(place))


def reopen_line(session: Session, place: TokenPosition) -> None:
    """A line that had failed is live again, and with it every scope that its failure had closed."""
    session.run("delete_leaf", **_key(place))
    at: TokenPosition | None = place
    while at is not None:
        scope = read_scope(session, at.scope_id)
        session.change("set_live", id=scope.id, live=scope.live + 1)
        if scope.state is JoinScopeState.BROKEN and scope.parent is not None:
            session.change("set_scope_state", id=scope.id, state=JoinScopeState.OPEN)
            session.run("delete_leaf", **_key(scope.parent))
        # A scope with live lines is counted in the one above it already.
        at = scope.parent if scope.live == 0 else None


def _key(place: TokenPosition) -> dict[str, Cell]:
    return {"scope_id": place.scope_id, "branch": place.branch, "line_order": place.order}
