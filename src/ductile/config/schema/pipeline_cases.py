"""Files of test cases for pipelines: the input of a run, the responses of its steps, and what is expected.

`ductile.operations.pipeline_test` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec

from ductile.config.schema.fields import Anything, Section, setting
from ductile.core.runs.expectations import RunStatus, StepEnd

#: The reasons of failures that a plugin, or its process, can cause: names of `JobReason`.
FailureReason: TypeAlias = Literal[
    "plugin_error",
    "protocol_error",
    "bad_exit",
    "killed",
    "output_too_large",
    "state_too_large",
    "too_many_events",
    "could_not_start",
    "plugin_unavailable",
    "runner_lost",
]


class CaseEvent(Section, frozen=True, kw_only=True):
    """An event that a step emits."""

    type: Annotated[str, setting("Its type.")]
    payload: Annotated[Mapping[str, Anything], setting("Its payload. The result is added as `result`.")] = {}
    dedupe_key: Annotated[str | None, setting("Its dedupe key.")] = None


class CaseResponse(Section, frozen=True, kw_only=True):
    """The end of one execution. Without any key it succeeds with a synthetic result."""

    result: Annotated[Anything, setting("The result.", default="a synthetic text")] = msgspec.UNSET
    events: Annotated[tuple[CaseEvent, ...], setting("The events that the plugin emits, in order.")] = ()
    error: Annotated[str | None, setting("The plugin responds with this error.")] = None
    retry: Annotated[bool, setting("With `error`: whether the plugin allows another attempt.")] = True
    reason: Annotated[
        FailureReason | None,
        setting("With `error`: the reason of the failure, if it is not `plugin_error`."),
    ] = None
    exit: Annotated[int | None, setting("The process ends with this status, without a response.")] = None
    stderr: Annotated[str | None, setting("With `exit`: what it prints on standard error.")] = None
    timed_out: Annotated[bool, setting("The process is still running at its deadline.")] = False


class CaseOccurrence(CaseResponse, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several runs of a step."""

    given: Annotated[
        Mapping[str, Anything] | None,
        setting("For the input that has these values in its payload."),
    ] = msgspec.field(default=None, name="for")
    attempts: Annotated[
        tuple[CaseResponse, ...],
        setting("The ends of its attempts, one after the other. The last one is repeated."),
    ] = ()


class CaseStep(CaseResponse, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The responses of a step, each time it runs."""

    attempts: Annotated[
        tuple[CaseResponse, ...],
        setting("The ends of its attempts, one after the other. The last one is repeated."),
    ] = ()
    occurrences: Annotated[
        tuple[CaseOccurrence, ...],
        setting("If it runs several times with different responses: an entry for each time."),
    ] = ()


class CaseStart(Section, frozen=True, kw_only=True):
    payload: Annotated[Mapping[str, Anything], setting("The payload that the run begins with.")] = {}
    type: Annotated[
        str | None, setting("Type of the event.", default="`on` of the pipeline, else `cli.trigger`")
    ] = None
    source: Annotated[
        str | None, setting("Source of the event.", default="`from_plugin` of the pipeline, else `cli`")
    ] = None
    headers: Annotated[Mapping[str, str] | None, setting("Headers of the webhook request.")] = None
    dedupe_key: Annotated[str | None, setting("Dedupe key of the event.")] = None
    context: Annotated[Mapping[str, Anything], setting("The baggage that the run inherits.")] = {}
    hops: Annotated[int, setting("The hops of the run.", at_least=0)] = 0
    run_id: Annotated[str | None, setting("The id of the run, for `{run.id}`.", default="a fixed one")] = None
    trace_id: Annotated[str | None, setting("The trace id, for `{context.ductile_trace_id}`.")] = None


class ExpectedOccurrence(Section, frozen=True, kw_only=True):
    """One of several runs of a step."""

    outcome: Annotated[StepEnd | None, setting("What becomes of it.")] = None
    payload: Annotated[Mapping[str, Anything] | None, setting("The payload that it is given, whole.")] = None
    context: Annotated[Mapping[str, Anything] | None, setting("The baggage that it is given, whole.")] = None
    attempts: Annotated[int | None, setting("How often it is tried.", at_least=1)] = None
    error: Annotated[str | None, setting("A part of its error.")] = None


class ExpectedStep(ExpectedOccurrence, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All runs of a step."""

    times: Annotated[int | None, setting("How many jobs it has.", at_least=0)] = None
    occurrences: Annotated[
        tuple[ExpectedOccurrence, ...] | None,
        setting("Its runs one by one, in any order."),
    ] = None


class CaseExpectation(Section, frozen=True, kw_only=True):
    """Only what is written is compared."""

    status: Annotated[RunStatus | None, setting("How the run ends.")] = None
    result: Annotated[Anything, setting("Its result, whole.", default="not compared")] = msgspec.UNSET
    error: Annotated[str | None, setting("A part of its error.")] = None
    steps: Annotated[Mapping[str, ExpectedStep], setting("What becomes of steps, by their path.")] = {}
    order: Annotated[tuple[str, ...] | None, setting("The paths of the jobs in the order they ran.")] = None
    starts: Annotated[
        tuple[str, ...] | None,
        setting("What its events and its end start: `PLUGIN.COMMAND` or `pipeline:NAME`, in any order."),
    ] = None


class PipelineCase(Section, frozen=True, kw_only=True):
    name: Annotated[str, setting("What the case shows, in a few words.")]
    start: Annotated[CaseStart, setting("What the run begins with.")] = CaseStart()
    steps: Annotated[
        Mapping[str, CaseStep],
        setting("Responses of steps by their path. Other steps succeed with a synthetic response."),
    ] = {}
    expect: Annotated[CaseExpectation, setting("What is compared.")] = CaseExpectation()
    ignore: Annotated[
        tuple[str, ...],
        setting("Paths that are not compared, such as `payload.at`, `context.*` or `result.items.*.id`."),
    ] = ()


class CaseFile(Section, frozen=True, kw_only=True):
    pipeline: Annotated[str, setting("The pipeline that the cases are for.")]
    description: Annotated[str | None, setting("Where the cases come from.")] = None
    cases: Annotated[tuple[PipelineCase, ...], setting("The cases.")]
