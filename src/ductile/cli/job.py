"""`ductile job …`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import Said, ask, find_daemon, present
from ductile.cli.progress import waiting_for
from ductile.cli.run_steps import steps_table
from ductile.cli.screen import printable, within
from ductile.cli.wording import (
    JOB_HEADERS,
    JOB_SPARE,
    NOBODY_RUNS,
    facts,
    indented,
    job_row,
    moment,
    section,
    span,
    status_word,
    telling_error,
    value_text,
)
from ductile.control.client import converse
from ductile.errors import Exit

if TYPE_CHECKING:
    from ductile.cli.screen import Screen

TERMINAL = ("succeeded", "failed", "dead")
#: What stands in a result beside the answer of the plugin.
_BESIDE = ("stdout", "stderr", "exit_code", "output_files")


def list_all(call: Call) -> Answer:
    found = ask(
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
    return Answer(data=found, text=lambda screen: _list_text(found, screen))


def show(call: Call) -> Answer:
    job = ask(call, "job.show", {"job_id": call.text("JOB")})
    return Answer(data=job, text=lambda screen: _show_text(job, screen))


def tree(call: Call) -> Answer:
    found = ask(call, "job.tree", {"job_id": call.text("JOB")})
    return Answer(
        data=found, text=lambda screen: "\n".join([*_tree_lines(found["tree"], screen), *_rest(found)])
    )


def logs(call: Call) -> Answer:
    found = ask(call, "job.logs", {"job_id": call.text("JOB")})
    return Answer(data=found, text=lambda screen: _logs_text(found, screen))


def wait(call: Call) -> Answer:
    given = {"job_id": call.text("JOB"), "timeout": call.optional("timeout")}
    connection = find_daemon(call)
    if connection is None:
        job = ask(call, "job.wait", given)
    else:
        with waiting_for(call, f"job {call.text('JOB')}"):
            job = converse(connection, "job.wait", present(given), timeout=None)
    return Answer(data=job, text=lambda screen: _verdict(job, screen), exit_status=_wait_status(job))


def cancel(call: Call) -> Answer:
    done = ask(call, "job.cancel", {"job_id": call.text("JOB"), "dry_run": call.switch("dry_run")})
    return Answer(data=done, text=lambda screen: screen.advice(_cancel_text(done)))


def retry(call: Call) -> Answer:
    if call.optional("from_step") is not None:
        return _retry_from_step(call)
    done = ask(call, "job.retry", {"job_id": call.text("JOB"), "dry_run": call.switch("dry_run")})
    what = "would go back on the queue" if done.get("dry_run") else "is on the queue again"
    return Answer(data=done, text=lambda _: f"{done['job_id']} {what}.")


def _retry_from_step(call: Call) -> Answer:
    given = {
        "job_id": call.text("JOB"),
        "step": call.optional("from_step"),
        "dry_run": call.switch("dry_run"),
    }
    done = ask(call, "job.rerun", given)
    where = f"{done['pipeline']} from {done['from_step']}"
    if done.get("dry_run"):
        return Answer(data=done, text=lambda _: f"Would run {where} again, as {done['retries']} had it.")
    return Answer(data=done, text=lambda _: f"{done['job_id']} runs {where}.")


def _wait_status(job: Said) -> Exit:
    if job["status"] not in TERMINAL:
        return Exit.TRY_AGAIN
    return Exit.OK if job["status"] == "succeeded" else Exit.FAILURE


def _cancel_text(done: Said) -> str:
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


def _list_text(found: Said, screen: Screen) -> str:
    if not found["jobs"]:
        return "No such jobs."
    table = screen.table(JOB_HEADERS, [job_row(job) for job in found["jobs"]], spare=JOB_SPARE)
    more = found["next_cursor"]
    return f"{table}\n\nThere are more: --cursor {more}" if more else table


def _verdict(job: Said, screen: Screen) -> str:
    line = f"{job['job_id']} {status_word(job['status'], screen)} ({job['reason']})"
    error = telling_error(job)
    if error is None:
        return line
    # Of a job that runs again it is from the time before, unless that is why it runs again.
    earlier = "" if job["status"] in TERMINAL or job["reason"] == "retry" else "earlier: "
    return f"{line}: {earlier}{within(error)}"


def _show_text(job: Said, screen: Screen) -> str:
    about = NOBODY_RUNS if job.get("orphaned") else job["reason"]
    title = f"{job['plugin']} {job['command']}: {status_word(job['status'], screen)} ({about})"
    lines = [title, *facts(_job_facts(job))]
    if job["payload"] is not None:
        lines += section("Payload", indented(value_text(job["payload"])), screen)
    if (shown := _plugin_answer(job)) is not None:
        lines += section("Result", indented(value_text(shown)), screen)
    if job.get("steps"):
        lines += section("Steps", steps_table(job["steps"], screen), screen)
    if job["executions"]:
        lines += section("Executions", _executions_text(job["executions"], screen), screen)
    rows = [
        (moment(row["at"]), f"{row['from'] or '-'} → {row['to']}", row["reason"])
        for row in job["transitions"]
    ]
    lines += section("History", screen.table(("AT", "CHANGE", "REASON"), rows), screen)
    return "\n".join(lines)


def _plugin_answer(job: Said) -> Any:
    """What the plugin calls its result; the whole answer if it has none; None without an answer."""
    answer = job["result"] or {}
    if "status" not in answer:
        return None
    return answer["result"] if "result" in answer else {k: v for k, v in answer.items() if k not in _BESIDE}


def _job_facts(job: Said) -> list[tuple[str, str | None]]:
    by = f"{job['submitted_by']} ({job['submitted_detail']})" if job["submitted_detail"] else None
    return [
        ("job", job["job_id"]),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
        ("submitted by", by or job["submitted_by"]),
        ("held for", job["hold"]),
        ("dedupe key", job["dedupe_key"]),
        ("created", moment(job["created_at"])),
        ("started", moment(job["started_at"]) if job["started_at"] else None),
        ("completed", moment(job["completed_at"]) if job["completed_at"] else None),
        ("next try", moment(job["next_retry_at"]) if job["next_retry_at"] else None),
        ("cancel asked", moment(job["cancel_requested_at"]) if job["cancel_requested_at"] else None),
        ("last error", job["last_error"]),
        ("parent", job["parent_job_id"]),
        ("run", job["run_id"]),
        ("step", job["step"]),
    ]


def _executions_text(executions: list[Said], screen: Screen) -> str:
    rows = [
        (
            str(row["execution"]),
            row["status"],
            moment(row["started_at"]),
            span(row["duration_ms"]),
            _exit_text(row),
            row["error"] or "",
        )
        for row in executions
    ]
    return screen.table(
        ("NO", "STATUS", "STARTED", "TOOK", "EXIT", "ERROR"), rows, spare=("STARTED",), prose=True
    )


def _exit_text(row: Said) -> str:
    if row["signal"] is not None:
        return f"signal {row['signal']}"
    return "-" if row["exit_code"] is None else str(row["exit_code"])


def _tree_lines(node: Said, screen: Screen, before: str = "", child_before: str = "") -> list[str]:
    """The job and what is below it; the answer is nested no deeper than recursion can follow."""
    lines = [f"{before}{_tree_line(node, screen)}"]
    *others, last = node["children"] or [None]
    for child in others:
        lines += _tree_lines(child, screen, f"{child_before}├─ {_origin(child, node)}", f"{child_before}│  ")
    if last is not None:
        lines += _tree_lines(last, screen, f"{child_before}└─ {_origin(last, node)}", f"{child_before}   ")
    return lines


def _rest(found: Said) -> list[str]:
    if not found.get("truncated"):  # which an older daemon does not tell
        return []
    return [
        "There are more than can be shown at once. `ductile job tree JOB` shows what one of these led to."
    ]


def _tree_line(node: Said, screen: Screen) -> str:
    word, error = status_word(node["status"], screen), telling_error(node)
    step = f"[{printable(node['step'])}] " if node["step"] else ""
    line = f"{step}{node['plugin']} {node['command']}  {word}  {node['job_id']}"
    return f"{line}  {printable(error).replace(chr(10), ' ')}" if error else line


def _origin(child: Said, above: Said) -> str:
    """Of a job that is told in a row with the one that led to it, which one that is."""
    parent = child["parent_job_id"]
    return "" if parent == above["job_id"] else f"after {parent}: "


def _logs_text(found: Said, screen: Screen) -> str:
    if not found["executions"]:
        return "The job has not run yet."
    return "\n\n".join(_execution_text(row, screen) for row in found["executions"])


def _execution_text(row: Said, screen: Screen) -> str:
    word = status_word(row["status"], screen)
    lines = [f"{row['id']}  {word}  {moment(row['started_at'])}  {span(row['duration_ms'])}"]
    for name, text in (("error", row["error"]), ("stdout", row["stdout"]), ("stderr", row["stderr"])):
        if text:
            lines += [screen.style("bold", f"{name}:"), indented(text)]
    return "\n".join(lines)
