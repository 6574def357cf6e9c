"""How a pipeline run goes on: from the events of a step to the next steps, or to the join (ENGINE 2).

Pure: the store reads a `RunView`, asks, and writes the `Progress` in the same transaction. Every line is
followed until it waits for a job or has ended, so that nothing of a run is ever half done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from random import Random

from ductile.core.ids import make_id
from ductile.core.jobs import Job, Reason
from ductile.core.json_values import JsonObject, JsonValue
from ductile.core.lineage import NewEvent
from ductile.core.outcomes import RunEnded
from ductile.core.rules import Rules
from ductile.core.run_values import (
    MAX_RUN_JOBS,
    LeafStatus,
    NewRun,
    Place,
    Progress,
    RunEnd,
    RunFacts,
    RunView,
    Scope,
    ScopeView,
    Start,
)
from ductile.core.walk import CANCELLED, Line, Walk
from ductile.value import Value, replace

#: The event that stands for a step which emitted none, so that the chain goes on (SPEC 7.2).
STEP_SUCCEEDED = "ductile.step.succeeded"
#: Characters of each error where several are told in one. Each step has all of its own.
_LONGEST_ERROR = 300


class Emission(Value):
    """One event of a step that succeeded, as it travels on."""

    event: NewEvent
    index: int


def begin(
    run: NewRun, facts: RunFacts, baggage: JsonObject, rules: Rules, now: datetime, dice: Random
) -> Progress:
    """The first steps of a run."""
    root = Scope(id=make_id(now, dice), live=1, context_id=run.job.event_context_id)
    start = Start(
        path=run.graph.first,
        place=Place(scope_id=root.id, branch=0, order=""),
        event=run.event,
        context_id=run.job.event_context_id,
        baggage=baggage,
    )
    return set_out(facts, (ScopeView(scope=root),), (start,), rules, now, dice)


def set_out(
    facts: RunFacts,
    scopes: Sequence[ScopeView],
    starts: Sequence[Start],
    rules: Rules,
    now: datetime,
    dice: Random,
) -> Progress:
    """Lines that begin in new scopes."""
    walk = Walk(facts, rules, now, dice, origin=(facts.id, 0), after=facts.after_job_id)
    for scope in scopes:
        walk.open(scope)
    for index, start in enumerate(starts):
        line = Line(
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


def advance(
    view: RunView,
    job: Job,
    emitted: Sequence[Emission],
    result: JsonValue,
    rules: Rules,
    now: datetime,
    dice: Random,
) -> Progress:
    """A step has succeeded: one line for each of its events, or for its result if it emitted none."""
    walk = _walk_from(view, job, rules, now, dice)
    step = view.facts.graph.step(job.step_path)
    if view.cancelled or step is None:
        walk.end(_line_of(view, job), job.step_path or "", LeafStatus.FAILED, CANCELLED)
        return walk.progress()
    lines = [_line_on(view, job, one.event, one.index, stored=True) for one in emitted]
    if not lines:
        made = NewEvent(
            id=make_id(now, dice), type=STEP_SUCCEEDED, source=job.plugin, payload={"result": result}
        )
        lines = [_line_on(view, job, made, 0, stored=False)]
    walk.multiply(view.place.scope_id, len(lines))
    for line in lines:
        walk.follow(step.on_events.get(line.event.type, step.next), line, after=step)
    return walk.progress()


def give_up(
    view: RunView, job: Job, error: str | None, rules: Rules, now: datetime, dice: Random
) -> Progress:
    """A step has ended without success: its line ends there.

    What a split starts all the same cannot be refused to a step that has failed already, so in a run that is
    full it is the line after the split that ends.
    """
    walk = _walk_from(view, job, rules, now, dice)
    walk.room = max(0, MAX_RUN_JOBS - view.jobs)
    walk.end(_line_of(view, job), job.step_path or "", LeafStatus.FAILED, error)
    return walk.progress()


def _walk_from(view: RunView, job: Job, rules: Rules, now: datetime, dice: Random) -> Walk:
    walk = Walk(
        view.facts, rules, now, dice, origin=(job.id, job.execution), after=None, cancelled=view.cancelled
    )
    for scope in view.scopes:
        walk.know(scope)
    return walk


def _line_on(view: RunView, job: Job, event: NewEvent, index: int, *, stored: bool) -> Line:
    return Line(
        place=replace(view.place, order=f"{view.place.order}.{index:04d}"),
        event=event,
        stored=stored,
        context_id=job.event_context_id,
        baggage=view.baggage,
        producer=job.id,
        last_job=job.id,
        index=index,
    )


def _line_of(view: RunView, job: Job) -> Line:
    """The line of a step that ends with it; there is no event to travel on."""
    nothing = NewEvent(id="", type="", source=job.plugin, payload={})
    return replace(_line_on(view, job, nothing, 0, stored=True), place=view.place)


def summarise(ends: Sequence[RunEnd]) -> RunEnded:
    """How a run ends of which no line is live; `ends` are in the order of the pipeline (ENGINE 2)."""
    failed = [end for end in ends if end.status is LeafStatus.FAILED]
    others = [end for end in ends if end.counts and end.status is not LeafStatus.FAILED]
    if not failed:
        return RunEnded(reason=Reason.COMPLETED)
    reason = Reason.PARTIAL_SUCCESS if others else Reason.STEP_FAILED
    return RunEnded(reason=reason, error=_name_failures(failed))


def _name_failures(failed: Sequence[RunEnd]) -> str:
    """Return every path at which the run failed, with the error there.

    A split that failed because of its branches is not named beside them. A path that failed several times is
    named once, with its first error.
    """
    first: dict[str, RunEnd] = {}
    for end in failed:
        first.setdefault(end.step_path, end)
    causes = [end for path, end in first.items() if not any(other.startswith(f"{path}/") for other in first)]
    most = None if len(causes) == 1 else _LONGEST_ERROR
    return "; ".join(_name_failure(end, most) for end in causes)


def _name_failure(end: RunEnd, most: int | None) -> str:
    if not end.error:
        return f"{end.step_path} failed"
    cut = most is not None and len(end.error) > most
    return f"{end.step_path}: {end.error[:most]}{'…' if cut else ''}"


def last_job(ends: Sequence[RunEnd]) -> str | None:
    """The job whose answer is the run's: that of the last end; None if nothing ran."""
    return next((end.job_id for end in reversed(ends) if end.counts and end.job_id is not None), None)
