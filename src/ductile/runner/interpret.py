"""What the end of a process means for its job. Pure: one process result in, one outcome out."""

from __future__ import annotations

from enum import StrEnum
from signal import Signals

from ductile.core.jobs.model import Completed, Evidence, Failed, JobReason, Outcome, Requeued, TimedOut
from ductile.protocol.plugin_messages import PluginLog, ProtocolViolation, decode_response
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
from ductile.struct import Value

#: sysexits.h EX_CONFIG: by this status a plugin says that a retry cannot help.
EXIT_CONFIG = 78
_MAX_QUOTED = 200


class ExecutionWarning(StrEnum):
    """What is logged as a warning although it does not decide the outcome."""

    EXIT_IGNORED = "exit_ignored"
    STDERR_CUT = "stderr_cut"
    LEFTOVERS = "leftovers"


class Interpretation(Value):
    outcome: Outcome
    logs: tuple[PluginLog, ...] = ()
    warnings: tuple[ExecutionWarning, ...] = ()


def interpret(result: ProcessResult) -> Interpretation:
    """Decide the outcome. A valid `ok` response counts, unless the deadline or the output cap came first."""
    match result:
        case CouldNotStart(error=error, resources_exhausted=True):
            return Interpretation(outcome=Requeued(reason=JobReason.NO_RESOURCES, error=error))
        case CouldNotStart(error=error, permanent=permanent):
            return Interpretation(
                outcome=Failed(reason=JobReason.COULD_NOT_START, error=error, permanent=permanent)
            )
        case ForkServerLost(error=error, output=lost):
            evidence = Evidence() if lost is None else _evidence(lost)
            return Interpretation(
                outcome=Failed(reason=JobReason.RUNNER_LOST, error=error, evidence=evidence)
            )
        case DeadlinePassed(output=output, timeout=timeout):
            error = f"still running at its deadline, after {timeout.total_seconds():g} s"
            timed_out = TimedOut(error=error, evidence=_evidence(output))
            return Interpretation(outcome=timed_out, warnings=_warnings(output))
        case OutputLimitExceeded(output=output):
            error = f"stdout exceeded the limit of {MAX_STDOUT >> 20} MiB; only the beginning is kept"
            too_much = Failed(reason=JobReason.OUTPUT_TOO_LARGE, error=error, evidence=_evidence(output))
            return Interpretation(outcome=too_much, warnings=_warnings(output))
        case Exited(output=output):
            return _interpret_output(output, stopped=False)
        case StoppedOnRequest(output=output):
            return _interpret_output(output, stopped=True)


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
    )


def storable_text(output: bytes) -> str:
    """Return text that every store accepts: invalid UTF-8 and NUL become replacement characters."""
    return output.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def _warnings(output: ProcessOutput) -> tuple[ExecutionWarning, ...]:
    cut = (ExecutionWarning.STDERR_CUT,) if output.stderr_truncated else ()
    left = (ExecutionWarning.LEFTOVERS,) if output.leftovers else ()
    return cut + left
