"""Describe what became of a run, step by step, and compare it with what was expected. Pure.

A simulated run and a recorded one are described by the same function, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ductile.core.expressions.paths import MISSING, Missing
from ductile.core.jobs.model import Job, JobReason, JobStatus
from ductile.core.json import JsonObject, JsonValue
from ductile.core.json_differences import Path, compare_values
from ductile.core.runs.graph import Graph, Node, UseNode
from ductile.core.suggest import did_you_mean
from ductile.struct import DescribedEnum, Value, field

#: A step that ended for one of these did not run: it could not be created from its input.
NOT_CREATED = frozenset({JobReason.BAD_TEMPLATE, JobReason.BAD_BAGGAGE, JobReason.BAD_CONDITION})


class RunStatus(DescribedEnum):
    SUCCEEDED = "succeeded", "No step failed."
    FAILED = "failed", "Steps failed, and none of its ends succeeded."
    PARTIAL_SUCCESS = "partial_success", "Some of its ends succeeded and others failed."
    NOT_STARTED = "not_started", "The `if` of the pipeline does not hold."


class StepEnd(DescribedEnum):
    SUCCEEDED = "succeeded", "It ran and succeeded, each time."
    FAILED = "failed", "It ran and failed, at least once."
    NOT_CREATED = "not_made", "Its `if`, `with` or `baggage` could not be evaluated, at least once."
    BYPASSED = "bypassed", "Its `if` was false, and it did not run."
    ENTERED = "entered", "Of `steps`, `call` and `split`: a step inside was reached."
    NOT_REACHED = "not_reached", "The run did not reach it."


class ObservedJob(Value):
    """One run of a step. `payload` and `context` are its input."""

    outcome: StepEnd
    payload: JsonObject
    context: JsonObject
    attempts: int
    reason: JobReason
    error: str | None


class ObservedStep(Value):
    outcome: StepEnd
    jobs: tuple[ObservedJob, ...] = ()
    #: Why it was bypassed, each time.
    bypasses: tuple[str, ...] = ()
    #: Why it could not be created.
    errors: tuple[str, ...] = ()

    @property
    def cause(self) -> str | None:
        """Return why the step did not run, or why it failed."""
        failed = (job.error for job in self.jobs if job.outcome is not StepEnd.SUCCEEDED)
        return next(iter((*self.errors, *(error for error in failed if error), *self.bypasses)), None)


class ObservedRun(Value):
    status: RunStatus
    error: str | None = None
    result: JsonValue = None
    #: Every step of the pipeline by its path, in the order of the pipeline.
    steps: Mapping[str, ObservedStep] = field(default_factory=dict)
    #: The paths of the jobs in the order in which they first ran.
    order: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()


class JobRecord(Value):
    """A job of a run with its input."""

    job: Job
    payload: JsonObject
    context: JsonObject


def observe_steps(
    graph: Graph, records: Sequence[JobRecord], entries: Iterable[JsonObject]
) -> Mapping[str, ObservedStep]:
    """Return what became of each step. `entries` are the data of the run's entries in the ledger."""
    jobs: dict[str, list[ObservedJob]] = {}
    for record in records:
        job = record.job
        outcome = StepEnd.FAILED
        if job.status is JobStatus.SUCCEEDED:
            outcome = StepEnd.SUCCEEDED
        elif job.reason in NOT_CREATED:
            outcome = StepEnd.NOT_CREATED
        observed = ObservedJob(
            outcome=outcome,
            payload=record.payload,
            context=record.context,
            attempts=job.attempt,
            reason=job.reason,
            error=job.last_error,
        )
        jobs.setdefault(job.step_path or "", []).append(observed)
    bypasses: dict[str, list[str]] = {}
    errors: dict[str, list[str]] = {}
    for entry in entries:
        step = entry.get("step")
        if isinstance(step, str):
            texts, key = (errors, "error") if "error" in entry else (bypasses, "explanation")
            texts.setdefault(step, []).append(str(entry.get(key)))
    reached = {*jobs, *bypasses, *errors}
    return {
        node.path: _observe_step(
            node,
            tuple(jobs.get(node.path, ())),
            tuple(bypasses.get(node.path, ())),
            tuple(errors.get(node.path, ())),
            is_entered=any(path.startswith(f"{node.path}/") for path in reached),
        )
        for node in sorted(graph.nodes.values(), key=lambda node: node.position)
    }


