"""Runs one job or pipeline run, in the daemon or in this process, waits for its end and shows its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ductile.cli.client import (
    FOLLOW_TIMEOUT,
    Document,
    connect_to_daemon,
    request,
    request_daemon,
    send_request,
)
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, console_for, escape_controls, indent_continuation, one_line
from ductile.cli.invocation import CommandResult, Invocation
from ductile.errors import (
    DaemonNotRunningError,
    DuctileError,
    Exit,
    NotFoundError,
    RefusedError,
    StoreBusyError,
    UsageError,
)

if TYPE_CHECKING:
    from ductile.cli.console.console import WaitingLine
    from ductile.cli.live_output import LiveOutputPrinter
    from ductile.config.snapshot import Snapshot
    from ductile.core.json import JsonObject, JsonValue
    from ductile.engine.live_output import OutputPiece

#: Lines of a failed job's output that are shown; the end of it names the error.
_OUTPUT_LINES = 20
#: After this text, an error of the plugin quotes the end of its stderr or stdout.
_QUOTE_START = "; {} ends with: "
#: Seconds to wait for a response about failed attempts: the end of the job must not be reported late.
_PROGRESS_TIMEOUT = 5.0
_MINUTE = 60
#: Higher than the number of any execution: the response has no executions then, only output.
_AFTER_ALL_EXECUTIONS = 1 << 31
_NO_FIELDS: Mapping[str, JsonValue] = {}


class SubmittedJob(NamedTuple):
    """A job after its submission and the wait for its end."""

    job: Document
    #: The response to its submission.
    submission: Document
    #: Whether a daemon runs the job, and continues with it if it has not ended.
    daemon_runs: bool
    #: `signal` or `timeout` if one of these stopped the job in this process.
    stopped: str | None = None


def result_without_waiting(
    invocation: Invocation, fields: Mapping[str, JsonValue] = _NO_FIELDS
) -> CommandResult | None:
    """Return the result of --dry-run or --no-wait; None without these options.

    Raises UsageError for `--timeout 0s`. `job wait` accepts it, as a request not to wait.
    """
    if invocation.switch("dry_run"):
        planned = request(invocation, fields={**invocation.request_fields(), **fields})
        is_run = "pipeline" in planned
        target = (
            f"the pipeline {planned['pipeline']}" if is_run else f"{planned['plugin']} {planned['command']}"
        )
        if "rerun_of" in planned:
            target += f" again, with the input of {planned['rerun_of']}"
            target += f" ({planned['note']})" if "note" in planned else ""
        return CommandResult(planned, f"Would run {target}.")
    timeout = invocation.duration("timeout")
    if timeout is not None and not timeout:
        raise UsageError("--timeout must be greater than 0", hint="such as --timeout 30s")
    if not invocation.switch("no_wait"):
        return None
    advice = "Start it with `ductile system start`, or leave out --no-wait to run it here."
    submission = request_daemon(invocation, fields={**invocation.request_fields(), **fields}, advice=advice)
    return CommandResult(submission, submission["job_id"])


def run_and_show(
    invocation: Invocation, title: str, fields: Mapping[str, JsonValue] = _NO_FIELDS
) -> CommandResult:
    """Run the job or pipeline run of this command and return its result. `fields` are added to the request.

    `title` names the job while the command waits. On a terminal, or with --follow, standard error shows the
    output of the job meanwhile; ended steps of a run are shown if the result goes to a terminal.
    """
    import sys
    from time import monotonic

    from ductile.cli.console.console import show_waiting
    from ductile.cli.live_output import LiveOutputPrinter, job_label, step_label

    terminal = sys.stderr.isatty()
    shows_output = invocation.switch("follow") or (terminal and not invocation.json)
    connection = connect_to_daemon(invocation)
    if connection is None:
        from ductile.struct import to_builtins

        with show_waiting(invocation, title) as line:
            submitted_ids: list[str] = []

            def label(piece: Document) -> str | None:
                """Return None for the submitted job; the jobs that it leads to have a label."""
                if piece["job_id"] in submitted_ids:
                    return None
                return step_label(piece) if piece["run_id"] in submitted_ids else job_label(piece)

            output = LiveOutputPrinter(line.write, terminal=terminal, label=label)
            submitted = run_in_process(
                invocation,
                lambda job: _print_step(invocation, job, line),
                (lambda piece: output.show([to_builtins(piece)])) if shows_output else None,
                extra_fields=fields,
                on_submitted=submitted_ids.append,
            )
        return _result_unless_shown(invocation, submitted, output, output_shown=shows_output)
    values = {**invocation.request_fields(), **fields, "follow": shows_output}
    submission = send_request(invocation, connection, fields=values)
    job_id = str(submission["job_id"])
    progress = RetryProgress(invocation, job_id)
    poll = None if "pipeline" in submission else progress.poll
    with show_waiting(invocation, f"{title}, job {job_id}", poll) as line, hint_on_interrupt(job_id):
        output = LiveOutputPrinter(line.write, terminal=terminal, label=step_label)
        timeout = invocation.duration("timeout")
        deadline = None if timeout is None else monotonic() + timeout.total_seconds()
        if "pipeline" in submission:
            if shows_output or _shows_steps(invocation):
                _follow_run(invocation, job_id, line, output if shows_output else None, deadline)
        elif shows_output:
            _follow_job(invocation, job_id, output, deadline)
        submitted = wait_for(invocation, submission, deadline)
    if not invocation.json and poll is not None:
        for text in progress.lines(submitted.job):
            print(text, file=sys.stderr)
    return _result_unless_shown(invocation, submitted, output, output_shown=shows_output)


def _result_unless_shown(
    invocation: Invocation, submitted: SubmittedJob, output: LiveOutputPrinter, *, output_shown: bool
) -> CommandResult:
    """Return the result of the job, left out if the terminal shows it already (the stdout of a script)."""
    import sys

    job, both_on_terminal = submitted.job, invocation.out.isatty() and sys.stderr.isatty()
    result_shown = (
        both_on_terminal
        and not invocation.json
        and output.has_shown_all(job["job_id"], job["execution"], "stdout")
    )
    return job_result(submitted, output_shown=output_shown, result_shown=result_shown)


def _shows_steps(invocation: Invocation) -> bool:
    return not invocation.json and invocation.out.isatty()


def _time_left(deadline: float | None) -> str | None:
    """Return the time until the deadline, as operations read it: `0ms` after it, None without one."""
    from time import monotonic

    return None if deadline is None else f"{max(0, round((deadline - monotonic()) * 1000))}ms"


def _follow_job(
    invocation: Invocation, job_id: str, output: LiveOutputPrinter, deadline: float | None
) -> None:
    """Show the output of the job until it has ended, the time is up, or the daemon stops."""
    position = 0
    while (time_left := _time_left(deadline)) != "0ms":
        fields: JsonObject = {"job_id": job_id, "after": position, "executions": _AFTER_ALL_EXECUTIONS}
        update = _follow_once(invocation, "job.follow", fields, time_left)
        if update is None:
            return
        output.show(update["output"])
        position = update["position"]
        if update["ended"] or update["stopping"]:
            return


def _follow_run(
    invocation: Invocation,
    run_id: str,
    line: WaitingLine,
    output: LiveOutputPrinter | None,
    deadline: float | None,
) -> None:
    """Show output and ended steps until the run has ended, the time is up, or the daemon stops."""
    ended_ids: list[str] = []
    position = 0
    while (time_left := _time_left(deadline)) != "0ms":
        fields: JsonObject = {
            "job_id": run_id,
            "known": len(ended_ids),
            "live": output is not None,
            "position": position,
        }
        update = _follow_once(invocation, "pipeline.follow", fields, time_left)
        if update is None:
            return
        if output is not None:
            output.show(update.get("live_output", ()))  # absent in responses of an older daemon
        position = update.get("position", 0)
        for job in update["ended"]:
            if job["job_id"] not in ended_ids:
                ended_ids.append(job["job_id"])
                _print_step(invocation, job, line)
        if update["over"] or update["stopping"]:
            return


def _follow_once(
    invocation: Invocation, operation: str, fields: JsonObject, time_left: str | None
) -> Document | None:
    """Return one response about a running job; None if the daemon has stopped or lacks the operation."""
    try:
        return request_daemon(
            invocation, operation, fields | {"timeout": time_left or FOLLOW_TIMEOUT}, timeout=None
        )
    except (DaemonNotRunningError, StoreBusyError, UsageError):
        return None


def _print_step(invocation: Invocation, job: JsonObject, line: WaitingLine) -> None:
    if job["step"] is None or not _shows_steps(invocation):
        return
    console = console_for(invocation.out, invocation.environ, verbose=invocation.verbose)
    name = f"{job['step']}  {job['plugin']} {job['command']}"
    text = f"{console.style('dim', '·')} {escape_controls(name)}  {fmt.status(str(job['status']), console)}"
    if error := fmt.informative_error(job):
        text += f"  {one_line(error)}"
    line.print(text, invocation.out)


def wait_for(invocation: Invocation, submission: Document, deadline: float | None = None) -> SubmittedJob:
    """Return the job when it has ended, or at the deadline."""
    job_id = str(submission["job_id"])
    fields: JsonObject = {"job_id": job_id, "timeout": _time_left(deadline)}
    try:
        job = request_daemon(invocation, "job.wait", fields, timeout=None)
    except (DaemonNotRunningError, StoreBusyError) as error:
        # The job is stored: name it, so that it can be found again.
        error.hint = f"The job is on the queue. When the daemon is back: ductile job wait {job_id}"
        error.details["job_id"] = job_id
        raise
    return SubmittedJob(job, submission, daemon_runs=True)


@contextmanager
def hint_on_interrupt(job_id: str) -> Iterator[None]:
    """Add a hint that names the job to KeyboardInterrupt: Ctrl-C ends the waiting but not the job."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Job {job_id} continues: `ductile job wait {job_id}`. To cancel: `ductile job cancel {job_id}`."
        ) from None


