"""How values of answers read for people: instants, spans, lists of facts, jobs as rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ductile.cli.console.console import indent_continuation, printable
from ductile.core.terminal_text import escape_in_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ductile.cli.client import Document
    from ductile.cli.console.console import Console

_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "dead": "red",
    "timed_out": "red",
    "running": "yellow",
}
#: Behind it an error repeats the end of what the plugin wrote.
STDERR_TAIL = "; stderr ends with: "
ORPHANED = "nobody runs it any more"
JOB_HEADERS = ("JOB", "PLUGIN", "COMMAND", "STATUS", "ATTEMPT", "BY", "CREATED", "ABOUT")
#: Why a job failed is worth more than these.
JOB_OPTIONAL_COLUMNS = ("BY", "ATTEMPT", "CREATED")


def format_time(instant: str | None) -> str:
    """`2026-02-08T10:00:00Z`: to the second, which is as exact as a person reads."""
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
    """One aligned line for each that is known."""
    known = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in known), default=0)
    return [f"  {name.ljust(width)}  {indent_continuation(text, ' ' * (width + 4))}" for name, text in known]


def styled_status(status: str, screen: Console) -> str:
    style = _COLOURS.get(status)
    return screen.style(style, status) if style else status


def format_value(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return (
        value if isinstance(value, str) else escape_in_json(json.dumps(value, indent=2, ensure_ascii=False))
    )


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in printable(text).rstrip("\n").split("\n"))


def section(title: str, body: str, screen: Console) -> list[str]:
    return ["", screen.style("bold", title), body]


def job_row(job: Document) -> Sequence[str]:
    return (
        job["job_id"],
        job["plugin"],
        job["command"],
        job["status"],
        f"{job['attempt']}/{job['max_attempts']}",
        job["submitted_by"],
        format_time(job["created_at"]),
        about_job(job),
    )


def about_job(job: Document) -> str:
    """Why it is where it is, in one line."""
    if job["next_retry_at"] and job["status"] == "queued":
        return f"{job['last_error'] or job['reason']}; next try {format_time(job['next_retry_at'])}"
    if job.get("orphaned"):
        return ORPHANED
    if job["status"] in ("failed", "dead"):
        return f"{job['reason']}: {error}" if (error := informative_error(job)) else str(job["reason"])
    return job["hold"] or ("" if job["reason"] in ("submitted", "claimed", "completed") else job["reason"])


def health_error(mark: Document) -> str:
    """Why an init failed, in one line, and the job that tells more."""
    error = printable(str(mark["error"])).partition("\n")[0]
    return f"{error} (`ductile job show {mark['job_id']}`)" if mark["job_id"] else error


def informative_error(job: Document) -> str | None:
    """The last error of a job that did not succeed, where it tells more than the reason does."""
    error = job["last_error"]
    return None if job["status"] == "succeeded" or error == job["reason"] else error