def _observe_step(
    node: Node,
    jobs: tuple[ObservedJob, ...],
    bypasses: tuple[str, ...],
    errors: tuple[str, ...],
    *,
    is_entered: bool,
) -> ObservedStep:
    outcomes = {job.outcome for job in jobs} | ({StepEnd.NOT_CREATED} if errors else set())
    outcome = StepEnd.NOT_REACHED
    for worst in (StepEnd.FAILED, StepEnd.NOT_CREATED, StepEnd.SUCCEEDED):
        if worst in outcomes:
            outcome = worst
            break
    else:
        if is_entered and not isinstance(node, UseNode):
            outcome = StepEnd.ENTERED
        elif bypasses:
            outcome = StepEnd.BYPASSED
    return ObservedStep(outcome=outcome, jobs=jobs, bypasses=bypasses, errors=errors)


def status_of_run(job: Job) -> RunStatus:
    """Return the status by which an ended run is described."""
    if job.status is JobStatus.SUCCEEDED:
        return RunStatus.SUCCEEDED
    return RunStatus.PARTIAL_SUCCESS if job.reason is JobReason.PARTIAL_SUCCESS else RunStatus.FAILED


# -- expectations


class JobExpectation(Value):
    """The expected outcome of one run of a step. Fields that are None are not compared."""

    outcome: StepEnd | None = None
    payload: JsonObject | None = None
    context: JsonObject | None = None
    attempts: int | None = None
    error: str | None = None


class StepExpectation(JobExpectation):
    times: int | None = None
    occurrences: tuple[JobExpectation, ...] | None = None


class RunExpectation(Value):
    """The expected outcome of a run. Fields that are None, or MISSING, are not compared."""

    status: RunStatus | None = None
    result: JsonValue | Missing = MISSING
    error: str | None = None
    steps: Mapping[str, StepExpectation] = field(default_factory=dict)
    order: tuple[str, ...] | None = None
    starts: tuple[str, ...] | None = None


class RunDifference(Value):
    """Something that is not as expected. MISSING where there is no value."""

    path: Path
    expected: JsonValue | Missing
    actual: JsonValue | Missing
    #: The comparison that decided, or the error.
    because: str | None = None
    hint: str | None = None


def compare_run(
    expected: RunExpectation, observed: ObservedRun, ignore: Sequence[Path] = ()
) -> tuple[RunDifference, ...]:
    """Return what is not as expected, in the order of the expectation."""
    differences: list[RunDifference] = []
    if expected.status not in (None, observed.status):
        differences.append(_differ(("status",), expected.status, observed.status, because=observed.error))
    if expected.error is not None and expected.error not in (observed.error or ""):
        differences.append(_differ(("error",), expected.error, observed.error))
    if expected.result is not MISSING:
        differences += _compare_values(("result",), expected.result, observed.result, ignore)
    for path, step in expected.steps.items():
        observed_step = observed.steps.get(path)
        if observed_step is not None:
            differences += _compare_step(("steps", path), step, observed_step, ignore, observed.error)
        elif observed.status is not RunStatus.NOT_STARTED:
            differences.append(unknown_step(("steps", path), path, observed.steps))
    if expected.order not in (None, observed.order):
        differences.append(_differ(("order",), [*(expected.order or ())], [*observed.order]))
    if expected.starts is not None and sorted(expected.starts) != sorted(observed.starts):
        differences.append(_differ(("starts",), sorted(expected.starts), sorted(observed.starts)))
    return tuple(differences)


def unknown_step(path: Path, name: str, known: Iterable[str]) -> RunDifference:
    """Return the difference for a step that is not in the pipeline, with the step that was probably meant."""
    paths = [*known]
    with_name = [step_path for step_path in paths if step_path.endswith(f"/{name}")]
    hint = f"did you mean {with_name[0]}?" if len(with_name) == 1 else did_you_mean(name, paths)
    return RunDifference(
        path=path,
        expected=MISSING,
        actual=MISSING,
        because="the pipeline has no such step",
        hint=hint or f"its steps are {', '.join(paths)}",
    )


