"""Values of responses as text: times, durations, fields, tables of jobs and steps, YAML and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ductile.cli.console.console import (
    STATUS_STYLES,
    Console,
    console_for,
    escape_controls,
    one_line,
)

if TYPE_CHECKING:
    from ductile.cli.client import Document
    from ductile.cli.invocation import Invocation
    from ductile.core.json import JsonValue

#: Digits of a short id. Among a million jobs, the chance that another one has the same is 1 in 4,000.
SHORT_ID = 8
_SHORT_HASH = 12
_SECOND = 1000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
#: Statuses in which a job has ended.
TERMINAL_STATUSES = ("succeeded", "failed", "dead")
ORPHANED_TEXT = "no process runs it any more"
#: Text that YAML reads as text without quotes. All other text is quoted, which is always valid.
_PLAIN_YAML = r"\$\{\w+\}|[\w./][\w./@+-]*(:[\w./@+-]+)*|[\w./][\w./@+-]*( [\w./@+-]+)+"
#: Text that YAML 1.2 does not read as text: its keywords, numbers, and the end of a document.
_NOT_YAML_TEXT = (
    r"(?i:true|false|null|[-+]?\.(inf|nan))|0o[0-7]+|0x[0-9a-fA-F]+|\.\.\.( .*)?"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
)
#: Jobs that are shown of one step.
_MAX_JOBS = 3
_STEP_OUTCOMES = {"not_made": "not made", "not_reached": "not reached", "entered": "-"}
_NOT_MADE_REASONS = ("bad_template", "bad_baggage", "bad_condition")


def to_json(value: object, indent: int | None = None) -> str:
    """Return the value as JSON, with control characters escaped."""
    import json

    from ductile.core.terminal_text import escape_in_json

    return escape_in_json(json.dumps(value, indent=indent, ensure_ascii=False))


def print_rows(
    invocation: Invocation, rows: Iterable[Document], line: Callable[[Document, Console], str]
) -> None:
    """Print one row after the other: as a JSON object with --json, else as the text that `line` returns."""
    console = console_for(invocation.out, invocation.environ, verbose=invocation.verbose)
    for row in rows:
        print(to_json(row) if invocation.json else line(row, console), file=invocation.out, flush=True)


def local_time(instant: str | None, console: Console) -> str:
    """Return the local time to the second: `2026-02-08 10:00:00`. If verbose, exactly and in UTC."""
    if not instant or console.verbose:
        return instant or "-"
    from datetime import UTC, datetime

    return f"{datetime.fromisoformat(instant).astimezone(console.zone or UTC):%Y-%m-%d %H:%M:%S}"


def short_time(instant: str | None, console: Console) -> str:
    """Return the local time, on a terminal without the date of today: `10:00:00`."""
    return local_time(instant, console).removeprefix(f"{console.today or '-'} ")


def relative_time(instant: str | None, console: Console) -> str:
    """Return the time relative to now: `3 min ago`, `in 2 h`; the local time if it is over a day away."""
    if not instant or console.verbose or console.now is None:
        return local_time(instant, console)
    from datetime import datetime, timedelta

    from ductile.core.instants import format_relative

    at = datetime.fromisoformat(instant)
    if abs(console.now - at) < timedelta(days=1):
        return format_relative(at, console.now)
    return local_time(instant, console)[:-3]


def local_and_relative_time(instant: str | None, console: Console) -> str:
    """Return the local time, and its distance from now."""
    exact, relative = local_time(instant, console), relative_time(instant, console)
    return exact if exact.startswith(relative) else f"{exact} ({relative})"


def local_times(text: str, console: Console) -> str:
    """Return the text with local times in place of those in UTC, on a terminal without the date of today."""
    import re

    times = r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
    return re.sub(times, lambda match: short_time(match[0], console), text)


def sentence(text: str, console: Console, left: str = "") -> str:
    """Return a sentence of a response with local times, wrapped on a terminal."""
    return "\n".join(console.wrap_beside(left, local_times(text, console), indent=2 if left else 0))


def short_hash(text: str | None, console: Console) -> str | None:
    """Return the beginning of a hash; the whole one if verbose."""
    algorithm, colon, digest = (text or "").partition(":")
    return text if console.verbose or not colon else f"{algorithm}:{digest[:_SHORT_HASH]}"


def short_id(job_id: str | None, console: Console) -> str:
    """Return the end of an id, in which jobs of the same minute differ; the whole one if verbose."""
    return (job_id or "-") if console.verbose else (job_id or "-")[-SHORT_ID:]


def duration(milliseconds: float | None) -> str:
    """Return a duration: `<1ms`, `250ms`, `1.5s`, `2m05s` or `3h10m`; `-` for None."""
    if milliseconds is None:
        return "-"
    if 0 < milliseconds < 1:
        return "<1ms"
    if milliseconds < _SECOND:
        return f"{milliseconds:.0f}ms"
    if milliseconds < _MINUTE:
        return f"{milliseconds / _SECOND:.1f}s"
    if milliseconds < _HOUR:
        return f"{milliseconds // _MINUTE:.0f}m{milliseconds % _MINUTE // _SECOND:02.0f}s"
    return f"{milliseconds // _HOUR:.0f}h{milliseconds % _HOUR // _MINUTE:02.0f}m"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`."""
    return f"{number} {singular}" if number == 1 else f"{number} {plural or singular + 's'}"


