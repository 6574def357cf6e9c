"""`ductile job list`, `show`, `explain`, `tree`, `logs` and `wait`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ductile.cli.client import Document, connect_to_daemon, request, send_request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, escape_controls, indent_continuation, one_line
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import FILTER_USAGE, JOB, Example, Option, action, renders

#: Fields that Ductile adds to the response of a plugin.
_ADDED_FIELDS = ("stdout", "stderr", "exit_code", "output_files")
#: Characters of a payload or context that `explain` shows.
_MAX_INPUT = 300
_TRUNCATED = "more was printed on stderr than is kept: only its beginning is shown"


@renders(
    "list",
    "list jobs, newest first",
    "job.list",
    usage={**FILTER_USAGE, "job_id": None, "parent": None, "run": None},
    examples=(
        Example("ductile job list --status dead", "jobs that exhausted their retries"),
        Example("ductile job list --plugin echo --since 06:00", "one plugin, since six in the morning"),
        Example(
            "ductile job list --query 'connection refused' --since 1d",
            "jobs whose result, error or stderr has both words",
        ),
        Example("ductile job list --sort duration -n 5", "those that ran longest"),
    ),
)
def list_jobs(response: Document, console: Console) -> str:
    if not response["jobs"]:
        return "No jobs found."
    table = fmt.jobs_table(response["jobs"], console)
    if any("payload_excerpt" in job for job in response["jobs"]):
        header, *rows = table.split("\n")
        lines = [header]
        for row, job in zip(rows, response["jobs"], strict=True):
            lines.append(row)
            if excerpt := job.get("payload_excerpt"):
                lines.append(f"    {one_line(excerpt)}")
        table = "\n".join(lines)
    return fmt.with_next_page(table, response)


def job_text(job: Document, console: Console) -> str:
    """Return everything about one job."""
    note = fmt.ORPHANED_TEXT if job.get("orphaned") else job["reason"]
    title = f"{job['plugin']} {job['command']}: {fmt.status(job['status'], console)} ({note})"
    lines = [title, *fmt.fields(_job_fields(job, console), console)]
    if job["payload"] is not None:
        lines += fmt.section("Payload", fmt.indent(fmt.text_or_json(job["payload"])), console)
    result: Any = job["result"] or {}
    if "status" in result:  # a response of the plugin
        if "result" in result:
            result = result["result"]
        else:
            result = {name: value for name, value in result.items() if name not in _ADDED_FIELDS}
        if result not in ("", {}):
            lines += fmt.section("Result", fmt.indent(fmt.text_or_json(result)), console)
    elif result.get("stdout"):  # the output of a script that failed
        lines += fmt.section("Output", fmt.indent(result["stdout"].rstrip("\n")), console)
    if job["stderr"] and job["status"] != "succeeded":
        lines += fmt.section("Stderr", fmt.indent(job["stderr"].rstrip("\n")), console)
    if job.get("steps"):
        lines += fmt.section("Steps", fmt.steps_table(job["steps"], console), console)
    if any(row.get("stderr_truncated") for row in job["executions"]):
        lines += ["", _TRUNCATED[0].upper() + _TRUNCATED[1:] + "."]
    if job["executions"]:
        lines += fmt.section("Executions", _executions_table(job["executions"], console), console)
    transitions = [
        (fmt.local_time(row["at"], console), f"{row['from'] or '-'} → {row['to']}", row["reason"])
        for row in job["transitions"]
    ]
    lines += fmt.section("History", console.table(("AT", "CHANGE", "REASON"), transitions), console)
    return "\n".join(lines)


show = renders("show", "show everything about one job", "job.show", arguments=(JOB,), usage={"result": None})(
    job_text
)


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
def explain(response: Document, console: Console) -> str:
    lines = [console.style("bold", fmt.sentence(response["verdict"], console))]
    chain = []
    for depth, link in enumerate(response["chain"]):
        job_id = link["job_id"] and fmt.short_id(link["job_id"], console)
        details = ", ".join(text for text in (link["status"], job_id) if text)
        note = f" ({details})" if details else ""
        branch = f"{'  ' * (depth - 1)}└ " if depth else ""
        chain.append(fmt.sentence(f"{link['what']}{note}", console, f"  {branch}"))
    lines += fmt.section("Where it comes from", "\n".join(chain), console)
    lines += fmt.list_section("What happened", response["evidence"], console)
    saw, event = response["saw"], response["saw"]["event"]
    loaded = (
        f", loaded {fmt.local_and_relative_time(saw['config_loaded_at'], console)}"
        if saw["config_loaded_at"]
        else ""
    )
    inputs = fmt.fields(
        (
            ("payload", _short(saw["payload"])),
            ("event", f"{event['type']} from {event['source']}" if event else None),
            ("context", _short(saw["context"])),
            ("config", f"{fmt.short_hash(saw['config'], console)}{loaded}" if saw["config"] else None),
        ),
        console,
    )
    if inputs:
        lines += fmt.section("Input", "\n".join(inputs), console)
    lines += fmt.list_section("Likely cause", [response["cause"]] if response["cause"] else [], console)
    if response["compared_with"]:
        title = f"What differs from the last good run, {response['compared_with']}"
        rows = [
            f"{row['what']}: {_compared_value(row['good'], console)} → {_compared_value(row['now'], console)}"
            for row in response["differences"]
        ]
        same = f"Nothing in what was compared: {'; '.join(response['compared'])}."
        lines += fmt.list_section(title, rows or [same], console)
    lines += fmt.list_section("What was not compared", response["not_compared"], console)
    lines += fmt.list_section("What to do", [console.hint(line) for line in response["advice"]], console)
    return "\n".join(lines)


@renders("tree", "show a job and all that it led to", "job.tree", arguments=(JOB,))
def tree(response: Document, console: Console) -> str:
    lines = _tree_lines(response["tree"], console)
    if response.get("truncated"):  # absent in responses of an older daemon
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
    if not invocation.switch("follow"):
        response = request(invocation)

        def text(console: Console) -> str:
            parts = [_execution_text(row, console) for row in response["executions"]]
            return "\n\n".join(parts) or "The job has not run yet."

        return CommandResult(response, text)
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
        fields = invocation.request_fields() | {"after": position, "executions": view.last_execution}
        fields["timeout"] = FOLLOW_TIMEOUT
        update = request_daemon(invocation, "job.follow", fields, timeout=None)
        position = update["position"]
        view.show(update["output"], update["executions"])
        if update["ended"] or update["stopping"]:
            return view.end(update["job"])


def _execution_text(row: Document, console: Console, *, with_output: bool = True) -> str:
    word, took = fmt.status(row["status"], console), fmt.duration(row["duration_ms"])
    lines = [f"{row['id']}  {word}  {fmt.local_time(row['started_at'], console)}  {took}"]
    if row["error"]:
        # Some errors quote the end of stderr. The quote is left out if stderr follows below.
        quoted = with_output and row["stderr"] and "\n" not in row["error"]
        error = row["error"].partition("; stderr ends with: ")[0] if quoted else row["error"]
        lines += fmt.fields([("error", error)], console)
    for name in ("stdout", "stderr") if with_output else ():
        if row[name]:
            lines += [console.style("bold", f"{name}:"), fmt.indent(row[name])]
    if row.get("stderr_truncated"):  # absent in responses of an older daemon
        lines.append(f"({_TRUNCATED})")
    return "\n".join(lines)


class _LogView:
    """Prints the output of a job, and its executions when they have ended."""

    def __init__(self, invocation: Invocation) -> None:
        from ductile.cli.console.console import console_for
        from ductile.cli.live_output import LiveOutputPrinter, step_label

        self._out, self._json = invocation.out, invocation.json
        self._console = console_for(invocation.out, invocation.environ, verbose=invocation.verbose)
        terminal = self._console.width is not None
        self._printer = LiveOutputPrinter(self._write, terminal=terminal, label=step_label)
        #: The number of the last execution that was shown.
        self.last_execution = 0

    def show(self, output: list[Document], executions: list[Document]) -> None:
        for row in executions:
            # Output of a later execution comes after the end of this one.
            self._show_output(piece for piece in output if piece["execution"] <= row["execution"])
            output = [piece for piece in output if piece["execution"] > row["execution"]]
            self.show_execution(row)
        self._show_output(output)

    def show_execution(self, row: Document) -> None:
        self.last_execution = max(self.last_execution, row["execution"])
        if self._json:
            self._write(f"{fmt.to_json({'execution': row})}\n")
            return
        self._printer.end_line()
        is_printed = self._printer.has_shown(row["job_id"], row["execution"])
        self._write(f"{_execution_text(row, self._console, with_output=not is_printed)}\n")

    def end(self, job: Document) -> CommandResult:
        """Return the outcome of the job. With --json it is printed here, as the last line."""
        if not self._json:
            self._printer.end_line()
            return _wait_result(job)
        self._write(f"{fmt.to_json({'job': job})}\n")
        return _wait_result(job)._replace(data=None, text=None)

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
            job = send_request(invocation, connection, timeout=None)
    return _wait_result(job)


def _wait_result(job: Document) -> CommandResult:
    """Return the result of a wait for the end of a job: one line, and the exit status for its status."""
    from ductile.errors import Exit

    ended = job["status"] in fmt.TERMINAL_STATUSES
    status = Exit.OK if job["status"] == "succeeded" else Exit.FAILURE if ended else Exit.TRY_AGAIN

    def text(console: Console) -> str:
        line = f"{job['job_id']} {fmt.status(job['status'], console)} ({job['reason']})"
        error = fmt.informative_error(job)
        if error is None:
            return line
        # The error of a job that has not ended is of an earlier attempt, unless the job waits for its retry.
        earlier = "" if ended or job["reason"] == "retry" else "earlier: "
        return f"{line}: {earlier}{indent_continuation(error)}"

    return CommandResult(job, text, exit_status=status)


def _job_fields(job: Document, console: Console) -> list[tuple[str, str | None]]:
    detail = f" ({job['submitted_detail']})" if job["submitted_detail"] else ""

    def time(name: str) -> str | None:
        return fmt.local_and_relative_time(job[name], console) if job[name] else None

    return [
        ("job", job["job_id"]),
        ("attempt", f"{job['attempt']} of {job['max_attempts']}"),
        ("submitted by", f"{job['submitted_by']}{detail}"),
        ("token", job["token"]),
        ("runs only on", job["node"]),
        ("held for", job["hold"]),
        ("dedupe key", job["dedupe_key"]),
        ("created", time("created_at")),
        ("started", time("started_at")),
        ("completed", time("completed_at")),
        ("next try", time("next_retry_at")),
        ("cancel asked", time("cancel_requested_at")),
        ("last error", job["last_error"]),
        ("cost", None if job["cost"] is None else f"{job['cost']:g}"),
        ("parent", job["parent_job_id"]),
        ("run", job["run_id"]),
        ("step", job["step"]),
        ("runs again", job["rerun_of"]),
    ]


def _executions_table(executions: list[Document], console: Console) -> str:
    rows = []
    for row in executions:
        code = "-" if row["exit_code"] is None else str(row["exit_code"])
        end = code if row["signal"] is None else f"signal {row['signal']}"
        started, took = fmt.local_time(row["started_at"], console), fmt.duration(row["duration_ms"])
        rows.append((str(row["execution"]), row["status"], started, took, end, row["error"] or ""))
    headers = ("NO", "STATUS", "STARTED", "TOOK", "EXIT", "ERROR")
    return console.table(headers, rows, optional=("STARTED",), wrap_last=True)


def _tree_lines(node: Document, console: Console, before: str = "", child_before: str = "") -> list[str]:
    """Return a line for the job and those below it. The response is limited in depth: recursion is safe."""
    word, error = fmt.status(node["status"], console), fmt.informative_error(node)
    step = f"[{escape_controls(node['step'])}] " if node["step"] else ""
    line = (
        f"{before}{step}{node['plugin']} {node['command']}  {word}  {fmt.short_id(node['job_id'], console)}"
    )
    if node["rerun_of"]:
        line += f"  (runs {fmt.short_id(node['rerun_of'], console)} again)"
    lines = [line, *(console.wrap_beside(f"{child_before}    ", error) if error and console.width else ())]
    if error and not console.width:
        lines = [f"{line}  {one_line(error)}"]
    for number, child in enumerate(node["children"], start=1):
        branch, below = ("└─", "   ") if number == len(node["children"]) else ("├─", "│  ")
        # Below a certain depth, a job is listed beside its parent instead of below it: name the parent.
        parent = child["parent_job_id"]
        origin = "" if parent == node["job_id"] else f"after {fmt.short_id(parent, console)}: "
        lines += _tree_lines(child, console, f"{child_before}{branch} {origin}", f"{child_before}{below}")
    return lines


def _compared_value(value: str | None, console: Console) -> str:
    text = fmt.short_hash(value, console) if (value or "").startswith("blake3:") else value
    return text or "none"


def _short(value: object) -> str | None:
    text = None if value is None else fmt.to_json(value)
    return text if text is None or len(text) <= _MAX_INPUT else f"{text[:_MAX_INPUT]}…"
