"""The outcomes of an execution: a closed union that `ductile.core.jobs.settlement.settle` decides about."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from ductile.core.jobs.model import JobReason
from ductile.core.json import JsonObject, JsonValue
from ductile.struct import Value, field


class PluginEvent(Value):
    """An event as the plugin emitted it."""

    type: str
    payload: JsonObject
    dedupe_key: str | None = None


class PluginResponse(Value):
    """A valid response of a plugin, decoded."""

    ok: bool
    result: JsonValue = None
    error: str | None = None
    retry: bool = True
    events: tuple[PluginEvent, ...] = ()
    state_updates: JsonObject | None = None
    artifacts: tuple[JsonValue, ...] = ()


class Evidence(Value):
    """The output and exit of one execution, kept verbatim in the log."""

    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    duration: timedelta = timedelta(0)


NO_EVIDENCE = Evidence()


class Completed(Value):
    """The plugin responded `ok`."""

    response: PluginResponse
    evidence: Evidence = NO_EVIDENCE


class Failed(Value):
    """The plugin responded with an error, violated the protocol, exited with a failure or did not start."""

    reason: JobReason
    error: str
    permanent: bool = False
    evidence: Evidence = NO_EVIDENCE


class TimedOut(Value):
    """The plugin was still running at its deadline."""

    error: str
    evidence: Evidence = NO_EVIDENCE


class Interrupted(Value):
    """The daemon stopped during the execution, or could not start a process. Costs no attempt."""

    reason: JobReason = JobReason.INTERRUPTED
    #: Why no process could be started; None if the daemon stopped.
    error: str | None = None
    evidence: Evidence = NO_EVIDENCE


class Orphaned(Value):
    """The daemon died while the job ran; detected at the next start."""

    evidence: Evidence = NO_EVIDENCE


class EndedEarly(Value):
    """The job was cancelled or purged, or its plugin was removed."""

    reason: JobReason
    error: str
    evidence: Evidence = NO_EVIDENCE

    def __post_init__(self) -> None:
        if self.reason not in EARLY_END_REASONS:
            raise ValueError(f"{self.reason} does not end a job early")


class StepNotCreated(Value):
    """A step whose template, baggage or condition could not be evaluated. It never ran."""

    reason: JobReason
    error: str
    evidence: Evidence = field(default=NO_EVIDENCE)


class RunEnded(Value):
    """No token of a pipeline run is live any more.

    `result` and `evidence` are those of the last step, `artifacts` those of all steps.
    """

    reason: JobReason
    error: str | None = None
    result: JsonValue = None
    artifacts: tuple[JsonValue, ...] = ()
    evidence: Evidence = NO_EVIDENCE

    @property
    def succeeded(self) -> bool:
        return self.reason is JobReason.COMPLETED


EARLY_END_REASONS = frozenset({JobReason.CANCELLED, JobReason.PLUGIN_REMOVED, JobReason.PURGED})

Outcome: TypeAlias = (
    Completed | Failed | TimedOut | Interrupted | Orphaned | EndedEarly | StepNotCreated | RunEnded
)