def fields(pairs: Iterable[tuple[str, str | None]], console: Console) -> list[str]:
    """Return one aligned line for each field that has a value; on a terminal a long text is wrapped."""
    filled = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in filled), default=0)
    lines = []
    for name, text in filled:
        left = f"  {name.ljust(width)}  "
        first, *others = escape_controls(text).rstrip("\n").split("\n")
        if others:
            lines += [f"{left}{first}", *(" " * len(left) + line for line in others)]
        else:
            lines += console.wrap_beside(left, text)
    return lines


def text_or_json(value: Any) -> str:
    """Return a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else to_json(value, indent=2)


def inline(value: object) -> str:
    """Return a value on one line: a text without line breaks, any other value as JSON."""
    return one_line(value if isinstance(value, str) else to_json(value))


def status(status: str, console: Console) -> str:
    style = STATUS_STYLES.get(status)
    return console.style(style, status) if style else status


def indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in escape_controls(text).rstrip("\n").split("\n"))


def section(title: str, body: str, console: Console) -> list[str]:
    return ["", console.style("bold", title), body]


def list_section(title: str, rows: Sequence[str], console: Console) -> list[str]:
    """Return a section with a paragraph for each row; nothing without rows."""
    return section(title, "\n".join(sentence(row, console, "  ") for row in rows), console) if rows else []


def with_next_page(text: str, response: Document) -> str:
    """Return the text, with the option for the next page if there is one."""
    cursor = response["next_cursor"]
    return f"{text}\n\nThere are more: --cursor {cursor}" if cursor else text


def jobs_table(jobs: Sequence[Document], console: Console) -> str:
    rows = [
        (
            short_id(job["job_id"], console),
            job["plugin"],
            job["command"],
            job["status"],
            f"{job['attempt']}/{job['max_attempts']}",
            job["submitted_by"],
            relative_time(job["created_at"], console),
            job_note(job, console),
        )
        for job in jobs
    ]
    headers = ("JOB", "PLUGIN", "COMMAND", "STATUS", "ATTEMPT", "BY", "CREATED", "ABOUT")
    # These are left out first on a narrow terminal: ABOUT, the reason of a failure, matters more.
    return console.table(headers, rows, optional=("BY", "ATTEMPT", "CREATED"))


def job_note(job: Document, console: Console) -> str:
    """Return why a job is in its status, in one line."""
    if job["next_retry_at"] and job["status"] == "queued":
        return (
            f"{job['last_error'] or job['reason']}; next try {relative_time(job['next_retry_at'], console)}"
        )
    if job.get("orphaned"):
        return ORPHANED_TEXT
    if job["status"] in ("failed", "dead"):
        return brief_error(job["reason"], informative_error(job))
    return job["hold"] or ("" if job["reason"] in ("submitted", "claimed", "completed") else job["reason"])


def brief_error(reason: str, error: str | None) -> str:
    """Return why a job failed, for a line with little room: the part that differs most comes first."""
    if not error:
        return reason
    status, _, last_line = error.partition("; stderr ends with: ")
    if last_line:
        return f"{status.replace('exited with status', 'exit')}: {last_line}"
    return error if reason in ("attempts_exhausted", "bad_exit") else f"{reason}: {error}"


def informative_error(job: Document) -> str | None:
    """Return the last error of a job that did not succeed; None if it only repeats the reason."""
    error = job["last_error"]
    return None if job["status"] == "succeeded" or error == job["reason"] else error


def init_failure(failed_init: Document) -> str:
    """Return why a plugin's init failed, in one line, and the command that shows its job."""
    error = escape_controls(str(failed_init["error"])).partition("\n")[0]
    return f"{error} (`ductile job show {failed_init['job_id']}`)" if failed_init["job_id"] else error


