"""Start, advance and end pipeline runs: from the events of a step to the next steps, or to the run's end.

Pure. The store reads a `RunView`, calls one of these functions and writes the returned `RunProgress` in the
same transaction, so a run is never left half advanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import count
from random import Random

from ductile.core.events.model import IndexedEvent, NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import Job, JobReason, RunEnded
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import Policy
from ductile.core.runs.advance import RUN_CANCELLED_ERROR, RunAdvancer, Token
from ductile.core.runs.state import (
    MAX_RUN_JOBS,
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
    TokenStart,
    TokenStatus,
)
from ductile.struct import replace

#: The type of the event that stands for the result of a step that emitted no event.
STEP_SUCCEEDED = "ductile.step.succeeded"
#: The most characters of each error in a summary of several. The step itself has its full error.
_MAX_ERROR_LENGTH = 300


def start_first_steps(
    run: NewRun, info: RunInfo, baggage: JsonObject, policy: Policy, now: datetime, rng: Random
) -> RunProgress:
    """Return the first steps of a run."""
    root = JoinScope(id=make_id(now, rng), live=1, context_id=run.job.event_context_id)
    start = TokenStart(
        path=run.graph.first,
        position=TokenPosition(scope_id=root.id, branch=0, sort_key=""),
        event=run.event,
        context_id=run.job.event_context_id,
        baggage=baggage,
    )
    return start_tokens(info, (JoinScopeView(scope=root),), (start,), policy, now, rng)


def start_tokens(
    info: RunInfo,
    scopes: Sequence[JoinScopeView],
    starts: Sequence[TokenStart],
    policy: Policy,
    now: datetime,
    rng: Random,
) -> RunProgress:
    """Start tokens in new join scopes and advance them."""
    advancer = RunAdvancer(info, policy, now, rng, origin=(info.id, 0), after_job_id=info.after_job_id)
    for scope in scopes:
        advancer.add_scope(scope, is_new=True)
    for index, start in enumerate(starts):
        token = Token(
            position=start.position,
            event=start.event,
            stored=True,
            context_id=start.context_id,
            baggage=start.baggage,
            producer_job_id=info.id,
            last_job_id=None,
            event_index=index,
        )
        advancer.move_to(token, start.path)
    return advancer.advance()


def advance_run(
    view: RunView,
    job: Job,
    emitted: Sequence[IndexedEvent],
    result: JsonValue,
    policy: Policy,
    now: datetime,
    rng: Random,
) -> RunProgress:
    """Continue after a step that succeeded: one token per emitted event, or one for its result if none."""
    advancer = _load_advancer(view, job, policy, now, rng)
    step = view.info.graph.step(job.step_path)
    if view.cancelled or step is None:
        advancer.end(
            _token_without_event(view, job), job.step_path or "", TokenStatus.FAILED, RUN_CANCELLED_ERROR
        )
        return advancer.advance()
    tokens = [
        _next_token(view, job, indexed_event.event, indexed_event.index, stored=True)
        for indexed_event in emitted
    ]
    if not tokens:
        event = NewEvent(
            id=make_id(now, rng), type=STEP_SUCCEEDED, source=job.plugin, payload={"result": result}
        )
        tokens = [_next_token(view, job, event, 0, stored=False)]
    advancer.fork_token(view.position.scope_id, len(tokens))
    for token in tokens:
        advancer.move_to(token, step.on_events.get(token.event.type, step.next), after=step)
    return advancer.advance()


def fail_token(
    view: RunView, job: Job, error: str | None, policy: Policy, now: datetime, rng: Random
) -> RunProgress:
    """End the token of a step that ended without success.

    The end can close a scope with `join: always` and so start more steps. The failed step is not the
    cause of a run that is too large, so the token after the split fails instead.
    """
    remaining_steps = max(0, MAX_RUN_JOBS - view.jobs)
    advancer = _load_advancer(view, job, policy, now, rng, max_new_steps=remaining_steps)
    advancer.end(_token_without_event(view, job), job.step_path or "", TokenStatus.FAILED, error)
    return advancer.advance()


def _load_advancer(
    view: RunView, job: Job, policy: Policy, now: datetime, rng: Random, max_new_steps: int | None = None
) -> RunAdvancer:
    advancer = RunAdvancer(
        view.info,
        policy,
        now,
        rng,
        origin=(job.id, job.execution),
        cancelled=view.cancelled,
        max_new_steps=max_new_steps,
    )
    for scope in view.scopes:
        advancer.add_scope(scope, is_new=False)
    return advancer


def _next_token(view: RunView, job: Job, event: NewEvent, index: int, *, stored: bool) -> Token:
    return Token(
        position=replace(view.position, sort_key=f"{view.position.sort_key}.{index:04d}"),
        event=event,
        stored=stored,
        context_id=job.event_context_id,
        baggage=view.baggage,
        producer_job_id=job.id,
        last_job_id=job.id,
        event_index=index,
    )


def _token_without_event(view: RunView, job: Job) -> Token:
    """Return a token with an empty event, for a step at which the token ends."""
    empty = NewEvent(id="", type="", source=job.plugin, payload={})
    return replace(_next_token(view, job, empty, 0, stored=True), position=view.position)


def view_closable_scopes(
    scope_id: str,
    find_scope: Callable[[str], JoinScope],
    find_results: Callable[[str], Sequence[TokenResult]],
    find_baggage: Callable[[str | None], JsonObject],
) -> tuple[JoinScopeView, ...]:
    """Return the scope and those around it, as far as the end of one token can close them."""
    views: list[JoinScopeView] = []
    current_id: str | None = scope_id
    while current_id is not None:
        scope = find_scope(current_id)
        closes = scope.live == 1 and scope.split is not None
        views.append(
            JoinScopeView(
                scope=scope,
                results=tuple(find_results(current_id)) if closes else (),
                baggage=find_baggage(scope.context_id) if closes else None,
            )
        )
        current_id = scope.parent.scope_id if closes and scope.parent is not None else None
    return tuple(views)


def final_results(
    results: Iterable[tuple[TokenResult, str | None, JoinScopeState]],
) -> tuple[FinalTokenResult, ...]:
    """Return the results that decide the end of a run, in the order of the pipeline's steps, then of events.

    `results` are all results of the run, each with the split and the state of its join scope. Those of the
    run's own scope and of broken splits decide, and all failed ones are part of its error.
    """
    chosen = []
    for result, split, state in results:
        decides = split is None or state is JoinScopeState.BROKEN
        if decides or result.status is TokenStatus.FAILED:
            chosen.append((result, decides))
    chosen.sort(key=lambda pair: (pair[0].step_position, pair[0].position.sort_key))
    return tuple(
        FinalTokenResult(
            status=result.status,
            decides_result=decides,
            job_id=result.job_id,
            step_path=result.step_path,
            error=result.error,
        )
        for result, decides in chosen
    )


def summarise_run(results: Sequence[FinalTokenResult]) -> RunEnded:
    """Return how a run without live tokens ends. `results` are in the order of the pipeline's steps.

    Its error has every path at which the run failed, with the error there. A split that failed because of its
    branches is left out. A path that failed several times is named once, with its first error.
    """
    failed = [result for result in results if result.status is TokenStatus.FAILED]
    others = [
        result for result in results if result.decides_result and result.status is not TokenStatus.FAILED
    ]
    if not failed:
        return RunEnded(reason=JobReason.COMPLETED)
    by_path: dict[str, FinalTokenResult] = {}
    for result in failed:
        by_path.setdefault(result.step_path, result)
    causes = [
        result
        for path, result in by_path.items()
        if not any(inner_path.startswith(f"{path}/") for inner_path in by_path)
    ]
    limit = None if len(causes) == 1 else _MAX_ERROR_LENGTH
    described = []
    for cause in causes:
        error = cause.error
        if not error:
            described.append(f"{cause.step_path} failed")
        else:
            is_cut = limit is not None and len(error) > limit
            described.append(f"{cause.step_path}: {error[:limit]}{'…' if is_cut else ''}")
    reason = JobReason.PARTIAL_SUCCESS if others else JobReason.STEP_FAILED
    return RunEnded(reason=reason, error="; ".join(described))


def last_job(results: Sequence[FinalTokenResult]) -> str | None:
    """Return the job whose result is the run's: that of the last deciding token; None if no job ran."""
    job_ids = (result.job_id for result in reversed(results) if result.decides_result)
    return next((job_id for job_id in job_ids if job_id is not None), None)


