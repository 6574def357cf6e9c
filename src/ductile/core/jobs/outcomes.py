"""How a job can end: a closed union. Every one of them goes through `settlement.settle`."""

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
    """A valid answer of a plugin, decoded."""

    ok: bool
    result: JsonValue = None
    error: str | None = None
    retry: bool = True
    events: tuple[PluginEvent, ...] = ()
    state_updates: JsonObject | None = None
    artifacts: tuple[JsonValue, ...] = ()


class Evidence(Value):
    """What one execution left behind, kept verbatim in the log whatever it means."""

    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    duration: timedelta = timedelta(0)


NO_EVIDENCE = Evidence()


class Completed(Value):
    """The plugin answered ok."""

    response: PluginResponse
    evidence: Evidence = NO_EVIDENCE


class Failed(Value):
    """The plugin answered with an error, broke the protocol, exited badly or never started."""

    reason: JobReason
    error: str
    permanent: bool = False
    evidence: Evidence = NO_EVIDENCE


class TimedOut(Value):
    """The plugin was still running at its deadline."""

    error: str
    evidence: Evidence = NO_EVIDENCE


class Interrupted(Value):
    """The daemon stopped before the plugin had answered, or could not start a process; costs no attempt."""

    reason: JobReason = JobReason.INTERRUPTED
    #: Why no process could be started; None if the daemon was stopped.
    error: str | None = None
    evidence: Evidence = NO_EVIDENCE


class Orphaned(Value):
    """The daemon had died while the job ran; found at the next start."""

    evidence: Evidence = NO_EVIDENCE


class EndedEarly(Value):
    """Somebody or something ended it before its time: cancelled, plugin removed, purged."""

    reason: JobReason
    error: str
    evidence: Evidence = NO_EVIDENCE

    def __post_init__(self) -> None:
        if self.reason not in EARLY_END_REASONS:
            raise ValueError(f"{self.reason} does not end a job before its time")


class StepNotCreated(Value):
    """A queued step whose template, baggage or condition could not be evaluated; it never ran."""

    reason: JobReason
    error: str
    evidence: Evidence = field(default=NO_EVIDENCE)


class RunEnded(Value):
    """No line of a pipeline run is live any more.

    `result` and `evidence` are those of its last step, `artifacts` those of all its steps.
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
