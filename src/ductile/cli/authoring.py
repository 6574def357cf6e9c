"""`ductile plugin new|test` and `ductile plugin run --request`: what authors of plugins need."""

from __future__ import annotations

import asyncio
import shlex
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ductile.admin.plugin_dev.contract_checks import CheckResult, CheckVerdict
from ductile.admin.plugin_dev.contract_test import ContractReport, ContractTestOptions, check_contract
from ductile.admin.plugin_dev.run_once import RunOnceResult, find_runnable_plugin, read_request
from ductile.admin.plugin_dev.run_once import run_request as run_once
from ductile.admin.plugin_dev.scaffold import NewPlugin, create_plugin
from ductile.cli.console.console import printable
from ductile.cli.console.format import format_count, format_fields, format_ms, format_value, indent, section
from ductile.cli.console.progress import show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.json_argument import json_object
from ductile.core.jobs.outcomes import Completed, Failed
from ductile.errors import Exit, UsageError
from ductile.operations.jobs.documents import milliseconds
from ductile.operations.parameters import optional_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject

_COLOURS = {
    CheckVerdict.PASSED: "green",
    CheckVerdict.WARNED: "yellow",
    CheckVerdict.FAILED: "red",
    CheckVerdict.SKIPPED: "dim",
}


def new(call: Invocation) -> CommandResult:
    made = create_plugin(
        call.text("NAME"),
        call.optional("lang") or "python",
        parent=call.optional("dir"),
        dry_run=call.switch("dry_run"),
    )
    data: JsonObject = {
        "name": made.name,
        "language": made.language,
        "directory": str(made.directory),
        "files": list(made.files),
        "build": made.build,
        "written": made.written,
    }
    return CommandResult(data=data, text=lambda screen: _new_text(made, screen))


def test(call: Invocation) -> CommandResult:
    wishes = ContractTestOptions(
        command=call.optional("command"),
        payload=json_object(call.optional("payload"), "payload"),
        config=json_object(call.optional("settings"), "settings"),
        timeout=_timeout(call),
    )
    target = call.text("NAME|DIR")
    with show_waiting(call, f"the runs of {target}"):
        report = asyncio.run(
            check_contract(call.config, call.environ, target, wishes, now=lambda: datetime.now(UTC))
        )
    data: JsonObject = {
        "name": report.name,
        "directory": str(report.directory),
        "passed": report.passed,
        "checks": [_finding_as_json(finding) for finding in report.findings],
    }
    return CommandResult(
        data=data,
        text=lambda screen: _report_text(report, screen),
        exit_status=Exit.OK if report.passed else Exit.FAILURE,
    )


def try_request(call: Invocation) -> CommandResult:
    """`plugin run --request`: the entrypoint, exactly this request, and all that came out."""
    for option in (
        "COMMAND",
        "payload",
        "dedupe_key",
        "state_webhook_url",
        "state_webhook_events",
        "no_wait",
    ):
        if call.arguments.get(option):
            name = option if option.isupper() else f"--{option.replace('_', '-')}"
            raise UsageError(f"{name} has no effect with --request: the request holds everything")
    target, file = call.text("PLUGIN"), call.text("request")
    if call.switch("dry_run"):
        found = find_runnable_plugin(call.config, call.environ, target)
        return CommandResult(
            data={"plugin": found.name, "request": file, "dry_run": True},
            text=lambda _: f"Would run {found.name} with the request in {file}, outside any queue.",
        )
    request = sys.stdin.buffer.read() if file == "-" else read_request(file)
    trial = asyncio.run(run_once(call.config, call.environ, target, request, within=_timeout(call)))
    return CommandResult(
        data=_trial_as_json(trial),
        text=lambda screen: _trial_text(trial, screen),
        exit_status=Exit.OK if trial.kind == "ok" else Exit.FAILURE,
    )


def _timeout(call: Invocation) -> timedelta | None:
    return optional_duration({"timeout": call.optional("timeout")}, "timeout")


def _new_text(made: NewPlugin, screen: Console) -> str:
    place = screen.place(str(made.directory))
    title = "Wrote" if made.written else "Would write"
    lines = [f"{title} the plugin {made.name} to {place}:", "", *(f"  {name}" for name in made.files)]
    if not made.written:
        return "\n".join([*lines, "", "Nothing was written."])
    quoted = shlex.quote(place)
    # In brackets, so that the next step begins where this one did.
    steps = [f"(cd {quoted} && {made.build})"] if made.build else []
    steps.append(f"ductile plugin test {quoted if '/' in place else f'./{quoted}'}")
    return "\n".join([*lines, "", "Next:", "", *(f"  {step}" for step in steps)])


def _finding_as_json(finding: CheckResult) -> JsonObject:
    return {
        "check": finding.check,
        "command": finding.command,
        "verdict": finding.verdict,
        "message": finding.message,
        "hint": finding.hint,
    }


def _report_text(report: ContractReport, screen: Console) -> str:
    rows = [(item.check, item.command or "-", item.verdict, item.message) for item in report.findings]
    parts = [screen.table(("CHECK", "COMMAND", "VERDICT", "ABOUT"), rows, prose=True)]
    hints = [_hint_text(item, screen) for item in report.findings if item.hint]
    if hints:
        parts.append("\n".join(hints))
    counted = [
        format_count(sum(item.verdict is verdict for item in report.findings), "check") + f" {verdict}"
        for verdict in CheckVerdict
        if any(item.verdict is verdict for item in report.findings)
    ]
    word = screen.style("green", "ok:") if report.passed else screen.style("red", "failed:")
    return "\n\n".join([*parts, f"{word} {report.name}, {', '.join(counted)}"])


def _hint_text(finding: CheckResult, screen: Console) -> str:
    where = f"{finding.check} {finding.command}" if finding.command else str(finding.check)
    return f"{screen.style(_COLOURS[finding.verdict], where)}: {printable(finding.hint or '')}"


def _trial_as_json(trial: RunOnceResult) -> JsonObject:
    outcome = trial.judgement.outcome
    evidence = outcome.evidence
    return {
        "judgement": trial.kind,
        "reason": outcome.reason if isinstance(outcome, Failed) else None,
        "error": trial.error,
        "permanent": isinstance(outcome, Failed) and outcome.permanent,
        "result": outcome.response.result if isinstance(outcome, Completed) else None,
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "duration_ms": milliseconds(evidence.duration),
        "stdout": evidence.stdout,
        "stderr": evidence.stderr,
        "remarks": list(trial.judgement.remarks),
    }


def _trial_text(trial: RunOnceResult, screen: Console) -> str:
    said = _trial_as_json(trial)
    exit_text = f"signal {said['signal']}" if said["signal"] else format_value(said["exit_code"])
    lasting = ", and not to be retried" if said["permanent"] else ""
    lines = [
        f"{screen.style('green' if trial.kind == 'ok' else 'red', trial.kind)}{lasting}",
        *format_fields(
            [
                ("error", trial.error),
                ("exit", exit_text),
                ("took", format_ms(trial.judgement.outcome.evidence.duration.total_seconds() * 1000)),
                ("remarks", ", ".join(trial.judgement.remarks)),
            ]
        ),
    ]
    for name in ("stdout", "stderr"):
        if said[name]:
            lines += section(name, indent(str(said[name])), screen)
    return "\n".join(lines)