def combine_artifacts(steps: Iterable[tuple[str, Sequence[JsonValue]]]) -> tuple[JsonValue, ...]:
    """Return the artifacts of a run's steps, given as (step path, artifacts), in their order.

    A name that several artifacts have is prefixed by the step's path: `report.csv` of the step `daily`
    becomes `daily/report.csv`, and the second one of that step `daily/2/report.csv`. An artifact with the
    name and location of an earlier one replaces it.
    """
    by_location: dict[tuple[JsonValue, ...], tuple[str, JsonObject]] = {}
    for path, artifacts in steps:
        for artifact in artifacts:
            if isinstance(artifact, dict):
                location = (artifact.get("name"), artifact.get("path"), artifact.get("url"))
                by_location[location] = (path, artifact)
    names = Counter(str(artifact.get("name")) for _path, artifact in by_location.values())
    taken = {name for name, times in names.items() if times == 1}
    combined: list[JsonValue] = []
    for path, artifact in by_location.values():
        name = str(artifact.get("name"))
        if names[name] > 1:
            numbered = (f"{path}/{number}/{name}" for number in count(2))
            unique = f"{path}/{name}"
            while unique in taken:
                unique = next(numbered)
            taken.add(unique)
            artifact = {**artifact, "name": unique}  # noqa: PLW2901 - the renamed one replaces it
        combined.append(artifact)
    return tuple(combined)
