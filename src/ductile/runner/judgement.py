"""What the end of a process means for its job. Pure: one ending in, one outcome out (SPEC 3.3, 3.4)."""

from __future__ import annotations

from enum import StrEnum
from signal import Signals

from ductile.core.jobs import Reason
from ductile.core.outcomes import Completed, Evidence, Failed, Interrupted, Outcome, TimedOut
from ductile.protocol.response import Answer, PluginLog, ProtocolFault, decode_response
from ductile.runner.port import (
    MAX_STDOUT,
    CouldNotStart,
    DeadlinePassed,
    Ending,
    Exited,
    ExitStatus,
    PrintedTooMuch,
    Remains,
    RunnerLost,
    Stopped,
)
from ductile.value import Value

#: sysexits.h EX_CONFIG: the plugin says that trying again cannot help.
EXIT_CONFIG = 78
_QUOTED = 200


class Remark(StrEnum):
    """What the log should warn about although it does not decide the outcome."""

    EXIT_IGNORED = "exit_ignored"
    STDERR_CUT = "stderr_cut"
    LEFTOVERS = "leftovers"


class Judgement(Value):
    outcome: Outcome
    logs: tuple[PluginLog, ...] = ()
    remarks: tuple[Remark, ...] = ()


def judge(ending: Ending) -> Judgement:
    """Decide the outcome. A valid ok answer wins, unless the deadline or the cap had come first."""
    match ending:
        case CouldNotStart(error=error, shortage=True):
            return Judgement(outcome=Interrupted(reason=Reason.NO_RESOURCES, error=error))
        case CouldNotStart(error=error, permanent=permanent):
            return Judgement(outcome=Failed(reason=Reason.COULD_NOT_START, error=error, permanent=permanent))
        case RunnerLost(error=error, remains=remains):
            evidence = Evidence() if remains is None else _evidence(remains)
            return Judgement(outcome=Failed(reason=Reason.RUNNER_LOST, error=error, evidence=evidence))
        case DeadlinePassed(remains=remains, timeout=timeout):
            error = f"still running at its deadline, after {timeout.total_seconds():g} s"
            outcome = TimedOut(error=error, evidence=_evidence(remains))
            return Judgement(outcome=outcome, remarks=_remarks(remains))
        case PrintedTooMuch(remains=remains):
            error = f"stdout exceeded the limit of {MAX_STDOUT >> 20} MiB; only the beginning is kept"
            too_much = Failed(reason=Reason.OUTPUT_TOO_LARGE, error=error, evidence=_evidence(remains))
            return Judgement(outcome=too_much, remarks=_remarks(remains))
        case Exited(remains=remains):
            return _judge_output(remains, stopped=False)
        case Stopped(remains=remains):
            return _judge_output(remains, stopped=True)


def _judge_output(remains: Remains, *, stopped: bool) -> Judgement:
    answer = decode_response(remains.stdout)
    evidence = _evidence(remains)
    remarks = _remarks(remains)
    if isinstance(answer, ProtocolFault):
        if stopped:
            return Judgement(outcome=Interrupted(evidence=evidence), remarks=remarks)
        return Judgement(outcome=_no_answer(answer, remains, evidence), remarks=remarks)
    if answer.response.ok:
        if remains.status.exit_code != 0:
            remarks = (Remark.EXIT_IGNORED, *remarks)
        done = Completed(response=answer.response, evidence=evidence)
        return Judgement(outcome=done, logs=answer.logs, remarks=remarks)
    return Judgement(outcome=_told_error(answer, remains, evidence), logs=answer.logs, remarks=remarks)


def _told_error(answer: Answer, remains: Remains, evidence: Evidence) -> Failed:
    return Failed(
        reason=Reason.PLUGIN_ERROR,
        error=answer.response.error or "",
        permanent=not answer.response.retry or remains.status.exit_code == EXIT_CONFIG,
        evidence=evidence,
    )


def _no_answer(fault: ProtocolFault, remains: Remains, evidence: Evidence) -> Failed:
    status = remains.status
    reason = _reason_for(status)
    error = (
        f"{_how_it_ended(status)}; {fault.message}" if reason is not Reason.PROTOCOL_ERROR else fault.message
    )
    if last_words := _last_line(evidence.stderr):
        error = f"{error}; stderr ends with: {last_words}"
    permanent = status.exit_code == EXIT_CONFIG
    return Failed(reason=reason, error=error, permanent=permanent, evidence=evidence)


def _reason_for(status: ExitStatus) -> Reason:
    if status.signal is not None:
        return Reason.KILLED
    return Reason.PROTOCOL_ERROR if status.exit_code == 0 else Reason.BAD_EXIT


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


def _evidence(remains: Remains) -> Evidence:
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


def _remarks(remains: Remains) -> tuple[Remark, ...]:
    cut = (Remark.STDERR_CUT,) if remains.stderr_cut else ()
    left = (Remark.LEFTOVERS,) if remains.leftovers else ()
    return cut + left
