"""`ductile schedule …`: shows, explains, pauses and runs schedules."""

from __future__ import annotations

from collections.abc import Sequence

from ductile.cli.client import Document, request_daemon
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.console.table import Table
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import OPTIONAL_PLUGIN, PLUGIN, SCHEDULE, Example, action, renders

#: The next run of a schedule that is due and waits for a daemon.
_AT_START = "at the next start"


@renders("list", "list the schedules and when they run next", "schedule.list", arguments=(OPTIONAL_PLUGIN,))
def list_schedules(response: Document, console: Console) -> str:
    if not response["schedules"]:
        return "There are no schedules. They are configured under `plugins.NAME.schedules`."
    rows = []
    for row in response["schedules"]:
        zone = "" if row["timezone"] in ("UTC", str(console.zone)) else f" {row['timezone']}"
        notes = [] if row["breaker"] == "closed" else [f"breaker {row['breaker']}"]
        if row["waiting_since"]:
            notes.append(f"waits for other polls since {fmt.relative_time(row['waiting_since'], console)}")
        next_run = _AT_START if row["at_start"] else fmt.relative_time(row["next_at"], console)
        cells = (
            row["plugin"],
            row["id"],
            row["command"] or "-",
            "no longer configured" if row["rule"] is None else f"{row['rule']}{zone}",
            "paused" if row["paused_at"] else next_run,
            fmt.local_time(row["next_at"], console) if row["next_at"] and not row["paused_at"] else "-",
            (row["next_local"] if zone else None) or "-",
            fmt.relative_time(row["last_fired_at"], console),
            fmt.short_id(row["last_job_id"], console),
            ", ".join(notes),
        )
        rows.append(cells)
    headers = ("PLUGIN", "ID", "COMMAND", "RULE", "NEXT", "AT", "LOCAL", "LAST", "LAST JOB", "ABOUT")
    return _table(headers, rows, console, optional=("LAST JOB", "COMMAND", "AT", "LAST"))


@renders(
    "next",
    "show the upcoming runs, across clock changes",
    "schedule.next",
    arguments=(OPTIONAL_PLUGIN, SCHEDULE),
    examples=(
        Example("ductile schedule next -n 20", "of all plugins together"),
        Example("ductile schedule next echo", "of one plugin"),
    ),
)
def upcoming(response: Document, console: Console) -> str:
    if not response["occurrences"]:
        return "No upcoming runs."
    rows = []
    for row in response["occurrences"]:
        until = f" until {fmt.local_time(row['skipped_until'], console)}" if row["skipped_until"] else ""
        rows.append(
            (
                _AT_START if row["at_start"] else fmt.local_and_relative_time(row["start_at"], console),
                row["local"] or "-",
                row["plugin"],
                row["id"],
                "-" if row["nominal_at"] == row["start_at"] else fmt.local_time(row["nominal_at"], console),
                f"skipped: {row['skip']}{until}" if row["skip"] else "",
            )
        )
    headers = ("STARTS", "LOCAL", "PLUGIN", "ID", "NOMINAL", "ABOUT")
    return _table(headers, rows, console, left_out=("LOCAL", "NOMINAL"))


@renders(
    "history",
    "show the outcome of every due run: ran, late or skipped",
    "schedule.history",
    arguments=(PLUGIN, SCHEDULE),
)
def history(response: Document, console: Console) -> str:
    if not response["occurrences"]:
        return "It has not been due yet."
    rows = []
    for row in response["occurrences"]:
        notes = [row["reason"]] if row["reason"] else []
        if row["late_ms"]:
            notes.append(f"{fmt.duration(row['late_ms'])} late")
        if row["count"] > 1:
            notes.append(f"{row['count']} times, until {fmt.local_time(row['until_at'], console)}")
        due, job = fmt.local_time(row["nominal_at"], console), fmt.short_id(row["job_id"], console)
        rows.append((due, row["outcome"], job, row["job_status"], ", ".join(notes)))
    table = console.table(("DUE", "OUTCOME", "JOB", "STATUS", "ABOUT"), rows)
    return fmt.with_next_page(f"{table}\n\n{_audit_text(response['account'], console)}", response)


@renders(
    "explain",
    "say why a schedule does not run, and what to do",
    "schedule.explain",
    arguments=(PLUGIN, SCHEDULE),
    about="Names the first obstacle: configuration, plugin, pause, daemon, breaker, "
    "the previous run, outstanding polls; without one, the outcome of its last occurrence.",
    examples=(
        Example("ductile schedule explain echo", "the only schedule of a plugin"),
        Example("ductile schedule explain echo greeting", "one of several"),
    ),
)
def explain(response: Document, console: Console) -> str:
    lines = [console.style("bold", fmt.sentence(response["verdict"], console))]
    lines += fmt.list_section("Evidence", response["evidence"], console)
    lines += fmt.list_section("What to do", [console.hint(line) for line in response["advice"]], console)
    return "\n".join(lines)


@renders("pause", "pause a schedule until it is resumed", "schedule.pause", arguments=(PLUGIN, SCHEDULE))
def pause(response: Document, _: Console) -> str:
    return _switch_text(response, "paused")


@renders("resume", "resume a paused schedule", "schedule.resume", arguments=(PLUGIN, SCHEDULE))
def resume(response: Document, _: Console) -> str:
    return _switch_text(response, "resumed")


@action("run", "start a scheduled run now", "schedule.run", arguments=(PLUGIN, SCHEDULE))
def run_now(invocation: Invocation) -> CommandResult:
    response = request_daemon(invocation)
    name = f"{response['plugin']}/{response['id']}"
    if response.get("dry_run"):
        return CommandResult(response, f"Would run {name} now.")
    return CommandResult(response, f"{name} runs now as job {response['job_id']}.")


def _switch_text(response: Document, state: str) -> str:
    name = f"{response['plugin']}/{response['id']}"
    if response.get("dry_run"):
        return f"Nothing was changed; {name} would be {state}."
    return f"{name} is {state}."


def _table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    *,
    optional: Sequence[str] = (),
    left_out: Sequence[str] = ("LOCAL",),
) -> str:
    """Return the table without the columns of `left_out` that have no value.

    There are no local times if all schedules are in UTC, and no nominal times if every run starts at its own.
    """
    for header in left_out:
        column = headers.index(header)
        if all(row[column] == "-" for row in rows):
            headers, rows = Table(headers, rows).without_column(header)
    return console.table(headers, rows, optional=optional)


def _audit_text(audit: Document, console: Console) -> str:
    """Return a sentence that says whether every due time of the listed period has a recorded outcome."""
    if audit["complete"] is None:
        return f"Not checked for gaps: {audit['about']}."
    period = f"from {fmt.local_time(audit['from'], console)} to {fmt.local_time(audit['to'], console)}"
    if audit["complete"]:
        return f"Every due time {period} has an outcome."
    lines = [console.style("red", f"Due times {period} without an outcome:")]
    for gap in audit["gaps"]:
        times = dict.fromkeys(fmt.local_time(gap[bound], console) for bound in ("from", "to"))
        expected = fmt.count(gap["expected"], "occurrence")
        lines.append(f"  {' to '.join(times)}: {expected} due, {gap['found']} recorded")
    return "\n".join(lines)
