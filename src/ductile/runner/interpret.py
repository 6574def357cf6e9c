"""What the end of a process means for its job. Pure: one ending in, one outcome out."""

from __future__ import annotations

from enum import StrEnum
from signal import Signals

from ductile.core.jobs.model import JobReason
from ductile.core.jobs.outcomes import Completed, Evidence, Failed, Interrupted, Outcome, TimedOut
from ductile.protocol.plugin_messages import DecodedResponse, PluginLog, ProtocolViolation, decode_response
from ductile.runner.port import (
    MAX_STDOUT,
    CouldNotStart,
    DeadlinePassed,
    Ending,
    Exited,
    ExitStatus,
    OutputLimitExceeded,
    ProcessOutput,
    RunnerLost,
    StoppedOnRequest,
)
from ductile.struct import Value

#: sysexits.h EX_CONFIG: the plugin says that trying again cannot help.
EXIT_CONFIG = 78
_QUOTED = 200


class ExecutionWarning(StrEnum):
    """What the log should warn about although it does not decide the outcome."""

    EXIT_IGNORED = "exit_ignored"
    STDERR_CUT = "stderr_cut"
    LEFTOVERS = "leftovers"


class Interpretation(Value):
    outcome: Outcome
    logs: tuple[PluginLog, ...] = ()
    remarks: tuple[ExecutionWarning, ...] = ()


def interpret(ending: Ending) -> Interpretation:
    """Decide the outcome. A valid ok answer wins, unless the deadline or the cap had come first."""
    match ending:
        case CouldNotStart(error=error, shortage=True):
            return Interpretation(outcome=Interrupted(reason=JobReason.NO_RESOURCES, error=error))
        case CouldNotStart(error=error, permanent=permanent):
            return Interpretation(
                outcome=Failed(reason=JobReason.COULD_NOT_START, error=error, permanent=permanent)
            )
        case RunnerLost(error=error, remains=remains):
            evidence = Evidence() if remains is None else _evidence(remains)
            return Interpretation(
                outcome=Failed(reason=JobReason.RUNNER_LOST, error=error, evidence=evidence)
            )
        case DeadlinePassed(remains=remains, timeout=timeout):
            error = f"still running at its deadline, after {timeout.total_seconds():g} s"
            outcome = TimedOut(error=error, evidence=_evidence(remains))
            return Interpretation(outcome=outcome, remarks=_remarks(remains))
        case OutputLimitExceeded(remains=remains):
            error = f"stdout exceeded the limit of {MAX_STDOUT >> 20} MiB; only the beginning is kept"
            too_much = Failed(reason=JobReason.OUTPUT_TOO_LARGE, error=error, evidence=_evidence(remains))
            return Interpretation(outcome=too_much, remarks=_remarks(remains))
        case Exited(remains=remains):
            return _interpret_output(remains, stopped=False)
        case StoppedOnRequest(remains=remains):
            return _interpret_output(remains, stopped=True)


def _interpret_output(remains: ProcessOutput, *, stopped: bool) -> Interpretation:
    answer = decode_response(remains.stdout)
    evidence = _evidence(remains)
    remarks = _remarks(remains)
    if isinstance(answer, ProtocolViolation):
        if stopped:
            return Interpretation(outcome=Interrupted(evidence=evidence), remarks=remarks)
        return Interpretation(outcome=_no_answer(answer, remains, evidence), remarks=remarks)
    if answer.response.ok:
        if remains.status.exit_code != 0:
            remarks = (ExecutionWarning.EXIT_IGNORED, *remarks)
        done = Completed(response=answer.response, evidence=evidence)
        return Interpretation(outcome=done, logs=answer.logs, remarks=remarks)
    return Interpretation(
        outcome=_reported_error(answer, remains, evidence), logs=answer.logs, remarks=remarks
    )


def _reported_error(answer: DecodedResponse, remains: ProcessOutput, evidence: Evidence) -> Failed:
    return Failed(
        reason=JobReason.PLUGIN_ERROR,
        error=answer.response.error or "",
        permanent=not answer.response.retry or remains.status.exit_code == EXIT_CONFIG,
        evidence=evidence,
    )


def _no_answer(fault: ProtocolViolation, remains: ProcessOutput, evidence: Evidence) -> Failed:
    status = remains.status
    reason = _reason_for(status)
    error = (
        f"{_how_it_ended(status)}; {fault.message}"
        if reason is not JobReason.PROTOCOL_ERROR
        else fault.message
    )
    if last_words := _last_line(evidence.stderr):
        error = f"{error}; stderr ends with: {last_words}"
    permanent = status.exit_code == EXIT_CONFIG
    return Failed(reason=reason, error=error, permanent=permanent, evidence=evidence)


def _reason_for(status: ExitStatus) -> JobReason:
    if status.signal is not None:
        return JobReason.KILLED
    return JobReason.PROTOCOL_ERROR if status.exit_code == 0 else JobReason.BAD_EXIT


def _how_it_ended(status: ExitStatus) -> str:
    if status.signal is not None:
        return f"killed by {_signal_name(status.signal)}"
    if status.exit_code == EXIT_CONFIG:
        return f"exited with status {EXIT_CONFIG}, a configuration error"
    return f"exited with status {status.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str | None) -> str:
    lines = (text or "").rstrip().rsplit("\n", 1)
    return lines[-1].strip()[:_QUOTED]


def _evidence(remains: ProcessOutput) -> Evidence:
    return Evidence(
        stdout=storable_text(remains.stdout),
        stderr=storable_text(remains.stderr),
        exit_code=remains.status.exit_code,
        signal=remains.status.signal,
        duration=remains.duration,
    )


def storable_text(output: bytes) -> str:
    """Text that every store takes: what is not UTF-8, and NUL, is shown as a replacement character."""
    return output.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def _remarks(remains: ProcessOutput) -> tuple[ExecutionWarning, ...]:
    cut = (ExecutionWarning.STDERR_CUT,) if remains.stderr_cut else ()
    left = (ExecutionWarning.LEFTOVERS,) if remains.leftovers else ()
    return cut + left
