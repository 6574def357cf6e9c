"""`ductile plugin new`, `ductile plugin test` and `ductile plugin run --request`: for authors of plugins."""

from __future__ import annotations

from ductile.cli.client import Document
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, NO_DAEMON, Argument, Example, Option, action

_COLOURS = {"passed": "green", "warned": "yellow", "failed": "red", "skipped": "dim"}


@action(
    "test",
    "check that a plugin or script works, by running it",
    arguments=(Argument("NAME|DIR", "a plugin or script by its name, or the directory of a plugin"),),
    options=(
        Option("--command NAME", "run only this command"),
        Option("--payload JSON", "the payload of commands, instead of a sample: JSON, @FILE or -"),
        Option("--settings JSON", "the plugin's `config`, instead of what is configured: JSON, @FILE or -"),
        Option("--timeout DURATION", "how long each run may take, such as 5s"),
    ),
    about="Runs every command twice, with a payload that is made from its schema, and sends a few "
    "requests that are odd on purpose. A script is run twice with the payload, and judged by its exit "
    "status. The plugin really runs, side effects and all. Nothing is stored. A plugin by name gets its "
    "configuration, one in a directory an empty one. Exit status 1 if a check failed.",
    examples=(
        Example("ductile plugin test ./greet", "a plugin in development, in its directory"),
        Example(
            'ductile plugin test ./greet --command handle --payload \'{"name": "Ada"}\'',
            "one command, with this payload",
        ),
    ),
    local_reason=NO_DAEMON,
)
def test(invocation: Invocation) -> CommandResult:
    import asyncio
    from datetime import UTC, datetime

    from ductile.admin.plugin_dev.contract_test import ContractTestOptions, check_contract
    from ductile.cli.console.console import show_waiting

    options = ContractTestOptions(
        command=invocation.optional("command"),
        payload=invocation.json_object("payload"),
        config=invocation.json_object("settings"),
        timeout=invocation.duration("timeout"),
    )
    target = invocation.text("NAME|DIR")
    with show_waiting(invocation, f"the runs of {target}"):
        report = asyncio.run(
            check_contract(
                invocation.config, invocation.environ, target, options, now=lambda: datetime.now(UTC)
            )
        )
    names = ("check", "command", "verdict", "message", "hint")

    def text(console: Console) -> str:
        rows = [(item.check, item.command or "-", item.verdict, item.message) for item in report.results]
        parts = [console.table(("CHECK", "COMMAND", "VERDICT", "ABOUT"), rows, wrap_last=True)]
        hints = []
        for item in report.results:
            if item.hint:
                name = f"{item.check} {item.command}" if item.command else str(item.check)
                hints.append(f"{console.style(_COLOURS[item.verdict], name)}: {escape_controls(item.hint)}")
        if hints:
            parts.append("\n".join(hints))
        verdicts = [str(item.verdict) for item in report.results]
        counted = [
            f"{fmt.count(verdicts.count(verdict), 'check')} {verdict}"
            for verdict in _COLOURS
            if verdict in verdicts
        ]
        word = console.style("green", "ok:") if report.passed else console.style("red", "failed:")
        return "\n\n".join([*parts, f"{word} {report.name}, {', '.join(counted)}"])

    return CommandResult(
        {
            "name": report.name,
            "directory": str(report.directory),
            "passed": report.passed,
            "checks": [{name: getattr(finding, name) for name in names} for finding in report.results],
        },
        text,
        exit_status=int(not report.passed),
    )


