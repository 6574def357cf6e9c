"""Pipeline runs in the store: read the state of a run, and write its progress.

`ductile.core.runs` decides which steps of a run come next.
"""

from __future__ import annotations

from functools import partial

from ductile.core.jobs.model import Job, NewJob
from ductile.core.json import JsonObject
from ductile.core.runs.graph import RUN_PLUGIN, Graph, graph_from_json, graph_to_json
from ductile.core.runs.progress import final_results, view_closable_scopes
from ductile.core.runs.state import (
    FinalTokenResult,
    JoinScope,
    JoinScopeState,
    NewRun,
    RunInfo,
    RunProgress,
    RunView,
    TokenPosition,
    TokenResult,
    TokenStatus,
)
from ductile.store.notifier import DeadlineSet
from ductile.store.rows import from_json, row_reader, storable, timestamp_or_none, to_json
from ductile.store.session import Session, SqlValue
from ductile.store.verbs.jobs.insert import insert_context, insert_event
from ductile.struct import asdict

#: Caches by fingerprint: a run needs its graph at every step, and the JSON text of the graph when it starts.
_MAX_GRAPHS = 256
_graphs: dict[str, Graph] = {}
_graph_texts: dict[str, str] = {}

_read_scope = row_reader(JoinScope, state=JoinScopeState)
_read_token_result = row_reader(TokenResult, status=TokenStatus, payload=from_json)

# -- reading


def graph_of(session: Session, fingerprint: str) -> Graph:
    graph = _graphs.get(fingerprint)
    if graph is None:
        text = session.fetch_value("graph_by_fingerprint", fingerprint=fingerprint)
        assert text is not None  # noqa: S101 - kept as long as a run follows it
        if len(_graphs) >= _MAX_GRAPHS:
            _graphs.clear()
        graph = _graphs[fingerprint] = graph_from_json(from_json(text), fingerprint)
    return graph


def read_run_view(session: Session, job: Job, baggage: JsonObject) -> RunView | None:
    """Return the run around a step; None if the job is no step, or has changed since it was read."""
    if job.run_id is None:
        return None
    row = session.fetch_one(
        "run_around_step",
        seq=job.seq,
        id=job.id,
        status=job.status,
        execution=job.execution,
        cancel_requested_at=timestamp_or_none(job.cancel_requested_at),
    )
    if row is None:
        return None
    fingerprint, jobs, cancelled_at, hops, trace_id, source_event_id, scope_id, branch, sort_key = row
    graph = graph_of(session, fingerprint)
    payload = session.fetch_value("event_payload", id=source_event_id) if graph.refers_to_run else None
    position = TokenPosition(scope_id=scope_id, branch=branch, sort_key=sort_key)
    return RunView(
        info=RunInfo(
            id=job.run_id,
            graph=graph,
            hops=hops,
            trace_id=trace_id,
            token=job.token,
            payload={} if payload is None else from_json(payload),
        ),
        jobs=jobs,
        cancelled=cancelled_at is not None,
        position=position,
        baggage=baggage,
        scopes=view_closable_scopes(
            position.scope_id,
            partial(read_scope, session),
            partial(token_results, session),
            partial(baggage_of, session),
        ),
    )


def position_of(session: Session, job_id: str) -> TokenPosition | None:
    row = session.fetch_one("member_by_id", job_id=job_id)
    return None if row is None else TokenPosition(scope_id=row[0], branch=row[1], sort_key=row[2])


def read_scope(session: Session, scope_id: str) -> JoinScope:
    row = session.fetch_one("scope_by_id", id=scope_id)
    assert row is not None  # noqa: S101 - pruned together with its run
    parent_id, branch, sort_key, *columns, entry_job_id, context_id, state = row
    parent = (
        None if parent_id is None else TokenPosition(scope_id=parent_id, branch=branch, sort_key=sort_key)
    )
    return _read_scope((*columns, parent, entry_job_id, context_id, state))


def token_results(session: Session, scope_id: str) -> tuple[TokenResult, ...]:
    return tuple(
        _read_token_result((TokenPosition(scope_id=scope_id, branch=branch, sort_key=sort_key), *result))
        for branch, sort_key, *result in session.fetch_all("token_results_of_scope", scope_id=scope_id)
    )


def run_results(session: Session, run_id: str) -> tuple[FinalTokenResult, ...]:
    return final_results(
        (
            _read_token_result(
                (TokenPosition(scope_id=scope_id, branch=branch, sort_key=sort_key), *result, None)
            ),
            split,
            JoinScopeState(state),
        )
        for scope_id, branch, sort_key, *result, split, state in session.fetch_all(
            "token_results_of_run", run_id=run_id
        )
    )


