"""The `pipelines` section: triggers, steps and conditions. `compile.pipelines` turns them into graphs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import msgspec

from ductile.config.schema.fields import Anything, Duration, Object, Section, about
from ductile.config.schema.plugins import RetrySettings
from ductile.core.events.model import Hook
from ductile.core.expressions.operators import Operator
from ductile.core.runs.graph import JoinPolicy
from ductile.protocol.manifest.model import ExecutionMode


class ReturnOnTimeout(StrEnum):
    JOB_ID = "job_id"
    PARTIAL = "partial"


class OnTimeout(StrEnum):
    CONTINUE = "continue"
    CANCEL = "cancel"

    @classmethod
    def _missing_(cls, value: object) -> OnTimeout | None:
        """Older configurations write `kill` for `cancel`."""
        return cls.CANCEL if value == "kill" else None


class ConditionSettings(Section, frozen=True, kw_only=True):
    """Either a comparison (`path`, `op`, `value`) or one of `all`, `any` and `not`."""

    path: Annotated[
        str | None, about("Left side: a path under `payload`, `context`, `config` or `event`.")
    ] = None
    op: Annotated[Operator | None, about("Operator of the comparison.")] = None
    value: Annotated[
        Anything, about("Right side. `exists` takes none, or `false` to test for absence.", default="none")
    ] = msgspec.UNSET
    all_of: Annotated[
        tuple[ConditionSettings, ...] | None, about("True when each of these conditions is.")
    ] = msgspec.field(default=None, name="all")
    any_of: Annotated[
        tuple[ConditionSettings, ...] | None, about("True when at least one of these conditions is.")
    ] = msgspec.field(default=None, name="any")
    negated: Annotated[ConditionSettings | None, about("True when this condition is not.")] = msgspec.field(
        default=None, name="not"
    )


class StepSettings(Section, frozen=True, kw_only=True):
    """One step; exactly one of `uses`, `call`, `steps` and `split` is set."""

    id: Annotated[str | None, about("Name of the step, unique within its pipeline.")] = None
    condition: Annotated[ConditionSettings | None, about("Bypass the step unless this holds.")] = (
        msgspec.field(default=None, name="if")
    )
    uses: Annotated[
        str | None, about("Run a plugin: `plugin` for its `handle` command, or `plugin.command`.")
    ] = None
    call: Annotated[str | None, about("Run the steps of another pipeline, then continue.")] = None
    steps: Annotated[tuple[StepSettings, ...] | None, about("Run these steps one after the other.")] = None
    split: Annotated[tuple[StepSettings, ...] | None, about("Run these branches in parallel.")] = None
    join: Annotated[
        JoinPolicy, about("When the step after a split runs: if every branch succeeded, or always.")
    ] = JoinPolicy.SUCCEEDED
    payload: Annotated[
        Object | None, about("Builds the payload of a `uses` step from `{payload.x}` and `{context.x}`.")
    ] = msgspec.field(default=None, name="with")
    baggage: Annotated[
        Mapping[str, Anything] | None,
        about("Values added to the context of later steps: names and paths, or `from` and `namespace`."),
    ] = None
    retry: Annotated[RetrySettings | None, about("Retry policy of this step.", default="the plugin's")] = None
    timeout: Annotated[
        Duration | None, about("Longest run time of this step.", default="the plugin's", at_least=1)
    ] = None
    on_events: Annotated[
        Mapping[str, tuple[StepSettings, ...]],
        about("By event type, the steps for such events before the next step."),
    ] = {}


class PipelineSettings(Section, frozen=True, kw_only=True):
    name: Annotated[str, about("Name of the pipeline, unique.")]
    on: Annotated[str | None, about("Type of the event that starts a run.")] = None
    on_hook: Annotated[Hook | None, about("Start a run when a job that notifies ends in this way.")] = (
        msgspec.field(default=None, name="on-hook")
    )
    condition: Annotated[ConditionSettings | None, about("Start a run only if this holds.")] = msgspec.field(
        default=None, name="if"
    )
    from_plugin: Annotated[
        str | None,
        about("Start a run only for events of this source: a plugin, or `api`, `cli` or `webhook`."),
    ] = None
    execution_mode: Annotated[
        ExecutionMode,
        about("Whether a caller of the API waits for the run to end. `sync` is read as `synchronous`."),
    ] = ExecutionMode.ASYNC
    timeout: Annotated[Duration, about("How long the caller of a synchronous run waits.", at_least=1)] = (
        timedelta(seconds=30)
    )
    return_on_timeout: Annotated[
        ReturnOnTimeout, about("Response to the caller after that time: the id, or also the finished steps.")
    ] = ReturnOnTimeout.JOB_ID
    on_timeout: Annotated[
        OnTimeout, about("Whether the run continues after that time. `kill` is read as `cancel`.")
    ] = OnTimeout.CONTINUE
    notify_on_complete: Annotated[
        bool, about("Start the pipelines that have `on-hook` when a run of this one ends.")
    ] = False
    steps: Annotated[tuple[StepSettings, ...], about("The steps of a run, in order.")]