def run_in_process(
    invocation: Invocation,
    on_ended: Callable[[JsonObject], None] = lambda _job: None,
    on_output: Callable[[OutputPiece], None] | None = None,
    *,
    operation: str | None = None,
    fields: JsonObject | None = None,
    extra_fields: Mapping[str, JsonValue] = _NO_FIELDS,
    on_submitted: Callable[[str], None] = lambda _job_id: None,
) -> SubmittedJob:
    """Submit the job of this command, or of `operation`, and run it here, with the jobs that it leads to.

    The request has `fields`, or else those of the command line and `extra_fields`. With `fields`, --timeout
    is one of them and does not limit the time here.
    """
    import asyncio

    from ductile.offline import run_offline

    limit = invocation.duration("timeout") if fields is None else None
    fields = {**invocation.request_fields(), **extra_fields} if fields is None else fields
    offline_run = asyncio.run(
        run_offline(
            invocation.config,
            invocation.environ,
            operation or invocation.action.operation,
            fields,
            time_limit=limit,
            on_ended=on_ended,
            on_output=on_output,
            on_submitted=on_submitted,
        )
    )
    return SubmittedJob(
        offline_run.job, offline_run.submitted, daemon_runs=False, stopped=offline_run.stopped
    )


class RetryProgress:
    """Reports each failed attempt of a job once, if the job is retried."""

    def __init__(self, invocation: Invocation, job_id: str) -> None:
        self._invocation = invocation
        self._job_id = job_id
        #: The number of the last execution that was reported.
        self._last_execution = 0

    def poll(self) -> list[str]:
        """Return lines for the attempts since the last call; none if the daemon does not answer."""
        fields: JsonObject = {"job_id": self._job_id}
        try:
            # `job.list` comes first: the response of `job.show` has the input and result, which may be large.
            response = request_daemon(self._invocation, "job.list", fields, timeout=_PROGRESS_TIMEOUT)
            if all(
                job["execution"] <= self._last_execution or job["status"] == "running"
                for job in response["jobs"]
            ):
                return []
            return self.lines(request_daemon(self._invocation, "job.show", fields, timeout=_PROGRESS_TIMEOUT))
        except DuctileError:
            return []

    def lines(self, job: Document) -> list[str]:
        """Return lines for the attempts of this job that were not reported yet."""
        new = [row for row in job["executions"] if row["execution"] > self._last_execution]
        self._last_execution = max((row["execution"] for row in new), default=self._last_execution)
        # An execution that a stop interrupted or a crash orphaned is no failed attempt.
        failed = [
            row for row in new if row["job_status"] == "queued" and row["status"] in ("failed", "timed_out")
        ]
        return [_attempt_line(row, job) for row in failed]


