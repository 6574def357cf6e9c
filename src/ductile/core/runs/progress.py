"""How a pipeline run goes on: from the events of a step to the next steps, or to the join.

Pure: the store reads a `RunView`, asks, and writes the `RunProgress` in the same transaction. Every line is
followed until it waits for a job or has ended, so that nothing of a run is ever half done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import count
from random import Random

from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import Job, JobReason
from ductile.core.jobs.outcomes import RunEnded
from ductile.core.json import JsonObject, JsonValue
from ductile.core.policy import Policy
from ductile.core.runs.advance import RUN_CANCELLED_ERROR, RunAdvancer, Token
from ductile.core.runs.state import (
    MAX_RUN_JOBS,
    FinalTokenResult,
    JoinScope,
    JoinScopeView,
    NewRun,
    RunInfo,
    RunProgress,
    RunView,
    TokenPosition,
    TokenStart,
    TokenStatus,
)
from ductile.struct import Value, replace

#: The event that stands for a step which emitted none, so that the chain goes on.
STEP_SUCCEEDED = "ductile.step.succeeded"
#: Characters of each error where several are told in one. Each step has all of its own.
_LONGEST_ERROR = 300


class EmittedToken(Value):
    """One event of a step that succeeded, as it travels on."""

    event: NewEvent
    index: int


def start_first_steps(
    run: NewRun, facts: RunInfo, baggage: JsonObject, rules: Policy, now: datetime, rng: Random
) -> RunProgress:
    """The first steps of a run."""
    root = JoinScope(id=make_id(now, rng), live=1, context_id=run.job.event_context_id)
    start = TokenStart(
        path=run.graph.first,
        place=TokenPosition(scope_id=root.id, branch=0, order=""),
        event=run.event,
        context_id=run.job.event_context_id,
        baggage=baggage,
    )
    return start_tokens(facts, (JoinScopeView(scope=root),), (start,), rules, now, rng)


def start_tokens(
    facts: RunInfo,
    scopes: Sequence[JoinScopeView],
    starts: Sequence[TokenStart],
    rules: Policy,
    now: datetime,
    rng: Random,
) -> RunProgress:
    """Lines that begin in new scopes."""
    walk = RunAdvancer(facts, rules, now, rng, origin=(facts.id, 0), after=facts.after_job_id)
    for scope in scopes:
        walk.open(scope)
    for index, start in enumerate(starts):
        line = Token(
            place=start.place,
            event=start.event,
            stored=True,
            context_id=start.context_id,
            baggage=start.baggage,
            producer=facts.id,
            last_job=None,
            index=index,
        )
        walk.follow(start.path, line)
    return walk.progress()


def advance_run(
    view: RunView,
    job: Job,
    emitted: Sequence[EmittedToken],
    result: JsonValue,
    rules: Policy,
    now: datetime,
    rng: Random,
) -> RunProgress:
    """A step has succeeded: one line for each of its events, or for its result if it emitted none."""
    walk = _walk_from(view, job, rules, now, rng)
    step = view.facts.graph.step(job.step_path)
    if view.cancelled or step is None:
        walk.end(_line_of(view, job), job.step_path or "", TokenStatus.FAILED, RUN_CANCELLED_ERROR)
        return walk.progress()
    lines = [_line_on(view, job, one.event, one.index, stored=True) for one in emitted]
    if not lines:
        made = NewEvent(
            id=make_id(now, rng), type=STEP_SUCCEEDED, source=job.plugin, payload={"result": result}
        )
        lines = [_line_on(view, job, made, 0, stored=False)]
    walk.multiply(view.place.scope_id, len(lines))
    for line in lines:
        walk.follow(step.on_events.get(line.event.type, step.next), line, after=step)
    return walk.progress()


def fail_token(
    view: RunView, job: Job, error: str | None, rules: Policy, now: datetime, rng: Random
) -> RunProgress:
    """A step has ended without success: its line ends there.

    What a split starts all the same cannot be refused to a step that has failed already, so in a run that is
    full it is the line after the split that ends.
    """
    walk = _walk_from(view, job, rules, now, rng)
    walk.room = max(0, MAX_RUN_JOBS - view.jobs)
    walk.end(_line_of(view, job), job.step_path or "", TokenStatus.FAILED, error)
    return walk.progress()


def _walk_from(view: RunView, job: Job, rules: Policy, now: datetime, rng: Random) -> RunAdvancer:
    walk = RunAdvancer(
        view.facts, rules, now, rng, origin=(job.id, job.execution), after=None, cancelled=view.cancelled
    )
    for scope in view.scopes:
        walk.know(scope)
    return walk


def _line_on(view: RunView, job: Job, event: NewEvent, index: int, *, stored: bool) -> Token:
    return Token(
        place=replace(view.place, order=f"{view.place.order}.{index:04d}"),
        event=event,
        stored=stored,
        context_id=job.event_context_id,
        baggage=view.baggage,
        producer=job.id,
        last_job=job.id,
        index=index,
    )


def _line_of(view: RunView, job: Job) -> Token:
    """The line of a step that ends with it; there is no event to travel on."""
    nothing = NewEvent(id="", type="", source=job.plugin, payload={})
    return replace(_line_on(view, job, nothing, 0, stored=True), place=view.place)


def summarise_run(ends: Sequence[FinalTokenResult]) -> RunEnded:
    """How a run ends of which no line is live; `ends` are in the order of the pipeline."""
    failed = [end for end in ends if end.status is TokenStatus.FAILED]
    others = [end for end in ends if end.counts and end.status is not TokenStatus.FAILED]
    if not failed:
        return RunEnded(reason=JobReason.COMPLETED)
    reason = JobReason.PARTIAL_SUCCESS if others else JobReason.STEP_FAILED
    return RunEnded(reason=reason, error=_name_failures(failed))


def _name_failures(failed: Sequence[FinalTokenResult]) -> str:
    """Return every path at which the run failed, with the error there.

    A split that failed because of its branches is not named beside them. A path that failed several times is
    named once, with its first error.
    """
    first: dict[str, FinalTokenResult] = {}
    for end in failed:
        first.setdefault(end.step_path, end)
    causes = [end for path, end in first.items() if not any(other.startswith(f"{path}/") for other in first)]
    most = None if len(causes) == 1 else _LONGEST_ERROR
    return "; ".join(_name_failure(end, most) for end in causes)


def _name_failure(end: FinalTokenResult, most: int | None) -> str:
    if not end.error:
        return f"{end.step_path} failed"
    cut = most is not None and len(end.error) > most
    return f"{end.step_path}: {end.error[:most]}{'…' if cut else ''}"


def last_job(ends: Sequence[FinalTokenResult]) -> str | None:
    """The job whose answer is the run's: that of the last end; None if nothing ran."""
    return next((end.job_id for end in reversed(ends) if end.counts and end.job_id is not None), None)


