"""The `pipelines` section: triggers, steps and conditions. `compile.pipelines` turns them into graphs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import msgspec

from ductile.config.schema.fields import Anything, Duration, SecretObject, SecretText, Section, setting
from ductile.config.schema.plugins import RetrySettings
from ductile.core.events.model import Hook
from ductile.core.expressions.operators import Operator
from ductile.core.jobs.settlement import WebhookState
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
        str | None, setting("Left side: a path under `payload`, `context`, `run`, `config` or `event`.")
    ] = None
    op: Annotated[Operator | None, setting("Operator of the comparison.")] = None
    value: Annotated[
        Anything, setting("Right side. `exists` takes none, or `false` to test for absence.", default="none")
    ] = msgspec.UNSET
    all_of: Annotated[
        tuple[ConditionSettings, ...] | None, setting("True when each of these conditions is.")
    ] = msgspec.field(default=None, name="all")
    any_of: Annotated[
        tuple[ConditionSettings, ...] | None, setting("True when at least one of these conditions is.")
    ] = msgspec.field(default=None, name="any")
    negated: Annotated[ConditionSettings | None, setting("True when this condition is not.")] = msgspec.field(
        default=None, name="not"
    )


class StepSettings(Section, frozen=True, kw_only=True):
    """One step; exactly one of `uses`, `call`, `steps` and `split` is set."""

    id: Annotated[str | None, setting("Name of the step, unique within its pipeline.")] = None
    condition: Annotated[ConditionSettings | None, setting("Bypass the step unless this holds.")] = (
        msgspec.field(default=None, name="if")
    )
    uses: Annotated[
        str | None, setting("Run a plugin: `plugin` for its `handle` command, or `plugin.command`.")
    ] = None
    call: Annotated[str | None, setting("Run the steps of another pipeline, then continue.")] = None
    steps: Annotated[tuple[StepSettings, ...] | None, setting("Run these steps one after the other.")] = None
    split: Annotated[tuple[StepSettings, ...] | None, setting("Run these branches in parallel.")] = None
    join: Annotated[
        JoinPolicy, setting("When the step after a split runs: if every branch succeeded, or always.")
    ] = JoinPolicy.SUCCEEDED
    payload: Annotated[
        SecretObject | None,
        setting(
            "Builds the payload of a `uses` step from `{payload.x}`, `{context.x}` and `{run.payload.x}`."
        ),
    ] = msgspec.field(default=None, name="with")
    baggage: Annotated[
        Mapping[str, Anything] | None,
        setting(
            "Values added to the context of the steps inside and after this one: names and paths, or `from` "
            "and `namespace`."
        ),
    ] = None
    retry: Annotated[RetrySettings | None, setting("Retry policy of this step.", default="the plugin's")] = (
        None
    )
    timeout: Annotated[
        Duration | None, setting("Longest run time of this step.", default="the plugin's", at_least=1)
    ] = None
    on_events: Annotated[
        Mapping[str, tuple[StepSettings, ...]],
        setting("By event type, the steps for such events before the next step."),
    ] = {}


class PipelineSettings(Section, frozen=True, kw_only=True):
    name: Annotated[str, setting("Name of the pipeline, unique.")]
    on: Annotated[str | None, setting("Type of the event that starts a run.")] = None
    on_hook: Annotated[Hook | None, setting("Start a run when a job that notifies ends in this way.")] = (
        msgspec.field(default=None, name="on-hook")
    )
    condition: Annotated[ConditionSettings | None, setting("Start a run only if this holds.")] = (
        msgspec.field(default=None, name="if")
    )
    from_plugin: Annotated[
        str | None,
        setting("Start a run only for events of this source: a plugin, or `api`, `cli` or `webhook`."),
    ] = None
    execution_mode: Annotated[
        ExecutionMode,
        setting("Whether a caller of the API waits for the run to end. `sync` is read as `synchronous`."),
    ] = ExecutionMode.ASYNC
    timeout: Annotated[Duration, setting("How long the caller of a synchronous run waits.", at_least=1)] = (
        timedelta(seconds=30)
    )
    return_on_timeout: Annotated[
        ReturnOnTimeout,
        setting("Response to the caller after that time: the id, or also the finished steps."),
    ] = ReturnOnTimeout.JOB_ID
    on_timeout: Annotated[
        OnTimeout, setting("Whether the run continues after that time. `kill` is read as `cancel`.")
    ] = OnTimeout.CONTINUE
    state_webhook_url: Annotated[
        SecretText | None,
        setting("URL that gets the states of its runs, besides one that a caller names."),
    ] = None
    state_webhook_events: Annotated[
        tuple[WebhookState, ...], setting("The states that are sent there.", default="all of them")
    ] = ()
    notify_on_complete: Annotated[
        bool, setting("Start the pipelines that have `on-hook` when a run of this one ends.")
    ] = False
    steps: Annotated[tuple[StepSettings, ...], setting("The steps of a run, in order.")]