def _attempt_line(row: Document, job: Document) -> str:
    error = one_line(str(row["error"] or row["status"]))
    line = f"attempt {row['attempt']} of {job['max_attempts']} failed: {error}"
    is_last = row["execution"] == job["executions"][-1]["execution"]
    if not (is_last and job["status"] == "queued" and job["next_retry_at"]):
        return line
    from datetime import UTC, datetime

    retry_at = datetime.fromisoformat(job["next_retry_at"])
    seconds = max(0.0, (retry_at - datetime.now(UTC)).total_seconds())
    wait = f"{seconds:.0f}s" if seconds < _MINUTE else fmt.duration(seconds * 1000)
    return f"{line}; next try in {wait} (Ctrl-C leaves it queued)"


def job_result(submitted: SubmittedJob, *, output_shown: bool, result_shown: bool = False) -> CommandResult:
    """Return the result of a job that succeeded; for any other job its error and an exit status of failure.

    The result is left out if the terminal shows it already.
    """
    job, deduplicated = submitted.job, bool(submitted.submission["deduplicated"])
    data = job | {"deduplicated": deduplicated}
    notes: list[Callable[[Console], str]] = []
    if submission_note := submitted.submission.get("note"):
        notes.append(lambda console: console.hint(f"note: {submission_note}"))

    def note(console: Console) -> str:
        return "\n".join(render(console) for render in notes)

    if job["status"] != "succeeded":
        # A job that has not ended has not failed: a script that retries on failure would start it twice. But
        # if its attempt failed in this process, no process retries it, so this counts as a failure.
        pending = job["status"] not in fmt.TERMINAL_STATUSES and (submitted.daemon_runs or submitted.stopped)
        status = Exit.INTERRUPTED if submitted.stopped == "signal" else Exit.TRY_AGAIN
        notes.append(
            lambda console: _failure_text(submitted, console, with_output=deduplicated or not output_shown)
        )
        return CommandResult(data, exit_status=status if pending else Exit.FAILURE, note=note)
    if deduplicated:

        def duplicate(console: Console) -> str:
            completed = fmt.local_and_relative_time(job["completed_at"], console)
            return f"Not run again: job {job['job_id']} succeeded under this key at {completed}."

        notes.append(duplicate)

    def text(console: Console) -> str:
        """Return the plugin's `result`, or its whole response without one. Escaped for a terminal."""
        result: dict[str, Any] = job["result"] or {}
        text = fmt.text_or_json(result.get("result", result))
        return text if console.width is None else escape_controls(text)

    return CommandResult(data, None if result_shown else text, note=note if notes else None)


