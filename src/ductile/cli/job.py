"""`ductile job …`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ductile.cli.client import Document, connect_to_daemon, drop_unset, request
from ductile.cli.console.console import indent_continuation, printable
from ductile.cli.console.format import (
    JOB_HEADERS,
    JOB_OPTIONAL_COLUMNS,
    ORPHANED,
    format_fields,
    format_ms,
    format_time,
    format_value,
    indent,
    informative_error,
    job_row,
    section,
    styled_status,
)
from ductile.cli.console.progress import show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.run_steps import steps_table
from ductile.control.client import exchange
from ductile.errors import Exit

if TYPE_CHECKING:
    from ductile.cli.console.console import Console

TERMINAL = ("succeeded", "failed", "dead")
#: What stands in a result beside the answer of the plugin.
_BESIDE = ("stdout", "stderr", "exit_code", "output_files")


def list_all(call: Invocation) -> CommandResult:
    found = request(
        call,
        "job.list",
        {
            "plugin": call.optional("plugin"),
            "command": call.optional("command"),
            "status": call.optional("status"),
            "submitted_by": call.optional("by"),
            "from": call.optional("from"),
            "to": call.optional("to"),
            "query": call.optional("query"),
            "limit": call.number("limit"),
            "cursor": call.optional("cursor"),
        },
    )
    return CommandResult(data=found, text=lambda screen: _list_text(found, screen))


def show(call: Invocation) -> CommandResult:
    job = request(call, "job.show", {"job_id": call.text("JOB")})
    return CommandResult(data=job, text=lambda screen: _show_text(job, screen))


def tree(call: Invocation) -> CommandResult:
    found = request(call, "job.tree", {"job_id": call.text("JOB")})
    return CommandResult(
        data=found, text=lambda screen: "\n".join([*_tree_lines(found["tree"], screen), *_rest(found)])
    )


def logs(call: Invocation) -> CommandResult:
    found = request(call, "job.logs", {"job_id": call.text("JOB")})
    return CommandResult(data=found, text=lambda screen: _logs_text(found, screen))


def wait(call: Invocation) -> CommandResult:
    given = {"job_id": call.text("JOB"), "timeout": call.optional("timeout")}
    connection = connect_to_daemon(call)
    if connection is None:
        job = request(call, "job.wait", given)
    else:
        with show_waiting(call, f"job {call.text('JOB')}"):
            job = exchange(connection, "job.wait", drop_unset(given), timeout=None)
    return CommandResult(data=job, text=lambda screen: _verdict(job, screen), exit_status=_wait_status(job))


def cancel(call: Invocation) -> CommandResult:
    done = request(call, "job.cancel", {"job_id": call.text("JOB"), "dry_run": call.switch("dry_run")})
    return CommandResult(data=done, text=lambda screen: screen.advice(_cancel_text(done)))


def retry(call: Invocation) -> CommandResult:
    if call.optional("from_step") is not None:
        return _retry_from_step(call)
    done = request(call, "job.retry", {"job_id": call.text("JOB"), "dry_run": call.switch("dry_run")})
    what = "would go back on the queue" if done.get("dry_run") else "is on the queue again"
    return CommandResult(data=done, text=lambda _: f"{done['job_id']} {what}.")


def _retry_from_step(call: Invocation) -> CommandResult:
    given = {
        "job_id": call.text("JOB"),
        "step": call.optional("from_step"),
        "dry_run": call.switch("dry_run"),
    }
    done = request(call, "job.rerun", given)
    where = f"{done['pipeline']} from {done['from_step']}"
    if done.get("dry_run"):
        return CommandResult(
            data=done, text=lambda _: f"Would run {where} again, as {done['retries']} had it."
        )
    return CommandResult(data=done, text=lambda _: f"{done['job_id']} runs {where}.")


def _wait_status(job: Document) -> Exit:
    if job["status"] not in TERMINAL:
        return Exit.TRY_AGAIN
    return Exit.OK if job["status"] == "succeeded" else Exit.FAILURE


def _cancel_text(done: Document) -> str:
    if done.get("dry_run"):
        return f"{done['job_id']} would be cancelled; it is {done['status']}."
    if done.get("orphaned"):
        return (
            f"{done['job_id']} will be ended as cancelled at the next start: nobody runs it any more. "
            "`ductile system start`"
        )
    if done["cancel"] == "requested":
        return f"{done['job_id']} is being ended; it is cancelled when its process is gone."
    return f"{done['job_id']} is cancelled."


def _list_text(found: Document, screen: Console) -> str:
    if not found["jobs"]:
        return "No such jobs."
    table = screen.table(JOB_HEADERS, [job_row(job) for job in found["jobs"]], spare=JOB_OPTIONAL_COLUMNS)
    more = found["next_cursor"]
    return f"{table}\n\nThere are more: --cursor {more}" if more else table


def _verdict(job: Document, screen: Console) -> str:
    line = f"{job['job_id']} {styled_status(job['status'], screen)} ({job['reason']})"
    error = informative_error(job)
    if error is None:
        return line
    # Of a job that runs again it is from the time before, unless that is why it runs again.
    earlier = "" if job["status"] in TERMINAL or job["reason"] == "retry" else "earlier: "
    return f"{line}: {earlier}{indent_continuation(error)}"


def _show_text(job: Document, screen: Console) -> str:
    about = ORPHANED if job.get("orphaned") else job["reason"]
    title = f"{job['plugin']} {job['command']}: {styled_status(job['status'], screen)} ({about})"
    lines = [title, *format_fields(_job_facts(job))]
    if job["payload"] is not None:
        lines += section("Payload", indent(format_value(job["payload"])), screen)
    if (shown := _plugin_answer(job)) is not None:
        lines += section("Result", indent(format_value(shown)), screen)
    if job.get("steps"):
        lines += section("Steps", steps_table(job["steps"], screen), screen)
    if job["executions"]:
        lines += section("Executions", _executions_text(job["executions"], screen), screen)
    rows = [
        (format_time(row["at"]), f"{row['from'] or '-'} → {row['to']}", row["reason"])
        for row in job["transitions"]
    ]
    lines += section("History", screen.table(("AT", "CHANGE", "REASON"), rows), screen)
    return "\n".join(lines)


def _plugin_answer(job: Document) -> Any:
    """What the plugin calls its result; the whole answer if it has none; None without an answer."""
    answer = job["result"] or {}
    if "status" not in answer:
        return None
    return answer["result"] if "result" in answer else {k: v for k, v in answer.items() if k not in _BESIDE}


def _job_facts(job: Document) -> list[tuple[str, str | None]]:
    by = f"{job['submitted_by']} ({job['submitted_detail']})" if job["submitted_detail"] else None
    return [
        ("job", job["job_id"]),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
        ("submitted by", by or job["submitted_by"]),
        ("held for", job["hold"]),
        ("dedupe key", job["dedupe_key"]),
        ("created", format_time(job["created_at"])),
        ("started", format_time(job["started_at"]) if job["started_at"] else None),
        ("completed", format_time(job["completed_at"]) if job["completed_at"] else None),
        ("next try", format_time(job["next_retry_at"]) if job["next_retry_at"] else None),
        ("cancel asked", format_time(job["cancel_requested_at"]) if job["cancel_requested_at"] else None),
        ("last error", job["last_error"]),
        ("parent", job["parent_job_id"]),
        ("run", job["run_id"]),
        ("step", job["step"]),
    ]


def _executions_text(executions: list[Document], screen: Console) -> str:
    rows = [
        (
            str(row["execution"]),
            row["status"],
            format_time(row["started_at"]),
            format_ms(row["duration_ms"]),
            _exit_text(row),
            row["error"] or "",
        )
        for row in executions
    ]
    return screen.table(
        ("NO", "STATUS", "STARTED", "TOOK", "EXIT", "ERROR"), rows, spare=("STARTED",), prose=True
    )


def _exit_text(row: Document) -> str:
    if row["signal"] is not None:
        return f"signal {row['signal']}"
    return "-" if row["exit_code"] is None else str(row["exit_code"])


def _tree_lines(node: Document, screen: Console, before: str = "", child_before: str = "") -> list[str]:
    """The job and what is below it; the answer is nested no deeper than recursion can follow."""
    lines = [f"{before}{_tree_line(node, screen)}"]
    *others, last = node["children"] or [None]
    for child in others:
        lines += _tree_lines(child, screen, f"{child_before}├─ {_origin(child, node)}", f"{child_before}│  ")
    if last is not None:
        lines += _tree_lines(last, screen, f"{child_before}└─ {_origin(last, node)}", f"{child_before}   ")
    return lines


def _rest(found: Document) -> list[str]:
    if not found.get("truncated"):  # which an older daemon does not tell
        return []
    return [
        "There are more than can be shown at once. `ductile job tree JOB` shows what one of these led to."
    ]


def _tree_line(node: Document, screen: Console) -> str:
    word, error = styled_status(node["status"], screen), informative_error(node)
    step = f"[{printable(node['step'])}] " if node["step"] else ""
    line = f"{step}{node['plugin']} {node['command']}  {word}  {node['job_id']}"
    return f"{line}  {printable(error).replace(chr(10), ' ')}" if error else line


def _origin(child: Document, above: Document) -> str:
    """Of a job that is told in a row with the one that led to it, which one that is."""
    parent = child["parent_job_id"]
    return "" if parent == above["job_id"] else f"after {parent}: "


def _logs_text(found: Document, screen: Console) -> str:
    if not found["executions"]:
        return "The job has not run yet."
    return "\n\n".join(_execution_text(row, screen) for row in found["executions"])


def _execution_text(row: Document, screen: Console) -> str:
    word = styled_status(row["status"], screen)
    lines = [f"{row['id']}  {word}  {format_time(row['started_at'])}  {format_ms(row['duration_ms'])}"]
    for name, text in (("error", row["error"]), ("stdout", row["stdout"]), ("stderr", row["stderr"])):
        if text:
            lines += [screen.style("bold", f"{name}:"), indent(text)]
    return "\n".join(lines)
