"""The steps of a pipeline run as a table: one line for each, what became of it and, below it, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ductile.cli.console.format import format_count, format_ms

if TYPE_CHECKING:
    from ductile.cli.client import Document
    from ductile.cli.console.console import Console

#: Of a step that ran often: so many of its jobs are told.
_MOST_JOBS = 3
_WORDS = {"not_made": "not made", "not_reached": "not reached", "entered": "-"}
_NOT_MADE = ("bad_template", "bad_baggage", "bad_condition")


class _Row(NamedTuple):
    cells: tuple[str, ...]
    #: Told on lines of their own: they are long, and a terminal is not wide.
    why: tuple[str, ...] = ()


def steps_table(steps: list[Document], screen: Console) -> str:
    rows = [row for step in steps for row in _rows(step)]
    table = screen.table(("STEP", "RUNS", "OUTCOME", "ATTEMPT", "TOOK", "JOB"), [row.cells for row in rows])
    header, *lines = table.split("\n")
    told = [header]
    for line, row in zip(lines, rows, strict=True):
        told += [line, *(text for why in row.why for text in screen.beside("    ", why))]
    return "\n".join(told)


def _rows(step: Document) -> list[_Row]:
    """One for each job, but no more than a few; one for a step that has none."""
    made = [job for job in step["jobs"] if job["reason"] not in _NOT_MADE]
    bypassed = tuple(bypass["explanation"] for bypass in step["bypasses"][:1])
    if not made:
        word = str(_WORDS.get(step["outcome"], step["outcome"]))
        why = (*step["errors"][:1], *bypassed)
        return [_Row((step["step"], _target(step), word, "", "", ""), why)]
    rows = [_job_row(job, step, number) for number, job in enumerate(made[:_MOST_JOBS])]
    if len(made) > _MOST_JOBS:
        rows[-1] = rows[-1]._replace(why=(*rows[-1].why, _remainder(made[_MOST_JOBS:])))
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


def _remainder(jobs: list[Document]) -> str:
    failed = sum(job["status"] in ("failed", "dead") for job in jobs)
    return f"and {format_count(len(jobs), 'job')} more" + (f", {failed} of them failed" if failed else "")


def _target(step: Document) -> str:
    if step["kind"] == "call":
        return f"call {step['does']}"
    if step["kind"] != "uses":
        return f"({step['kind']})" if step["kind"] else ""
    return str(step["does"]).removesuffix(".handle")
