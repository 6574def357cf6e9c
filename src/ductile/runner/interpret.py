"""Decides the outcome of a job from the exit status and the output of its process. Pure."""

from __future__ import annotations

from enum import StrEnum
from signal import Signals

import msgspec

from ductile.config.secrets import redact
from ductile.core.jobs.model import (
    Completed,
    Evidence,
    Failed,
    JobReason,
    Outcome,
    OutputFormat,
    PluginEvent,
    PluginResponse,
    Requeued,
    TimedOut,
)
from ductile.core.json import JsonValue
from ductile.core.scripts import EXIT_CONFIG, RetryRule, Script
from ductile.protocol.plugin_messages import (
    PluginLog,
    ProtocolViolation,
    decode_response,
    script_result,
    storable_text,
)
from ductile.runner.port import (
    MAX_STDOUT,
    CouldNotStart,
    DeadlinePassed,
    Exited,
    ExitStatus,
    ForkServerLost,
    OutputLimitExceeded,
    ProcessOutput,
    ProcessResult,
    StoppedOnRequest,
)
from ductile.struct import Value, replace

_MAX_QUOTED = 200
_STATE_KEY = "state_updates"
#: The error of a failed script quotes the end of its output, up to these lines and characters.
_MAX_QUOTED_LINES = 5
_MAX_QUOTED_END = 500


class ExecutionWarning(StrEnum):
    """A fault that is logged as a warning, because it does not decide the outcome."""

    EXIT_IGNORED = "exit_ignored"
    STDERR_CUT = "stderr_cut"
    LEFTOVERS = "leftovers"


class Interpretation(Value):
    """The outcome of an execution, the log lines of the plugin, and warnings."""

    outcome: Outcome
    logs: tuple[PluginLog, ...] = ()
    warnings: tuple[ExecutionWarning, ...] = ()


def interpret(result: ProcessResult, script: Script | None = None) -> Interpretation:
    """Decide the outcome. A valid `ok` response counts, unless the deadline or the output cap came first.

    The exit status of a script decides, unless the script speaks the plugin protocol.
    """
    interpretation = _interpret_result(result, script)
    if script is None:
        return interpretation
    outcome = interpretation.outcome
    outcome = replace(outcome, evidence=replace(outcome.evidence, output=script.output))
    # A failure that the script does not want retried is permanent.
    match outcome:
        case Failed(permanent=False, reason=reason) if reason is not JobReason.COULD_NOT_START:
            outcome = replace(outcome, permanent=not _retries(script.retry, outcome.evidence))
        case TimedOut():
            outcome = replace(outcome, permanent=not _retries(script.retry, outcome.evidence))
    return replace(interpretation, outcome=outcome)


def mask_state_secrets(outcome: Outcome) -> Outcome:
    """Mask values under secret-looking keys in the `state_updates` of the output that is kept in the log.

    The state keeps the values. The log is shown to everyone who may read jobs, and it outlives the values.
    """
    stdout = outcome.evidence.stdout
    if stdout is None or outcome.evidence.output is not OutputFormat.PROTOCOL or _STATE_KEY not in stdout:
        return outcome
    if isinstance(outcome, Completed) and not _has_secrets(outcome.response.state_updates):
        return outcome
    try:
        body = msgspec.json.decode(stdout)
    except (msgspec.DecodeError, RecursionError):
        return outcome
    if not isinstance(body, dict) or not _has_secrets(body.get(_STATE_KEY)):
        return outcome
    body[_STATE_KEY] = redact(body[_STATE_KEY])
    return replace(outcome, evidence=replace(outcome.evidence, stdout=msgspec.json.encode(body).decode()))


def _has_secrets(updates: JsonValue) -> bool:
    return updates is not None and redact(updates) != updates


def _retries(rule: RetryRule, evidence: Evidence) -> bool:
    return rule.statuses is None or rule.should_retry(evidence.exit_code)


def _interpret_result(result: ProcessResult, script: Script | None) -> Interpretation:
    """Return the outcome of one way in which a process can end."""
    match result:
        case CouldNotStart(error=error, resources_exhausted=True):
            return Interpretation(outcome=Requeued(reason=JobReason.NO_RESOURCES, error=error))
        case CouldNotStart(error=error, permanent=permanent):
            return Interpretation(
                outcome=Failed(reason=JobReason.COULD_NOT_START, error=error, permanent=permanent)
            )
        case ForkServerLost(error=error, output=incomplete):
            evidence = Evidence() if incomplete is None else _evidence(incomplete)
            return Interpretation(
                outcome=Failed(reason=JobReason.RUNNER_LOST, error=error, evidence=evidence)
            )
        case DeadlinePassed(output=output, timeout=timeout):
            error = f"still running at its deadline, after {timeout.total_seconds():g} s"
            timed_out = TimedOut(error=error, evidence=_evidence(output))
            return Interpretation(outcome=timed_out, warnings=_warnings(output))
        case OutputLimitExceeded(output=output):
            error = f"stdout exceeded the limit of {MAX_STDOUT >> 20} MiB; only the beginning is kept"
            failed = Failed(reason=JobReason.OUTPUT_TOO_LARGE, error=error, evidence=_evidence(output))
            return Interpretation(outcome=failed, warnings=_warnings(output))
        case Exited(output=output) if script is not None and script.output is not OutputFormat.PROTOCOL:
            return Interpretation(outcome=_script_outcome(output, script), warnings=_warnings(output))
        case StoppedOnRequest(output=output) if (
            script is not None and script.output is not OutputFormat.PROTOCOL
        ):
            # Many programs exit with 0 after a stop signal: that is not a success.
            return Interpretation(outcome=Requeued(evidence=_evidence(output)), warnings=_warnings(output))
        case Exited(output=output):
            return _interpret_output(output, stopped=False)
        case StoppedOnRequest(output=output):
            return _interpret_output(output, stopped=True)