def _failure_text(submitted: SubmittedJob, console: Console, *, with_output: bool) -> str:
    job = submitted.job
    ended = job["status"] in fmt.TERMINAL_STATUSES
    status = f"{'is ' if job['status'] == 'dead' else ''}{job['status']}"
    if not ended:
        status = f"has not ended: it is {job['status']}"
    first = f"{console.style('red', 'error:')} {job['plugin']} {job['command']} {status} ({job['reason']})"
    outputs = {"stdout": (job["result"] or {}).get("stdout"), "stderr": job["stderr"]}
    if error := fmt.informative_error(job):
        # The quoted end of the output is left out: the output follows below.
        for name, text in outputs.items():
            error = error.partition(_QUOTE_START.format(name))[0] if text else error
        first += f": {indent_continuation(error)}"
    lines = [first]
    for name, text in outputs.items():
        if text and with_output:
            last_lines = text.rstrip("\n").split("\n")[-_OUTPUT_LINES:]
            lines += [console.style("bold", f"{name}:"), fmt.indent("\n".join(last_lines))]
    job_id = job["job_id"]
    if ended:
        hint = f"ductile {'pipeline explain' if job['plugin'] == 'pipeline' else 'job show'} {job_id}"
    elif submitted.daemon_runs:
        hint = f"ductile job wait {job_id}"
    else:
        when = (
            f" at {fmt.local_and_relative_time(job['next_retry_at'], console)}"
            if job["next_retry_at"]
            else ""
        )
        hint = (
            f"it will be retried{when} when the daemon runs (`ductile system start`). "
            f"To cancel: `ductile job cancel {job_id}`"
        )
    return "\n".join([*lines, f"{console.style('bold', 'hint:')} {console.hint(hint)}"])


@contextmanager
def hint_reload(invocation: Invocation, find: Callable[[Snapshot], object]) -> Iterator[None]:
    """Improve the hint of a NotFoundError by looking for the plugin or pipeline in the configuration on disk.

    `find` raises the error of the operation if the configuration does not have it. Without a daemon the
    operation has read the same configuration, so the error does not change.
    """
    try:
        yield
    except NotFoundError as missing:
        if invocation.remote is not None:
            raise
        from ductile.admin.config import open_configuration

        try:
            find(open_configuration(invocation.config, invocation.environ).snapshot)
        except NotFoundError as missing_on_disk:  # installed by now, or misspelt
            missing.message, missing.hint = missing_on_disk.message, missing_on_disk.hint
        except RefusedError as refused:
            missing.hint = f"On disk, which the daemon has not loaded, {refused.message}."
        except DuctileError:  # `config check` and the reload report what is wrong with it
            pass
        else:
            missing.hint = "The configuration on disk has it, but the daemon has not loaded it: ductile apply"
        raise