def baggage_of(session: Session, context_id: str | None) -> JsonObject:
    row = None if context_id is None else session.fetch_one("context_by_id", id=context_id)
    return {} if row is None else from_json(row[1])


def predecessor_run(session: Session, job: NewJob | Job) -> str | None:
    """Return the latest live run of the same pipeline with the same key, for which a new run waits."""
    if job.dedupe_key is None:
        return None
    run_id: str | None = session.fetch_value(
        "last_waiting_run", dedupe_key=job.dedupe_key, plugin=RUN_PLUGIN, command=job.command, id=job.id
    )
    return run_id


# -- writing


def insert_run(session: Session, run: NewRun) -> None:
    graph = run.graph
    text = _graph_texts.get(graph.fingerprint)
    if text is None:
        if len(_graph_texts) >= _MAX_GRAPHS:
            _graph_texts.clear()
        text = _graph_texts[graph.fingerprint] = to_json(graph_to_json(graph))
    version = {"fingerprint": graph.fingerprint, "pipeline": graph.pipeline, "at": session.timestamp}
    session.execute("insert_graph_if_absent", **version, graph=text)
    session.execute(
        "insert_run",
        **version,
        run_id=run.job.id,
        deadline_at=timestamp_or_none(run.deadline_at),
        deadline_wait=None if run.deadline_at is None else (run.deadline_at - session.now).total_seconds(),
    )
    if run.deadline_at is not None:
        session.publish(DeadlineSet(due_at=run.deadline_at))


def write_progress(session: Session, run_id: str, progress: RunProgress) -> None:
    """Write the progress of a run, but not its new steps, which are inserted as jobs, and its end."""
    for event in progress.events:
        insert_event(session, event)
    for context in progress.contexts:
        insert_context(session, context)
    for scope in progress.opened_scopes:
        insert_scope(session, run_id, scope)
    for scope_id, live in progress.live_counts:
        session.update_one("set_live", id=scope_id, live=live)
    for scope_id, state in progress.closed_scopes:
        session.update_one("set_scope_state", id=scope_id, state=state)
    for result in progress.results:
        insert_token_result(session, run_id, result)
    if progress.steps:
        session.update_one("count_run_jobs", run_id=run_id, more=len(progress.steps))


def insert_scope(session: Session, run_id: str, scope: JoinScope) -> None:
    parent = scope.parent
    session.execute(
        "insert_scope",
        **asdict(scope),
        run_id=run_id,
        parent_id=None if parent is None else parent.scope_id,
        parent_branch=None if parent is None else parent.branch,
        parent_order=None if parent is None else parent.sort_key,
    )


def relink_waiting_runs(session: Session, run: Job) -> None:
    """Relink the runs that wait for `run`, which never began, to its own predecessor."""
    predecessor = None if run.dedupe_key is None else session.fetch_value("waited_for", run_id=run.id)
    if predecessor is not None:
        session.execute("wait_for_another", id=run.id, other_id=predecessor)


def insert_token_result(session: Session, run_id: str, result: TokenResult) -> None:
    session.execute(
        "insert_token_result",
        **asdict(result) | _position_columns(result.position) | {"error": storable(result.error)},
        run_id=run_id,
    )


def insert_member(session: Session, run_id: str, job_id: str, position: TokenPosition) -> None:
    session.execute("insert_member", job_id=job_id, run_id=run_id, **_position_columns(position))


def reopen_token(session: Session, position: TokenPosition) -> None:
    """Make a failed token live again, and reopen every scope that its failure had closed."""
    session.execute("delete_token_result", **_position_columns(position))
    token: TokenPosition | None = position
    while token is not None:
        scope = read_scope(session, token.scope_id)
        session.update_one("set_live", id=scope.id, live=scope.live + 1)
        if scope.state is JoinScopeState.BROKEN and scope.parent is not None:
            session.update_one("set_scope_state", id=scope.id, state=JoinScopeState.OPEN)
            session.execute("delete_token_result", **_position_columns(scope.parent))
        # A scope that had live tokens is already counted as live in the scope around it.
        token = scope.parent if scope.live == 0 else None


def _position_columns(position: TokenPosition) -> dict[str, SqlValue]:
    return {"scope_id": position.scope_id, "branch": position.branch, "line_order": position.sort_key}