def _script_outcome(output: ProcessOutput, script: Script) -> Completed | Failed:
    """Return the outcome of a script that exited by itself; the end of its output names the error."""
    evidence, exit_code = _evidence(output), output.status.exit_code
    if exit_code == 0:
        result = script_result(output.stdout, script.output)
        if isinstance(result, ProtocolViolation):
            return Failed(reason=JobReason.PROTOCOL_ERROR, error=result.message, evidence=evidence)
        # The settlement adds the result to the payload.
        done = (
            ()
            if script.done_event is None
            else (PluginEvent(type=script.done_event, payload={"exit_code": exit_code}),)
        )
        return Completed(response=PluginResponse(ok=True, result=result, events=done), evidence=evidence)
    if evidence.signal is not None:
        reason, error = JobReason.KILLED, f"killed by {_signal_name(evidence.signal)}"
    elif exit_code is None:
        reason, error = JobReason.BAD_EXIT, "its exit status is not known"
    else:
        config = ", a configuration error" if exit_code == EXIT_CONFIG else ""
        reason, error = JobReason.BAD_EXIT, f"exited with status {exit_code}{config}"
    for stream, text in (("stderr", evidence.stderr), ("stdout", evidence.stdout)):
        lines = [line.rstrip() for line in (text or "")[-10 * _MAX_QUOTED_END :].splitlines() if line.strip()]
        if end := "\n".join(lines[-_MAX_QUOTED_LINES:])[-_MAX_QUOTED_END:].strip():
            error = f"{error}; {stream} ends with: {end}"
            break
    return Failed(reason=reason, error=error, permanent=exit_code == EXIT_CONFIG, evidence=evidence)


def _interpret_output(output: ProcessOutput, *, stopped: bool) -> Interpretation:
    decoded = decode_response(output.stdout)
    evidence = _evidence(output)
    warnings = _warnings(output)
    if isinstance(decoded, ProtocolViolation):
        outcome = (
            Requeued(evidence=evidence)
            if stopped
            else _failed_without_response(decoded, output.status, evidence)
        )
        return Interpretation(outcome=outcome, warnings=warnings)
    response = decoded.response
    if response.cost is not None:
        evidence = replace(evidence, cost=response.cost)
    if response.ok:
        if output.status.exit_code != 0:
            warnings = (ExecutionWarning.EXIT_IGNORED, *warnings)
        done = Completed(response=response, evidence=evidence)
        return Interpretation(outcome=done, logs=decoded.logs, warnings=warnings)
    failed = Failed(
        reason=JobReason.PLUGIN_ERROR,
        error=response.error or "",
        permanent=not response.retry or output.status.exit_code == EXIT_CONFIG,
        evidence=evidence,
    )
    return Interpretation(outcome=failed, logs=decoded.logs, warnings=warnings)


def _failed_without_response(violation: ProtocolViolation, status: ExitStatus, evidence: Evidence) -> Failed:
    error = violation.message
    if status.signal is not None:
        reason, error = JobReason.KILLED, f"killed by {_signal_name(status.signal)}; {error}"
    elif status.exit_code == 0:
        reason = JobReason.PROTOCOL_ERROR
    else:
        config = ", a configuration error" if status.exit_code == EXIT_CONFIG else ""
        reason, error = JobReason.BAD_EXIT, f"exited with status {status.exit_code}{config}; {error}"
    last_line = (evidence.stderr or "").rstrip().rsplit("\n", 1)[-1].strip()
    if last_line:
        error = f"{error}; stderr ends with: {last_line[:_MAX_QUOTED]}"
    permanent = status.exit_code == EXIT_CONFIG
    return Failed(reason=reason, error=error, permanent=permanent, evidence=evidence)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _evidence(output: ProcessOutput) -> Evidence:
    return Evidence(
        stdout=storable_text(output.stdout),
        stderr=storable_text(output.stderr),
        exit_code=output.status.exit_code,
        signal=output.status.signal,
        duration=output.duration,
        stderr_truncated=output.stderr_truncated,
    )


def _warnings(output: ProcessOutput) -> tuple[ExecutionWarning, ...]:
    truncated = (ExecutionWarning.STDERR_CUT,) if output.stderr_truncated else ()
    leftovers = (ExecutionWarning.LEFTOVERS,) if output.leftovers else ()
    return truncated + leftovers
