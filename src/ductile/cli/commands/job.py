"""`ductile job …`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ductile.cli.bulk import change_result, one_of
from ductile.cli.client import Document, connect_to_daemon, exchange, request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, indent_continuation, one_line, printable
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import JOB, Argument, Example, Option, action, renders

#: Fields of a result that Ductile adds to the answer of the plugin.
_ADDED_FIELDS = ("stdout", "stderr", "exit_code", "output_files")
_ONE_JOB = Argument(
    "JOB", "the job's id, or at least four of its first or last digits; or filters instead", required=False
)
#: Characters of a payload or context that `explain` shows.
_MAX_INPUT = 300
_TRUNCATED = "more was printed on stderr than is kept: only its beginning is shown"


@renders(
    "list",
    "list jobs, newest first",
    "job.list",
    usage={
        "submitted_by": "--by SOURCE",
        "since": "--from, --since TIME",
        "until": "--to, --until TIME",
        **dict.fromkeys(("from", "to", "job_id", "parent", "run")),
    },
    examples=(
        Example("ductile job list --status dead", "jobs that exhausted their retries"),
        Example("ductile job list --plugin echo --since 06:00", "one plugin, since six in the morning"),
        Example("ductile job list --query 'connection refused' --since 1d", "whatever they said"),
        Example("ductile job list --sort duration -n 5", "those that ran longest"),
    ),
)
def list_jobs(found: Document, console: Console) -> str:
    if not found["jobs"]:
        return "No jobs found."
    table = fmt.jobs_table(found["jobs"], console)
    if any("payload_excerpt" in job for job in found["jobs"]):
        header, *lines = table.split("\n")
        excerpts = (job.get("payload_excerpt") for job in found["jobs"])
        shown = [header]
        for line, excerpt in zip(lines, excerpts, strict=True):
            shown += [line, *([f"    {one_line(excerpt)}"] if excerpt else [])]
        table = "\n".join(shown)
    return fmt.with_next_page(table, found)


@renders("show", "show everything about one job", "job.show", arguments=(JOB,), usage={"result": None})
def show(job: Document, console: Console) -> str:
    note = fmt.ORPHANED if job.get("orphaned") else job["reason"]
    title = f"{job['plugin']} {job['command']}: {fmt.status(job['status'], console)} ({note})"
    lines = [title, *fmt.fields(_job_fields(job, console))]
    if job["payload"] is not None:
        lines += fmt.section("Payload", fmt.indent(fmt.value(job["payload"])), console)
    answer: Any = job["result"] or {}
    if "status" in answer:  # the plugin answered
        if "result" in answer:
            answer = answer["result"]
        else:
            answer = {name: value for name, value in answer.items() if name not in _ADDED_FIELDS}
        lines += fmt.section("Result", fmt.indent(fmt.value(answer)), console)
    elif answer.get("stdout"):  # of a script that failed
        lines += fmt.section("Output", fmt.indent(answer["stdout"].rstrip("\n")), console)
    if job["stderr"] and job["status"] != "succeeded":
        lines += fmt.section("Stderr", fmt.indent(job["stderr"].rstrip("\n")), console)
    if job.get("steps"):
        lines += fmt.section("Steps", fmt.steps_table(job["steps"], console), console)
    if any(row.get("stderr_truncated") for row in job["executions"]):
        lines += ["", _TRUNCATED[0].upper() + _TRUNCATED[1:] + "."]
    if job["executions"]:
        lines += fmt.section("Executions", _executions_table(job["executions"], console), console)
    rows = [
        (fmt.time(row["at"], console), f"{row['from'] or '-'} → {row['to']}", row["reason"])
        for row in job["transitions"]
    ]
    lines += fmt.section("History", console.table(("AT", "CHANGE", "REASON"), rows), console)
    return "\n".join(lines)


@renders(
    "explain",
    "say why a job failed or does not run, and what to do",
    "job.explain",
    arguments=(JOB,),
    about="One sentence first; then where the job comes from, what happened, its input, and the "
    "differences from the last good run of the same command: configuration, exit status, stderr, "
    "duration, input.",
    examples=(Example("ductile job explain 8000a1b2c3d4", "by the end of its id, as `job list` shows it"),),
)
def explain(found: Document, console: Console) -> str:
    lines = [console.style("bold", indent_continuation(found["verdict"]))]
    chain = []
    for depth, link in enumerate(found["chain"]):
        known = ", ".join(
            part
            for part in (link["status"], link["job_id"] and fmt.short_id(link["job_id"], console))
            if part
        )
        note = f" ({known})" if known else ""
        branch = f"{'  ' * (depth - 1)}└ " if depth else ""
        chain.append(f"  {branch}{printable(link['what'])}{note}")
    lines += fmt.section("Where it comes from", "\n".join(chain), console)
    lines += fmt.list_section("What happened", found["evidence"], console)
    saw, event = found["saw"], found["saw"]["event"]
    loaded = f" (loaded {fmt.moment(saw['config_loaded_at'], console)})" if saw["config_loaded_at"] else ""
    given = fmt.fields(
        (
            ("payload", _short(saw["payload"])),
            ("event", f"{event['type']} from {event['source']}" if event else None),
            ("context", _short(saw["context"])),
            ("config", f"{saw['config']}{loaded}" if saw["config"] else None),
        )
    )
    if given:
        lines += fmt.section("What it saw", "\n".join(given), console)
    lines += fmt.list_section("Likely cause", [found["cause"]] if found["cause"] else [], console)
    if found["compared_with"]:
        title = f"What differs from the last good run, {found['compared_with']}"
        rows = [
            f"{row['what']}: {row['good'] or 'none'} → {row['now'] or 'none'}" for row in found["differences"]
        ]
        same = f"Nothing in what was compared: {'; '.join(found['compared'])}."
        lines += fmt.list_section(title, rows or [same], console)
    lines += fmt.list_section("What was not compared", found["not_compared"], console)
    lines += fmt.list_section("What to do", [console.hint(line) for line in found["advice"]], console)
    return "\n".join(lines)


@renders("tree", "show a job and all that it led to", "job.tree", arguments=(JOB,))
def tree(found: Document, console: Console) -> str:
    lines = _tree_lines(found["tree"], console)
    if found.get("truncated"):  # absent in answers of an older daemon
        lines.append("The tree is larger than shown. `ductile job tree JOB` shows the part below a job.")
    return "\n".join(lines)


@action(
    "logs",
    "show what each execution of a job printed",
    "job.logs",
    arguments=(JOB,),
    options=(Option("-f, --follow", "go on with what it prints, until it has ended; needs the daemon"),),
    about="With --follow the exit status is that of `job wait`; of a pipeline run, the output of its steps "
    "is shown. What was printed before is shown as far as it is still held. With --follow and --json "
    "together, each line is a JSON object: `output`, `execution` and, at the end, `job`.",
    examples=(Example("ductile job logs -f 8000a1b2c3d4", "what it prints, as it prints it"),),
)
def logs(invocation: Invocation) -> CommandResult:
    if invocation.switch("follow"):
        return _follow_logs(invocation)
    found = request(invocation)

    def text(console: Console) -> str:
        parts = [_execution_text(row, console) for row in found["executions"]]
        return "\n\n".join(parts) or "The job has not run yet."

    return CommandResult(found, text)


def _execution_text(row: Document, console: Console, *, with_output: bool = True) -> str:
    word, took = fmt.status(row["status"], console), fmt.ms(row["duration_ms"])
    lines = [f"{row['id']}  {word}  {fmt.time(row['started_at'], console)}  {took}"]
    for name in ("error", "stdout", "stderr") if with_output else ("error",):
        if row[name]:
            lines += [console.style("bold", f"{name}:"), fmt.indent(row[name])]
    if row.get("stderr_truncated"):  # absent in answers of an older daemon
        lines.append(f"({_TRUNCATED})")
    return "\n".join(lines)


def _follow_logs(invocation: Invocation) -> CommandResult:
    """Print output as it comes and executions as they end, until the job has ended or the daemon stops."""
    from ductile.cli.client import FOLLOW_TIMEOUT, request_daemon

    view = _LogView(invocation)
    connection = connect_to_daemon(invocation)
    if connection is None:
        for row in request(invocation)["executions"]:
            view.show_execution(row)
        job = request(invocation, "job.wait")
        return view.end(job)
    connection.close()
    position: int | None = None
    while True:
        fields = invocation.request_fields() | {"after": position, "executions": view.known}
        fields["timeout"] = FOLLOW_TIMEOUT
        news = request_daemon(invocation, "job.follow", fields, timeout=None)
        position = news["position"]
        view.show(news["output"], news["executions"])
        if news["ended"] or news["stopping"]:
            return view.end(news["job"])


class _LogView:
    """Prints what a job prints, and its executions when they have ended."""

    def __init__(self, invocation: Invocation) -> None:
        from ductile.cli.console.console import console_for
        from ductile.cli.live_output import LiveOutputPrinter, step_label

        self._out, self._json = invocation.out, invocation.json
        self._console = console_for(
            invocation.out, invocation.environ, invocation.config, verbose=invocation.verbose
        )
        terminal = self._console.width is not None
        self._printer = LiveOutputPrinter(self._write, terminal=terminal, label=step_label)
        #: The number of the last execution that was shown.
        self.known = 0

    def show(self, output: list[Document], executions: list[Document]) -> None:
        for row in executions:
            # Output of a later execution comes after the end of this one.
            self._show_output(each for each in output if each["execution"] <= row["execution"])
            output = [each for each in output if each["execution"] > row["execution"]]
            self.show_execution(row)
        self._show_output(output)

    def show_execution(self, row: Document) -> None:
        self.known = max(self.known, row["execution"])
        if self._json:
            self._write(f"{fmt.to_json({'execution': row})}\n")
            return
        self._printer.end_line()
        seen = self._printer.has_shown(row["job_id"], row["execution"])
        self._write(f"{_execution_text(row, self._console, with_output=not seen)}\n")

    def end(self, job: Document) -> CommandResult:
        """The outcome of the job."""
        if not self._json:
            self._printer.end_line()
            return _outcome(job)
        self._write(f"{fmt.to_json({'job': job})}\n")
        return _outcome(job)._replace(data=None, text=None)

    def _show_output(self, pieces: Iterable[Document]) -> None:
        if not self._json:
            self._printer.show(pieces)
            return
        for piece in pieces:
            self._write(f"{fmt.to_json({'output': piece})}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


@action(
    "wait",
    "wait for a job to end",
    "job.wait",
    arguments=(JOB,),
    about="Exit status 0 if the job succeeded, 1 if it did not, 75 if it has not ended in time.",
)
def wait(invocation: Invocation) -> CommandResult:
    from ductile.cli.console.console import show_waiting

    connection = connect_to_daemon(invocation)
    if connection is None:
        job = request(invocation)
    else:
        with show_waiting(invocation, f"job {invocation.text('JOB')}"):
            job = exchange(invocation, connection, timeout=None)
    return _outcome(job)


def _outcome(job: Document) -> CommandResult:
    """The line about a job that was waited for, and the exit status by its status."""
    from ductile.errors import Exit

    ended = job["status"] in fmt.TERMINAL_STATUSES
    status = Exit.OK if job["status"] == "succeeded" else Exit.FAILURE if ended else Exit.TRY_AGAIN

    def text(console: Console) -> str:
        line = f"{job['job_id']} {fmt.status(job['status'], console)} ({job['reason']})"
        error = fmt.informative_error(job)
        if error is None:
            return line
        # The error of a job that runs again is of an earlier attempt, unless the job is about to be retried.
        earlier = "" if ended or job["reason"] == "retry" else "earlier: "
        return f"{line}: {earlier}{indent_continuation(error)}"

    return CommandResult(job, text, exit_status=status)


@action(
    "cancel",
    "end a job, or all that match a filter; a running one is killed",
    "job.cancel_many",
    arguments=(_ONE_JOB,),
    about="Without JOB, the queued and running jobs that match every filter; at least one filter is needed. "
    "--dry-run counts and lists them first.",
    examples=(
        Example("ductile job cancel 8000a1b2c3d4", "by the end of its id, as `job list` shows it"),
        Example("ductile job cancel --plugin echo --status queued --dry-run", "all that wait for one plugin"),
    ),
)
def cancel(invocation: Invocation) -> CommandResult:
    if invocation.optional("JOB") is None:
        done = request(invocation, timeout=None)
        return change_result(done, ("Cancelled", "Would cancel"), _matched_table)
    done = request(invocation, "job.cancel", _one_job(invocation))
    return CommandResult(done, lambda console: _cancelled_text(done, console))


def _cancelled_text(done: Document, console: Console) -> str:
    job_id = done["job_id"]
    if done.get("dry_run"):
        return f"{job_id} would be cancelled; it is {done['status']}."
    if done.get("orphaned"):
        return console.hint(
            f"{job_id} will be cancelled at the next start: {fmt.ORPHANED}. `ductile system start`"
        )
    if done["cancel"] == "requested":
        return f"{job_id} is being ended; it is cancelled when its process is gone."
    return f"{job_id} is cancelled."


@action(
    "retry",
    "put a failed or dead job back on the queue, or all that match a filter, with fresh attempts",
    "job.retry_many",
    arguments=(_ONE_JOB,),
    options=(
        Option(
            "--from-step PATH",
            "of a pipeline run: start a new run at this step instead, by the pipeline as it is now",
        ),
    ),
    about="A pipeline run continues where it failed, by the graph that it began with; its steps "
    "that succeeded are not run again. With --from-step the step gets its input of that run, and "
    "the results of branches beside it are kept. Without JOB, the failed and dead jobs that match every "
    "filter; at least one filter is needed. --dry-run counts and lists them first.",
    examples=(
        Example("ductile job retry 8000a1b2c3d4", "by the end of its id, as `job list` shows it"),
        Example(
            "ductile job retry 8000a1b2c3d4 --from-step greet",
            "a run of a pipeline, once more from one of its steps",
        ),
        Example(
            "ductile job retry --plugin echo --since 12h --dry-run",
            "all that failed of one plugin since last night; without --dry-run it is done",
        ),
    ),
)
def retry(invocation: Invocation) -> CommandResult:
    step = invocation.optional("from_step")
    if invocation.optional("JOB") is None:
        if step is not None:
            from ductile.errors import UsageError

            raise UsageError("--from-step needs the JOB of a pipeline run")
        done = request(invocation, timeout=None)
        return change_result(done, ("Put back on the queue:", "Would put back on the queue:"), _matched_table)
    fields = _one_job(invocation)
    if step is None:
        done = request(invocation, "job.retry", fields)
        what = "would go back on the queue" if done.get("dry_run") else "is on the queue again"
        return CommandResult(done, f"{done['job_id']} {what}.")
    done = request(invocation, "job.rerun", fields | {"step": step})
    run = f"{done['pipeline']} from {done['from_step']}"
    if done.get("dry_run"):
        return CommandResult(done, f"Would run {run} again, with the input of {done['retries']}.")
    return CommandResult(done, f"{done['job_id']} runs {run}.")


def _one_job(invocation: Invocation) -> Document:
    """The request about the one job that was named. UsageError if filters were given, too."""
    return one_of(invocation, "JOB", "job_id")


def _matched_table(done: Document, console: Console) -> str:
    rows = [
        (
            fmt.short_id(row["job_id"], console),
            row["plugin"],
            row["command"],
            row["status"],
            fmt.when(row["completed_at"] or row["created_at"], console),
            f"{row['reason']}: {row['error']}" if row["error"] else row["reason"],
        )
        for row in done["jobs"]
    ]
    headers = ("JOB", "PLUGIN", "COMMAND", "STATUS", "AT", "WHY")
    return console.table(headers, rows, optional=("STATUS", "COMMAND")) if rows else ""


def _job_fields(job: Document, console: Console) -> list[tuple[str, str | None]]:
    detail = f" ({job['submitted_detail']})" if job["submitted_detail"] else ""

    def time(name: str) -> str | None:
        return fmt.moment(job[name], console) if job[name] else None

    return [
        ("job", job["job_id"]),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
        ("submitted by", f"{job['submitted_by']}{detail}"),
        ("held for", job["hold"]),
        ("dedupe key", job["dedupe_key"]),
        ("created", time("created_at")),
        ("started", time("started_at")),
        ("completed", time("completed_at")),
        ("next try", time("next_retry_at")),
        ("cancel asked", time("cancel_requested_at")),
        ("last error", job["last_error"]),
        ("parent", job["parent_job_id"]),
        ("run", job["run_id"]),
        ("step", job["step"]),
    ]


def _executions_table(executions: list[Document], console: Console) -> str:
    rows = []
    for row in executions:
        code = "-" if row["exit_code"] is None else str(row["exit_code"])
        end = code if row["signal"] is None else f"signal {row['signal']}"
        started, took = fmt.time(row["started_at"], console), fmt.ms(row["duration_ms"])
        rows.append((str(row["execution"]), row["status"], started, took, end, row["error"] or ""))
    headers = ("NO", "STATUS", "STARTED", "TOOK", "EXIT", "ERROR")
    return console.table(headers, rows, optional=("STARTED",), prose=True)


def _tree_lines(node: Document, console: Console, before: str = "", child_before: str = "") -> list[str]:
    """The job and the jobs below it. The depth of the response is limited, so recursion is safe."""
    word, error = fmt.status(node["status"], console), fmt.informative_error(node)
    step = f"[{printable(node['step'])}] " if node["step"] else ""
    line = (
        f"{before}{step}{node['plugin']} {node['command']}  {word}  {fmt.short_id(node['job_id'], console)}"
    )
    lines = [f"{line}  {one_line(error)}" if error else line]
    for number, child in enumerate(node["children"], start=1):
        branch, below = ("└─", "   ") if number == len(node["children"]) else ("├─", "│  ")
        # A tree that is too deep lists later jobs beside the one that led to them: name that one.
        parent = child["parent_job_id"]
        origin = "" if parent == node["job_id"] else f"after {fmt.short_id(parent, console)}: "
        lines += _tree_lines(child, console, f"{child_before}{branch} {origin}", f"{child_before}{below}")
    return lines


def _short(value: object) -> str | None:
    text = None if value is None else fmt.to_json(value)
    return text if text is None or len(text) <= _MAX_INPUT else f"{text[:_MAX_INPUT]}…"
