"""Values of responses as text for people: times, durations, fields, jobs as rows. And as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ductile.cli.console.console import indent_continuation, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ductile.cli.client import Document
    from ductile.cli.console.console import Console

_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_STATUS_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "dead": "red",
    "timed_out": "red",
    "running": "yellow",
}
#: Statuses in which a job has ended.
TERMINAL = ("succeeded", "failed", "dead")
ORPHANED = "no process runs it any more"
JOB_HEADERS = ("JOB", "PLUGIN", "COMMAND", "STATUS", "ATTEMPT", "BY", "CREATED", "ABOUT")
#: Left out first on a narrow terminal: why a job failed matters more.
JOB_OPTIONAL_COLUMNS = ("BY", "ATTEMPT", "CREATED")


def to_json(value: object, indent: int | None = None) -> str:
    """The value as JSON, without characters that steer a terminal."""
    import json

    from ductile.core.terminal_text import escape_in_json

    return escape_in_json(json.dumps(value, indent=indent, ensure_ascii=False))


def format_time(instant: str | None) -> str:
    """`2026-02-08T10:00:00Z`: to the second."""
    return f"{instant[:19]}Z" if instant else "-"


def format_ms(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    if milliseconds < _SECOND:
        return f"{milliseconds:.0f}ms"
    if milliseconds < _MINUTE:
        return f"{milliseconds / _SECOND:.1f}s"
    if milliseconds < _HOUR:
        return f"{milliseconds // _MINUTE:.0f}m{milliseconds % _MINUTE // _SECOND:02.0f}s"
    return f"{milliseconds // _HOUR:.0f}h{milliseconds % _HOUR // _MINUTE:02.0f}m"


def format_count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"


def format_fields(pairs: Iterable[tuple[str, str | None]]) -> list[str]:
    """One aligned line for each field that has a value."""
    known = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in known), default=0)
    return [f"  {name.ljust(width)}  {indent_continuation(text, ' ' * (width + 4))}" for name, text in known]


def format_value(value: Any) -> str:
    """A text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else to_json(value, indent=2)


def inline_value(value: object) -> str:
    """A value on one line: a text unchanged, any other value as JSON."""
    return one_line(value if isinstance(value, str) else to_json(value))


def styled_status(status: str, console: Console) -> str:
    style = _STATUS_COLOURS.get(status)
    return console.style(style, status) if style else status


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in printable(text).rstrip("\n").split("\n"))


def section(title: str, body: str, console: Console) -> list[str]:
    return ["", console.style("bold", title), body]


def list_section(title: str, rows: Sequence[str], console: Console) -> list[str]:
    """A section with one line for each row; nothing without rows."""
    return section(title, "\n".join(f"  {one_line(row)}" for row in rows), console) if rows else []


def with_next_page(text: str, response: Document) -> str:
    """The text, and the option for the next page if there is one."""
    cursor = response["next_cursor"]
    return f"{text}\n\nThere are more: --cursor {cursor}" if cursor else text


def jobs_table(jobs: Sequence[Document], console: Console) -> str:
    rows = [
        (
            job["job_id"],
            job["plugin"],
            job["command"],
            job["status"],
            f"{job['attempt']}/{job['max_attempts']}",
            job["submitted_by"],
            format_time(job["created_at"]),
            job_note(job),
        )
        for job in jobs
    ]
    return console.table(JOB_HEADERS, rows, optional=JOB_OPTIONAL_COLUMNS)


def job_note(job: Document) -> str:
    """Why a job is in its status, in one line."""
    if job["next_retry_at"] and job["status"] == "queued":
        return f"{job['last_error'] or job['reason']}; next try {format_time(job['next_retry_at'])}"
    if job.get("orphaned"):
        return ORPHANED
    if job["status"] in ("failed", "dead"):
        return f"{job['reason']}: {error}" if (error := informative_error(job)) else str(job["reason"])
    return job["hold"] or ("" if job["reason"] in ("submitted", "claimed", "completed") else job["reason"])


def informative_error(job: Document) -> str | None:
    """The last error of a job that did not succeed, unless it only repeats the reason."""
    error = job["last_error"]
    return None if job["status"] == "succeeded" or error == job["reason"] else error


def init_failure(mark: Document) -> str:
    """Why a plugin's init failed, in one line, and the command that shows its job."""
    error = printable(str(mark["error"])).partition("\n")[0]
    return f"{error} (`ductile job show {mark['job_id']}`)" if mark["job_id"] else error
