"""`ductile system logs` and `ductile system watch`: past and running executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from ductile.cli.client import Document, follow, request, request_daemon
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, console_for, one_line
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.live_output import LiveOutputPrinter, job_label
from ductile.cli.spec import FILTER_USAGE, OPTIONAL_PLUGIN, Example, Option, action

if TYPE_CHECKING:
    from ductile.core.json import JsonObject


@action(
    "logs",
    "list executions, from the job log",
    "log.list",
    arguments=(OPTIONAL_PLUGIN,),
    options=(Option("-f, --follow", "keep showing what running jobs print, and executions as they end"),),
    usage={**FILTER_USAGE, "job_id": "--job JOB"},
    about="One line for each execution, the latest at the end; with -v also its output on stderr. "
    "With --sort, the largest comes first. --follow goes on until Ctrl-C. With --follow and --json together, "
    "each line is a JSON object, one for each execution.",
    examples=(
        Example(
            "ductile logs --query 'connection refused' --since 1d",
            "executions whose result, error or stderr has both words",
        ),
        Example("ductile logs --sort duration -n 5", "what took the longest"),
        Example("ductile logs --follow", "every execution that ends from now on"),
        Example("ductile logs --since 10:30", "what ran since half past ten"),
        Example("ductile logs echo -n 5 -v", "the last five executions of one plugin, with their stderr"),
    ),
)
def logs(invocation: Invocation) -> CommandResult:
    fields = invocation.request_fields() | {"output": invocation.verbose}
    if invocation.switch("follow"):
        return _follow_logs(invocation, fields)
    response = request(invocation, fields=fields)
    is_sorted = fields.get("sort", "completed") != "completed"
    rows = response["logs"] if is_sorted else response["logs"][::-1]

    def text(console: Console) -> str:
        if not rows:
            return "Nothing has run yet." if fields.keys() <= {"output"} else "No executions found."
        cells = [] if console.width is None else [_cells(row, console) for row in rows]
        widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
        stderr_size = fields.get("sort") == "stderr"
        lines = "\n".join(_line(row, console, widths, stderr_size=stderr_size) for row in rows)
        # Without filters these are the latest rows of the log: that there are earlier ones needs no mention.
        has_filter = fields.keys() - {"output", "plugin", "limit"}
        return fmt.with_next_page(lines, response) if has_filter else lines

    return CommandResult(response, text)


def _follow_logs(invocation: Invocation, fields: JsonObject) -> CommandResult:
    """Print the latest executions, then new output and executions until the daemon stops."""
    # New rows are in order, and are not in the search index yet.
    for name in ("query", "sort", "cursor", "until"):
        if fields.get(name) is not None:
            from ductile.errors import UsageError

            raise UsageError(f"--{name} cannot be used with --follow", hint="Leave one of them out.")
    rows = request(invocation, fields=fields)["logs"][::-1]
    fmt.print_rows(invocation, rows, _line)
    fields.pop("limit", None)
    after = max((row["seq"] for row in rows), default=0)
    console, out = console_for(invocation.out, invocation.environ, verbose=invocation.verbose), invocation.out

    def write(text: str) -> None:
        out.write(text)
        out.flush()

    printer = LiveOutputPrinter(write, terminal=console.width is not None, label=job_label)
    live = not invocation.json
    for update in follow(invocation, "log.follow", fields, rows_field="logs", after=after, live=live):
        printer.show(update.get("live_output", ()))
        printer.end_line()
        for row in update["logs"]:
            if printer.has_shown(row["job_id"], row["execution"]):
                row["stderr"] = None  # it was printed above
        fmt.print_rows(invocation, update["logs"], _line)
    return CommandResult(None)


def _cells(row: Document, console: Console) -> tuple[str, str, str]:
    command = one_line(f"{row['plugin']} {row['command']}")
    if console.width is not None and len(command) > (widest := console.width // 3):
        command = f"{command[: widest - 1]}…"
    return command, row["status"], fmt.duration(row["duration_ms"])


def _line(row: Document, console: Console, widths: Sequence[int] = (), *, stderr_size: bool = False) -> str:
    """Return one execution as a line, with its stderr below if the row has it. `widths` align the columns."""
    command, status, took = _cells(row, console)
    word = fmt.status(status, console)
    if widths:
        command, took = command.ljust(widths[0]), took.rjust(widths[2])
        word += " " * (widths[1] - len(status))
    at, job = fmt.short_time(row["completed_at"], console), fmt.short_id(row["job_id"], console)
    line = f"{at}  {command}  {word}  {took}  {job}"
    if stderr_size:
        line = f"{line}  {fmt.count(row['stderr_bytes'], 'byte')} on stderr"
    if row["error"]:
        error = one_line(row["error"])
        why = error if error == row["reason"] else f"{row['reason']}: {error}"
        style_length = len(fmt.status(status, console)) - len(status)
        room = None if console.width is None else console.width - (len(line) - style_length) - 2
        if room is not None and len(why) > room and not console.verbose:
            why = one_line(fmt.brief_error(row["reason"], error))
            why = why if len(why) <= room else f"{why[: max(room - 1, 0)]}…"
        line = f"{line}  {why}"
    return f"{line}\n{fmt.indent(row['stderr'])}" if row.get("stderr") else line


@action(
    "watch",
    "watch what runs, waits and happens in the terminal, and act on it",
    "system.status",
    usage={"reveal": None},
    about="Keys: Tab moves between the tables, Enter shows a job and what it prints, c cancels it after "
    "asking, t retries what ended badly, r runs a schedule or a plugin now, p pauses or resumes a "
    "schedule, q leaves. Needs the extra `tui`, which `make run` installs.",
)
def watch(invocation: Invocation) -> CommandResult:
    import sys

    from ductile.errors import UsageError

    if invocation.json or not (invocation.out.isatty() and sys.stdin.isatty()):
        raise UsageError(
            "the screen needs a terminal, and has no JSON",
            hint="for programs: ductile event tail --follow --json, or ductile status --json",
        )
    try:
        from ductile.watch.screen import WatchApp
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"the screen needs {missing.name}, which is not installed",
            hint="Install it: pip install 'ductile-runtime[tui]'",
        ) from None

    def call(operation: str, fields: Mapping[str, object]) -> dict[str, Any]:
        return request_daemon(invocation, operation, cast("dict[str, Any]", fields))

    call("system.status", {})  # raises the error of a missing daemon before the screen opens
    console = console_for(invocation.out, invocation.environ)._replace(colour=False)

    def show_job(job: Mapping[str, Any], width: int) -> str:
        from ductile.cli.commands.job.inspect import job_text

        return job_text(dict(job), console._replace(width=width, now=datetime.now(UTC)))

    WatchApp(call, show_job, console.zone or UTC).run()
    return CommandResult(None)
