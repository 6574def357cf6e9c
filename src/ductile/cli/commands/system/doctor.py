"""`ductile system doctor`, `ductile system selfcheck` and `ductile system sweep`: checks and maintenance."""

from __future__ import annotations

from ductile.cli.client import Document, connect_to_daemon, request, send_request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls, indent_continuation, show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import action

_STYLES = {"ok": "green", "warn": "yellow", "error": "red"}


@action(
    "doctor",
    "check the whole installation: what is wrong, and how to fix it",
    "system.doctor",
    about="Configuration and seal, permissions, plugins and their health, listeners, clock, disk, "
    "store, breakers, schedules, failed jobs, receivers of state webhooks. Works without a daemon as "
    "well, and with a configuration that cannot be loaded. -v also shows what is in order. Exit "
    "status 1 if something is wrong, 0 if there are only warnings.",
)
def doctor(invocation: Invocation) -> CommandResult:
    from contextlib import suppress

    from ductile.errors import ConfigError, DeniedError

    try:
        connection = connect_to_daemon(invocation)
    except ConfigError:
        # Without a valid configuration the daemon is not found. `diagnose_offline` reports the error.
        connection = None
    if connection is not None:
        from ductile import __version__

        # Each health check has its own timeout, so there is no limit for all of them together.
        with show_waiting(invocation, "the health of the plugins"):
            fields: Document = {"version": __version__, "ask_health": True}
            if invocation.remote is not None:
                fields = {}
                with suppress(DeniedError):  # a token that may only read gets the result of the latest checks
                    send_request(invocation, connection, "system.health", {}, timeout=None)
            response = send_request(invocation, connection, fields=fields, timeout=None)
    else:
        import asyncio

        from ductile.offline import diagnose_offline
        from ductile.struct import to_builtins

        response = to_builtins(asyncio.run(diagnose_offline(invocation.config, invocation.environ)))

    def text(console: Console) -> str:
        """Return findings with a problem in full; the others, one line each, with -v or without a problem."""
        from ductile.cli.console.errors import paragraph

        problems = [row for row in response["findings"] if row["level"] != "ok"]
        parts = []
        for row in problems:
            title = f"{console.style(_STYLES[row['level']], row['level'])}  {row['check']}"
            where = None if row["where"] is None else console.path(row["where"])
            message = fmt.local_times(row["message"], console)
            parts.append(paragraph(title, message, (("where", where), ("fix", row["fix"])), console))
        if invocation.verbose or not problems:
            passed = [row for row in response["findings"] if row["level"] == "ok"]
            rows = [(row["check"], fmt.local_times(row["message"], console)) for row in passed]
            parts.append(console.table(("OK", "ABOUT"), rows, wrap_last=True))
        counts = response["counts"]
        errors, warnings = fmt.count(counts["error"], "error"), fmt.count(counts["warn"], "warning")
        summary = f"{errors}, {warnings}, {counts['ok']} ok."
        return "\n\n".join([*parts, console.style(_STYLES[response["verdict"]], summary)])

    return CommandResult(response, text, exit_status=int(response["verdict"] == "error"))


@action(
    "selfcheck",
    "check that the store keeps its own rules",
    "system.selfcheck",
    about="Reads every row, beside the running daemon or without one. -v shows every rule. "
    "Exit status 1 if one is broken: that is a bug in Ductile, or another program has written to the "
    "store.",
)
def selfcheck(invocation: Invocation) -> CommandResult:
    response = request(invocation)

    def text(console: Console) -> str:
        lines = [
            f"{console.style('red', 'damaged')}  {indent_continuation(line)}" for line in response["damage"]
        ]
        for check in response["checks"]:
            if not check["holds"]:
                more = ", ..." if check["more"] else ""
                lines += [
                    f"{console.style('red', 'broken')}  {check['name']}: {check['rule']}",
                    f"        {escape_controls(', '.join(check['offenders']))}{more}",
                ]
            elif invocation.verbose:
                lines.append(f"{console.style('green', 'holds')}   {check['name']}: {check['rule']}")
        if response["search_rebuilt"]:
            note = "the search index of the log was damaged and is rebuilt; no job is affected"
            lines.append(f"{console.style('yellow', 'note:')} {note}")
        if response["sound"]:
            lines.append(f"All {len(response['checks'])} rules of the store hold.")
        else:
            hint = "Make a backup before anything else, and report it: ductile system backup FILE"
            lines.append(f"{console.style('bold', 'hint:')} {console.hint(hint)}")
        return "\n".join(lines)

    return CommandResult(response, text, exit_status=int(not response["sound"]))


@action(
    "sweep",
    "remove rows that are older than their retention, now",
    "system.sweep",
    about="The daemon does the same at every service.tick_interval, a few rows at a time. How long rows "
    "are kept: service.job_queue_retention, job_log_retention and facts_retention. With --dry-run, "
    "rows that only these removals would free are not counted.",
)
def sweep(invocation: Invocation) -> CommandResult:
    with show_waiting(invocation, "the sweep"):
        response = request(invocation, timeout=None)

    def text(console: Console) -> str:
        if not response["removed"]:
            return "Nothing is older than its retention."
        title = "Would remove at least:" if response.get("dry_run") else "Removed:"
        rows = ((kind.replace("_", " "), str(number)) for kind, number in response["removed"].items())
        return "\n".join([title, *fmt.fields(rows, console)])

    return CommandResult(response, text)