@action(
    "new",
    "write a new plugin from a template",
    arguments=(Argument("NAME", "name of the new plugin, and of its directory"),),
    options=(
        Option("--lang LANGUAGE", "python (default), sh, node, go or rust"),
        Option("--dir DIR", "where to put its directory (default: here)"),
        DRY_RUN,
    ),
    about="With a manifest and three commands that answer. Overwrites nothing.",
    examples=(
        Example("ductile plugin new greet --lang sh --dir plugins", "in plugins/greet, as a shell script"),
    ),
    local_reason=NO_DAEMON,
)
def new(invocation: Invocation) -> CommandResult:
    from ductile.admin.plugin_dev.scaffold import create_plugin
    from ductile.struct import to_builtins

    created = create_plugin(
        invocation.text("NAME"),
        invocation.optional("lang") or "python",
        parent=invocation.optional("dir"),
        dry_run=invocation.switch("dry_run"),
    )

    def text(console: Console) -> str:
        import shlex
        from contextlib import suppress

        from ductile.config.find_config import find_config
        from ductile.errors import ConfigError

        directory = console.path(str(created.directory))
        title = "Wrote" if created.written else "Would write"
        lines = [
            f"{title} the plugin {created.name} to {directory}:",
            "",
            *(f"  {name}" for name in created.files),
        ]
        if not created.written:
            return "\n".join([*lines, "", "Nothing was written."])
        quoted = shlex.quote(directory)
        # The build runs in a subshell, so that the next step starts in the present directory.
        steps = [f"(cd {quoted} && {created.build})"] if created.build else []
        path = quoted if "/" in directory else f"./{quoted}"
        steps.append(f"ductile plugin test {path}")
        with suppress(ConfigError):  # without a configuration there is none to add it to
            find_config(invocation.config, invocation.environ)
            steps.append(f"ductile plugin add {path}")
        return "\n".join([*lines, "", "Next:", "", *(f"  {step}" for step in steps)])

    return CommandResult(to_builtins(created, enc_hook=str), text)


def run_request(invocation: Invocation) -> CommandResult:
    """Run the entrypoint with exactly the request of `plugin run --request`, and show its output."""
    import asyncio
    import sys

    from ductile.admin.plugin_dev import run_once
    from ductile.core.jobs.model import Completed, Failed
    from ductile.errors import UsageError

    request_options = [
        option.destination for option in invocation.action.options if option.field not in (None, "dry_run")
    ]
    for option in ("COMMAND", *request_options, "no_wait"):
        if invocation.arguments.get(option):
            name = option if option.isupper() else f"--{option.replace('_', '-')}"
            raise UsageError(f"{name} has no effect with --request: the request holds everything")
    target, file = invocation.text("NAME"), invocation.text("request")
    if invocation.switch("dry_run"):
        plugin = run_once.find_runnable_plugin(invocation.config, invocation.environ, target)
        would = f"Would run {plugin.name} with the request in {file}, outside any queue."
        return CommandResult({"plugin": plugin.name, "request": file}, would)
    request = sys.stdin.buffer.read() if file == "-" else run_once.read_request(file)
    limit = invocation.duration("timeout")
    execution = asyncio.run(
        run_once.run_request(invocation.config, invocation.environ, target, request, time_limit=limit)
    )
    outcome, evidence = execution.interpretation.outcome, execution.interpretation.outcome.evidence
    data: Document = {
        "judgement": execution.kind,
        "reason": outcome.reason if isinstance(outcome, Failed) else None,
        "error": execution.error,
        "permanent": isinstance(outcome, Failed) and outcome.permanent,
        "result": outcome.response.result if isinstance(outcome, Completed) else None,
        "exit_code": evidence.exit_code,
        "signal": evidence.signal,
        "duration_ms": round(evidence.duration.total_seconds() * 1000, 3),
        "stdout": evidence.stdout,
        "stderr": evidence.stderr,
        "remarks": list(execution.interpretation.warnings),
    }

    def text(console: Console) -> str:
        permanent = ", and not to be retried" if data["permanent"] else ""
        lines = [
            f"{console.style('green' if execution.kind == 'ok' else 'red', execution.kind)}{permanent}",
            *fmt.fields(
                [
                    ("error", data["error"]),
                    (
                        "exit",
                        f"signal {data['signal']}" if data["signal"] else fmt.text_or_json(data["exit_code"]),
                    ),
                    ("took", fmt.duration(data["duration_ms"])),
                    ("remarks", ", ".join(data["remarks"])),
                ],
                console,
            ),
        ]
        for name in ("stdout", "stderr"):
            if data[name]:
                lines += fmt.section(name, fmt.indent(str(data[name])), console)
        return "\n".join(lines)

    return CommandResult(data, text, exit_status=int(execution.kind != "ok"))