def combine_artifacts(steps: Iterable[tuple[str, Sequence[JsonValue]]]) -> tuple[JsonValue, ...]:
    """Return the artifacts of these steps, given as (step path, artifacts), in their order.

    A name that several of them have is given the step's path: `report.csv` of the step `daily` becomes
    `daily/report.csv`. If the step ran several times, the second one becomes `daily/2/report.csv`. A step
    that names what an earlier step has named, with the same name and place, adds nothing.
    """
    found: dict[tuple[JsonValue, ...], tuple[str, JsonObject]] = {}
    for path, artifacts in steps:
        for artifact in artifacts:
            if isinstance(artifact, dict):
                place = (artifact.get("name"), artifact.get("path"), artifact.get("url"))
                found[place] = (path, artifact)
    names = Counter(str(artifact.get("name")) for _path, artifact in found.values())
    taken = {name for name, times in names.items() if times == 1}
    combined: list[JsonValue] = []
    for path, artifact in found.values():
        name = str(artifact.get("name"))
        if names[name] == 1:
            combined.append(artifact)
            continue
        own = _free_name(path, name, taken)
        taken.add(own)
        combined.append({**artifact, "name": own})
    return tuple(combined)


def _free_name(path: str, name: str, taken: set[str]) -> str:
    numbered = (f"{path}/{number}/{name}" for number in count(2))
    own = f"{path}/{name}"
    while own in taken:
        own = next(numbered)
    return own