def to_yaml(value: JsonValue) -> str:
    return "\n".join(_yaml_lines(value))


def _yaml_lines(value: JsonValue) -> Iterator[str]:
    match value:
        case dict() if value:
            for key, inner in value.items():
                head = f"{_yaml_scalar(key)}:"
                if isinstance(inner, dict | list) and inner:
                    yield head
                    yield from (f"  {line}" for line in _yaml_lines(inner))
                else:
                    yield f"{head} {_yaml_scalar(inner)}"
        case list() if value:
            for item in value:
                first, *others = _yaml_lines(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in others)
        case _:
            yield _yaml_scalar(value)


def _yaml_scalar(value: JsonValue) -> str:
    import re

    needs_no_quotes = isinstance(value, str) and re.fullmatch(_PLAIN_YAML, value, re.ASCII)
    return str(value) if needs_no_quotes and not re.fullmatch(_NOT_YAML_TEXT, str(value)) else to_json(value)


class _StepRow(NamedTuple):
    cells: tuple[str, ...]
    #: Reasons, shown on lines of their own because they are long.
    reasons: tuple[str, ...] = ()


def steps_table(steps: list[Document], console: Console) -> str:
    rows = [row for step in steps for row in _step_rows(step, console)]
    table = console.table(("STEP", "RUNS", "OUTCOME", "ATTEMPT", "TOOK", "JOB"), [row.cells for row in rows])
    header, *row_lines = table.split("\n")
    lines = [header]
    for line, row in zip(row_lines, rows, strict=True):
        lines += [line, *(text for reason in row.reasons for text in console.wrap_beside("    ", reason))]
    return "\n".join(lines)


def _step_rows(step: Document, console: Console) -> list[_StepRow]:
    """Return a row for each job, up to a limit; one row for a step without jobs."""
    jobs = [job for job in step["jobs"] if job["reason"] not in _NOT_MADE_REASONS]
    bypassed = tuple(bypass["explanation"] for bypass in step["bypasses"][:1])
    match step["kind"]:
        case "call":
            target = f"call {step['does']}"
        case "uses":
            target = str(step["does"]).removesuffix(".handle")
        case kind:
            target = f"({kind})" if kind else ""
    name = (step["step"], target)
    if not jobs:
        outcome = str(_STEP_OUTCOMES.get(step["outcome"], step["outcome"]))
        return [_StepRow((*name, outcome, "", "", ""), (*step["errors"][:1], *bypassed))]
    rows = []
    for job in jobs[:_MAX_JOBS]:
        attempt = f"{job['attempt']}/{job['max_attempts']}"
        cells = (
            *name,
            job["status"],
            attempt,
            duration(job["duration_ms"]),
            short_id(job["job_id"], console),
        )
        failed = job["status"] in ("failed", "dead") or (job["error"] and job["status"] != "succeeded")
        reason = f"{job['reason']}: {job['error']}" if job["error"] else str(job["reason"])
        rows.append(_StepRow(cells, (reason,) if failed else ()))
        name = ("", "")  # only the first row names the step
    if more := jobs[_MAX_JOBS:]:
        failures = sum(job["status"] in ("failed", "dead") for job in more)
        remainder = f"and {count(len(more), 'job')} more"
        remainder += f", {failures} of them failed" if failures else ""
        rows[-1] = rows[-1]._replace(reasons=(*rows[-1].reasons, remainder))
    if bypassed:
        rows.append(_StepRow(("", "", "bypassed", "", "", ""), bypassed))
    return rows
