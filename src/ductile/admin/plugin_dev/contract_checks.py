"""The checks of `plugin test`: the result of each run in, a check result out. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ductile.protocol.plugin_messages import PROTOCOL_VERSION
from ductile.runner.interpret import EXIT_CONFIG, ExecutionWarning
from ductile.struct import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ductile.admin.plugin_dev.run_once import RunOnceResult
    from ductile.protocol.manifest.model import Command

_MAX_SHOWN = 200


class CheckVerdict(StrEnum):
    PASSED = "passed"
    #: Allowed by the protocol, but likely a mistake.
    WARNED = "warned"
    FAILED = "failed"
    #: Nothing was proved, because the plugin does not answer at all.
    SKIPPED = "skipped"


#: Kinds of runs in which the plugin answered by itself.
ANSWERED = ("ok", "error", "config")


class ContractCheck(StrEnum):
    """The checks; documented in `docs/how-to/test-a-plugin.md`."""

    MANIFEST = "manifest"
    ANSWERS = "answers"
    REPEATS = "repeats"
    UNKNOWN_FIELDS = "unknown_fields"
    UNKNOWN_COMMAND = "unknown_command"
    WRONG_PROTOCOL = "wrong_protocol"
    END_OF_INPUT = "end_of_input"


class CheckResult(Value):
    check: ContractCheck
    verdict: CheckVerdict
    message: str
    command: str | None = None
    hint: str | None = None


def check_answer(command: str, ran: RunOnceResult) -> CheckResult:
    """One JSON object on stdout, in time; one that reports an error is an answer, too."""
    if ran.kind == "ok" and ExecutionWarning.LEFTOVERS in ran.interpretation.warnings:
        message = "answers, but leaves processes behind"
        return _warned(ContractCheck.ANSWERS, message, command, hint="wait for what you start")
    match ran.kind:
        case "ok":
            return passed(ContractCheck.ANSWERS, "ok", command)
        case "error":
            return passed(ContractCheck.ANSWERS, f"error: {_short(ran)}", command)
        case "config":
            hint = "give it a usable config: test it by its configured name, or with --settings"
            lines = (ran.interpretation.outcome.evidence.stderr or "").strip().splitlines()
            reason = _cut(lines[-1]) if lines else "it does not say why"
            return _warned(ContractCheck.ANSWERS, f"exits with {EXIT_CONFIG}: {reason}", command, hint=hint)
        case "timeout":
            hint = "give it more time with --timeout, or make it faster"
            return _failed(ContractCheck.ANSWERS, _short(ran), command, hint=hint)
        case _:
            hint = "see what it prints: ductile plugin run PLUGIN --request FILE"
            return _failed(ContractCheck.ANSWERS, _short(ran), command, hint=hint)


def check_repetition(command: Command, first: RunOnceResult, again: RunOnceResult) -> CheckResult:
    """Jobs run at least once, so a command may get the same request twice."""
    if first.kind not in ANSWERED:
        return skipped(ContractCheck.REPEATS, command.name)
    if first.kind == again.kind:
        return passed(ContractCheck.REPEATS, f"{again.kind} again", command.name)
    message = f"first {first.kind}, then {again.kind}: {_short(again)}".removesuffix(": ")
    hint = "a job may be run twice: make the second run succeed too, or record in the state what is done"
    return _warned(ContractCheck.REPEATS, message, command.name, hint=hint)


def check_unknown_fields(command: str, first: RunOnceResult, more: RunOnceResult) -> CheckResult:
    if first.kind not in ANSWERED:
        return skipped(ContractCheck.UNKNOWN_FIELDS, command)
    if first.kind == more.kind:
        return passed(ContractCheck.UNKNOWN_FIELDS, "ignored", command)
    message = f"{first.kind} without them, {more.kind} with them: {_short(more)}".removesuffix(": ")
    hint = "later versions may add fields to a request: ignore those you do not know"
    return _failed(ContractCheck.UNKNOWN_FIELDS, message, command, hint=hint)


def check_unknown_command(ran: RunOnceResult) -> CheckResult:
    """At most a warning: Ductile sends declared commands only."""
    hint = 'answer {"status": "error", "error": "...", "retry": false}'
    match ran.kind:
        case "error":
            return passed(ContractCheck.UNKNOWN_COMMAND, f"error: {_short(ran)}")
        case "ok":
            message = "a command that it does not have is answered with ok"
            return _warned(ContractCheck.UNKNOWN_COMMAND, message, hint=hint)
        case _:
            return _warned(ContractCheck.UNKNOWN_COMMAND, _short(ran), hint=hint)


def check_wrong_protocol(ran: RunOnceResult) -> CheckResult:
    exit_code = ran.interpretation.outcome.evidence.exit_code
    if ran.kind in ("config", "error") and exit_code == EXIT_CONFIG:
        return passed(ContractCheck.WRONG_PROTOCOL, f"exits with {EXIT_CONFIG}")
    ended = f"exit status {exit_code}"
    if exit_code is None:
        killed = ran.interpretation.outcome.evidence.signal is not None
        ended = f"without an exit status: it {'was killed' if killed else 'could not be started'}"
    message = f"a request of protocol {PROTOCOL_VERSION + 1} ends with {ran.kind}, {ended}"
    hint = f"compare `protocol` with {PROTOCOL_VERSION} and exit with {EXIT_CONFIG} if it differs"
    return _warned(ContractCheck.WRONG_PROTOCOL, message, hint=hint)


def check_end_of_input(ran: RunOnceResult, first: Iterable[RunOnceResult]) -> CheckResult:
    if all(each.kind not in ANSWERED for each in first):
        return skipped(ContractCheck.END_OF_INPUT)
    if ran.kind != "timeout":
        return passed(ContractCheck.END_OF_INPUT, "ends")
    hint = "read stdin to its end, and no further"
    return _failed(ContractCheck.END_OF_INPUT, "goes on although stdin is empty and closed", hint=hint)


def _short(ran: RunOnceResult) -> str:
    return _cut(ran.error or "")


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def passed(check: ContractCheck, message: str, command: str | None = None) -> CheckResult:
    return CheckResult(check=check, verdict=CheckVerdict.PASSED, message=message, command=command)


def skipped(check: ContractCheck, command: str | None = None) -> CheckResult:
    return CheckResult(
        check=check,
        verdict=CheckVerdict.SKIPPED,
        message="it does not answer: see `answers`",
        command=command,
    )


def _warned(check: ContractCheck, message: str, command: str | None = None, *, hint: str) -> CheckResult:
    return CheckResult(check=check, verdict=CheckVerdict.WARNED, message=message, command=command, hint=hint)


def _failed(check: ContractCheck, message: str, command: str | None = None, *, hint: str) -> CheckResult:
    return CheckResult(check=check, verdict=CheckVerdict.FAILED, message=message, command=command, hint=hint)