def _compare_step(
    path: Path,
    expected: StepExpectation,
    observed: ObservedStep,
    ignore: Sequence[Path],
    run_error: str | None,
) -> Iterator[RunDifference]:
    cause = observed.cause
    if observed.outcome is StepEnd.NOT_REACHED:
        cause = run_error or "the run did not reach it"
    if expected.outcome not in (None, observed.outcome):
        yield _differ((*path, "outcome"), expected.outcome, observed.outcome, because=cause)
    if expected.times not in (None, len(observed.jobs)):
        yield _differ((*path, "times"), expected.times, len(observed.jobs), because=cause)
    numbered = len(observed.jobs) > 1
    for number, job in enumerate(observed.jobs, start=1):
        job_path = (*path, str(number)) if numbered else path
        yield from _compare_job(job_path, expected, job, ignore, with_outcome=False)
    if not observed.jobs and (expected.payload is not None or expected.context is not None):
        key = "payload" if expected.payload is not None else "context"
        if expected.outcome in (None, observed.outcome):
            value = getattr(expected, key)
            yield _differ((*path, key), value, MISSING, because=cause)
    if expected.occurrences is not None:
        yield from _compare_occurrences((*path, "occurrences"), expected.occurrences, observed, ignore)


def _compare_occurrences(
    path: Path, expected: Sequence[JobExpectation], observed: ObservedStep, ignore: Sequence[Path]
) -> Iterator[RunDifference]:
    """Compare in any order: expectations that a job meets are matched first, the others one by one."""
    unmatched_jobs = [*observed.jobs]
    unmatched: list[tuple[int, JobExpectation]] = []
    for number, expectation in enumerate(expected, start=1):
        match = next(
            (job for job in unmatched_jobs if not any(_compare_job((), expectation, job, ignore))), None
        )
        if match is None:
            unmatched.append((number, expectation))
        else:
            unmatched_jobs.remove(match)
    for (number, expectation), job in zip(unmatched, unmatched_jobs, strict=False):
        yield from _compare_job((*path, str(number)), expectation, job, ignore)
    if len(expected) != len(observed.jobs):
        yield _differ(path, len(expected), len(observed.jobs), because=observed.cause)


def _compare_job(
    path: Path,
    expected: JobExpectation,
    job: ObservedJob,
    ignore: Sequence[Path],
    *,
    with_outcome: bool = True,
) -> Iterator[RunDifference]:
    if with_outcome and expected.outcome not in (None, job.outcome):
        yield _differ((*path, "outcome"), expected.outcome, job.outcome, because=job.error)
    if expected.payload is not None:
        yield from _compare_values((*path, "payload"), expected.payload, job.payload, ignore)
    if expected.context is not None:
        yield from _compare_values((*path, "context"), expected.context, job.context, ignore)
    if expected.attempts not in (None, job.attempts):
        yield _differ((*path, "attempts"), expected.attempts, job.attempts, because=job.error)
    if expected.error is not None and expected.error not in (job.error or ""):
        yield _differ((*path, "error"), expected.error, job.error)


def _compare_values(
    path: Path, expected: JsonValue, actual: JsonValue, ignore: Sequence[Path]
) -> Iterator[RunDifference]:
    name = path[-1]
    below = [pattern[1:] for pattern in ignore if pattern[0] == name]
    for difference in compare_values(expected, actual, below):
        yield RunDifference(path=(*path, *difference.path), expected=difference.before, actual=difference.now)


def _differ(path: Path, expected: Any, actual: Any, *, because: str | None = None) -> RunDifference:
    return RunDifference(path=path, expected=expected, actual=actual, because=because)


def expectation_of(observed: ObservedRun) -> RunExpectation:
    """Return the expectation that a run ends as this one did."""
    steps: dict[str, StepExpectation] = {}
    for path, step in observed.steps.items():
        if step.outcome is StepEnd.ENTERED:
            continue
        match step.jobs:
            case ():
                expectation = StepExpectation(outcome=step.outcome)
            case (job,):
                expectation = StepExpectation(outcome=step.outcome, payload=job.payload, context=job.context)
            case jobs:
                occurrences = tuple(
                    JobExpectation(outcome=job.outcome, payload=job.payload, context=job.context)
                    for job in jobs
                )
                expectation = StepExpectation(outcome=step.outcome, occurrences=occurrences)
        steps[path] = expectation
    return RunExpectation(status=observed.status, result=observed.result, steps=steps)
