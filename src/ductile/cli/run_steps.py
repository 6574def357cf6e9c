"""The steps of a pipeline run as a table: a line for each with its outcome and, below it, the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ductile.cli.console.format import format_count, format_ms

if TYPE_CHECKING:
    from ductile.cli.client import Document
    from ductile.cli.console.console import Console

#: Jobs that are shown of a step that ran often.
_MAX_JOBS = 3
_WORDS = {"not_made": "not made", "not_reached": "not reached", "entered": "-"}
_NOT_MADE = ("bad_template", "bad_baggage", "bad_condition")


class _Row(NamedTuple):
    cells: tuple[str, ...]
    #: Reasons, shown on lines of their own because they are long.
    reasons: tuple[str, ...] = ()


def steps_table(steps: list[Document], console: Console) -> str:
    rows = [row for step in steps for row in _rows(step)]
    table = console.table(("STEP", "RUNS", "OUTCOME", "ATTEMPT", "TOOK", "JOB"), [row.cells for row in rows])
    header, *lines = table.split("\n")
    shown = [header]
    for line, row in zip(lines, rows, strict=True):
        shown += [line, *(text for reason in row.reasons for text in console.beside("    ", reason))]
    return "\n".join(shown)


def _rows(step: Document) -> list[_Row]:
    """A row for each job, up to a limit; one row for a step without jobs."""
    made = [job for job in step["jobs"] if job["reason"] not in _NOT_MADE]
    bypassed = tuple(bypass["explanation"] for bypass in step["bypasses"][:1])
    if not made:
        word = str(_WORDS.get(step["outcome"], step["outcome"]))
        reasons = (*step["errors"][:1], *bypassed)
        return [_Row((step["step"], _target(step), word, "", "", ""), reasons)]
    rows = [_job_row(job, step, number) for number, job in enumerate(made[:_MAX_JOBS])]
    if more := made[_MAX_JOBS:]:
        failed = sum(job["status"] in ("failed", "dead") for job in more)
        remainder = f"and {format_count(len(more), 'job')} more"
        remainder += f", {failed} of them failed" if failed else ""
        rows[-1] = rows[-1]._replace(reasons=(*rows[-1].reasons, remainder))
    if bypassed:
        rows.append(_Row(("", "", "bypassed", "", "", ""), bypassed))
    return rows


def _job_row(job: Document, step: Document, number: int) -> _Row:
    cells = (
        step["step"] if number == 0 else "",
        _target(step) if number == 0 else "",
        job["status"],
        f"{job['attempt']}/{job['max_attempts']}",
        format_ms(job["duration_ms"]),
        job["job_id"],
    )
    if job["status"] == "succeeded" or not (job["error"] or job["status"] in ("failed", "dead")):
        return _Row(cells)
    return _Row(cells, (f"{job['reason']}: {job['error']}" if job["error"] else str(job["reason"]),))


def _target(step: Document) -> str:
    if step["kind"] == "call":
        return f"call {step['does']}"
    if step["kind"] != "uses":
        return f"({step['kind']})" if step["kind"] else ""
    return str(step["does"]).removesuffix(".handle")
