"""Run one job or pipeline run and show its result: in the daemon and wait for it, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ductile.cli.client import (
    FOLLOW_TIMEOUT,
    Document,
    connect_to_daemon,
    exchange,
    request,
    request_daemon,
)
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, console_for, indent_continuation, one_line, printable
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
#: An error of the plugin repeats the end of its stderr or stdout after this text.
_TAIL = "; {} ends with: "
#: Seconds to wait for an answer about failed attempts: the end of the job must not be reported late.
_PROGRESS_TIMEOUT = 5.0
_MINUTE = 60
#: More executions than a job can have, so that the response has no ended ones.
_ALL = 1 << 31
_NO_FIELDS: Mapping[str, JsonValue] = {}


class SubmittedJob(NamedTuple):
    """A job that was submitted, and waited for."""

    job: Document
    #: The response to its submission.
    submitted: Document
    #: Whether a daemon continues with it.
    daemon_runs: bool
    #: `signal` or `timeout` if that ended the run in this process early.
    stopped: str | None = None


def result_without_waiting(
    invocation: Invocation, fields: Mapping[str, JsonValue] = _NO_FIELDS
) -> CommandResult | None:
    """The result of --dry-run or --no-wait; None without these options.

    UsageError for `--timeout 0s`. `job wait` accepts it, as a request not to wait.
    """
    if invocation.switch("dry_run"):
        planned = request(invocation, fields={**invocation.request_fields(), **fields})
        is_run = "pipeline" in planned
        what = (
            f"the pipeline {planned['pipeline']}" if is_run else f"{planned['plugin']} {planned['command']}"
        )
        if "rerun_of" in planned:
            what += f" again, with the input of {planned['rerun_of']}"
            what += f" ({planned['note']})" if "note" in planned else ""
        return CommandResult(planned, f"Would run {what}.")
    timeout = invocation.duration("timeout")
    if timeout is not None and not timeout:
        raise UsageError("--timeout must be greater than 0", hint="such as --timeout 30s")
    if not invocation.switch("no_wait"):
        return None
    advice = "Start it with `ductile system start`, or leave out --no-wait to run it here."
    submitted = request_daemon(invocation, fields={**invocation.request_fields(), **fields}, advice=advice)
    return CommandResult(submitted, submitted["job_id"])


def run_and_show(
    invocation: Invocation, what: str, fields: Mapping[str, JsonValue] = _NO_FIELDS
) -> CommandResult:
    """Run the job or pipeline run of this command and return its result. `fields` are added to the request.

    On a terminal, or with --follow, standard error shows what it prints meanwhile; ended steps of a run are
    shown if the result goes to a terminal.
    """
    import sys
    from time import monotonic

    from ductile.cli.console.console import show_waiting
    from ductile.cli.live_output import LiveOutputPrinter, job_label, step_label

    terminal = sys.stderr.isatty()
    follows = invocation.switch("follow") or (terminal and not invocation.json)
    connection = connect_to_daemon(invocation)
    if connection is None:
        from ductile.struct import to_builtins

        with show_waiting(invocation, what) as line:
            submitted_ids: list[str] = []

            def label(piece: Document) -> str | None:
                """Only the output of jobs that this one leads to, which run here too, has a label."""
                if piece["job_id"] in submitted_ids:
                    return None
                return step_label(piece) if piece["run_id"] in submitted_ids else job_label(piece)

            output = LiveOutputPrinter(line.write, terminal=terminal, label=label)
            ran = run_in_process(
                invocation,
                lambda job: _print_step(invocation, job, line),
                (lambda piece: output.show([to_builtins(piece)])) if follows else None,
                added=fields,
                on_submitted=submitted_ids.append,
            )
        return job_result(ran, output_shown=follows, result_shown=_result_shown(invocation, ran.job, output))
    values = {**invocation.request_fields(), **fields, "follow": follows}
    submitted = exchange(invocation, connection, fields=values)
    job_id = str(submitted["job_id"])
    progress = RetryProgress(invocation, job_id)
    poll = None if "pipeline" in submitted else progress.poll
    with show_waiting(invocation, f"{what}, job {job_id}", poll) as line, hint_on_interrupt(job_id):
        output = LiveOutputPrinter(line.write, terminal=terminal, label=step_label)
        timeout = invocation.duration("timeout")
        deadline = None if timeout is None else monotonic() + timeout.total_seconds()
        if "pipeline" in submitted:
            if follows or _shows_steps(invocation):
                _follow_run(invocation, job_id, line, output if follows else None, deadline)
        elif follows:
            _follow_job(invocation, job_id, output, deadline)
        ran = wait_for(invocation, submitted, deadline)
    if not invocation.json and poll is not None:
        for text in progress.lines(ran.job):
            print(text, file=sys.stderr)
    return job_result(ran, output_shown=follows, result_shown=_result_shown(invocation, ran.job, output))


def _result_shown(invocation: Invocation, job: Document, output: LiveOutputPrinter) -> bool:
    """Whether the terminal shows the result already: the stdout of a script, as it was printed."""
    import sys

    if invocation.json or not (invocation.out.isatty() and sys.stderr.isatty()):
        return False
    return output.has_shown_all(job["job_id"], job["execution"], "stdout")


def _shows_steps(invocation: Invocation) -> bool:
    return not invocation.json and invocation.out.isatty()


def _time_left(deadline: float | None) -> str | None:
    """The time until the deadline as the operations read it; `0ms` if it has passed."""
    from time import monotonic

    return None if deadline is None else f"{max(0, round((deadline - monotonic()) * 1000))}ms"


def _follow_job(
    invocation: Invocation, job_id: str, output: LiveOutputPrinter, deadline: float | None
) -> None:
    """Show what the job prints until it has ended, the time is up, or the daemon stops."""
    position = 0
    while (left := _time_left(deadline)) != "0ms":
        fields: JsonObject = {"job_id": job_id, "after": position, "executions": _ALL}
        update = _follow_once(invocation, "job.follow", fields, left)
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
    """Show what steps print, and each step as it ends, until the run is over or the daemon stops."""
    ended_ids: list[str] = []
    position = 0
    while (left := _time_left(deadline)) != "0ms":
        fields: JsonObject = {
            "job_id": run_id,
            "known": len(ended_ids),
            "live": output is not None,
            "position": position,
        }
        update = _follow_once(invocation, "pipeline.follow", fields, left)
        if update is None:
            return
        if output is not None:
            output.show(update.get("live_output", ()))  # absent in answers of an older daemon
        position = update.get("position", 0)
        for job in update["ended"]:
            if job["job_id"] not in ended_ids:
                ended_ids.append(job["job_id"])
                _print_step(invocation, job, line)
        if update["over"] or update["stopping"]:
            return


def _follow_once(
    invocation: Invocation, operation: str, fields: JsonObject, left: str | None
) -> Document | None:
    """One request of a follower. None from a daemon that cannot: an older one, or one that has gone."""
    try:
        return request_daemon(
            invocation, operation, fields | {"timeout": left or FOLLOW_TIMEOUT}, timeout=None
        )
    except (DaemonNotRunningError, StoreBusyError, UsageError):
        return None


def _print_step(invocation: Invocation, job: JsonObject, line: WaitingLine) -> None:
    if job["step"] is None or not _shows_steps(invocation):
        return
    console = console_for(invocation.out, invocation.environ, verbose=invocation.verbose)
    what = f"{job['step']}  {job['plugin']} {job['command']}"
    text = f"{console.style('dim', '·')} {printable(what)}  {fmt.status(str(job['status']), console)}"
    if error := fmt.informative_error(job):
        text += f"  {one_line(error)}"
    line.print(text, invocation.out)


def wait_for(invocation: Invocation, submitted: Document, deadline: float | None = None) -> SubmittedJob:
    """The job when it has ended, or at the deadline."""
    job_id = str(submitted["job_id"])
    fields: JsonObject = {"job_id": job_id, "timeout": _time_left(deadline)}
    try:
        job = request_daemon(invocation, "job.wait", fields, timeout=None)
    except (DaemonNotRunningError, StoreBusyError) as error:
        # The job is stored: name it, so that it can be found again.
        error.hint = f"The job is on the queue. When the daemon is back: ductile job wait {job_id}"
        error.details["job_id"] = job_id
        raise
    return SubmittedJob(job, submitted, daemon_runs=True)


@contextmanager
def hint_on_interrupt(job_id: str) -> Iterator[None]:
    """Name the job after Ctrl-C, which ends the waiting but not the job."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Job {job_id} continues: `ductile job wait {job_id}`. To cancel: `ductile job cancel {job_id}`."
        ) from None


def run_in_process(
    invocation: Invocation,
    on_end: Callable[[JsonObject], None] = lambda _job: None,
    on_output: Callable[[OutputPiece], None] | None = None,
    *,
    operation: str | None = None,
    fields: JsonObject | None = None,
    added: Mapping[str, JsonValue] = _NO_FIELDS,
    on_submitted: Callable[[str], None] = lambda _job_id: None,
) -> SubmittedJob:
    """Submit the job of this command, or of `operation`, and run it here, with the jobs it leads to.

    With `fields` for its request, --timeout is one of them and does not limit the time here.
    """
    import asyncio

    from ductile.offline import run_offline

    limit = invocation.duration("timeout") if fields is None else None
    fields = {**invocation.request_fields(), **added} if fields is None else fields
    ran = asyncio.run(
        run_offline(
            invocation.config,
            invocation.environ,
            operation or invocation.action.operation,
            fields,
            time_limit=limit,
            ended=on_end,
            on_output=on_output,
            on_submitted=on_submitted,
        )
    )
    return SubmittedJob(ran.job, ran.submitted, daemon_runs=False, stopped=ran.stopped)


class RetryProgress:
    """Lines about failed attempts of a job that are followed by another one, each shown once."""

    def __init__(self, invocation: Invocation, job_id: str) -> None:
        self._invocation = invocation
        self._job_id = job_id
        self._shown = 0

    def poll(self) -> list[str]:
        """Lines for the attempts since the last call; none if the daemon does not answer."""
        fields: JsonObject = {"job_id": self._job_id}
        try:
            # The row first, which is small; the job's input and result may be large.
            response = request_daemon(self._invocation, "job.list", fields, timeout=_PROGRESS_TIMEOUT)
            if all(job["execution"] <= self._shown or job["status"] == "running" for job in response["jobs"]):
                return []
            return self.lines(request_daemon(self._invocation, "job.show", fields, timeout=_PROGRESS_TIMEOUT))
        except DuctileError:
            return []

    def lines(self, job: Document) -> list[str]:
        """Lines for the attempts of this job that have not been shown yet."""
        new = [row for row in job["executions"] if row["execution"] > self._shown]
        self._shown = max((row["execution"] for row in new), default=self._shown)
        # Executions that a stop interrupted or a crash orphaned did not fail.
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
    wait = f"{seconds:.0f}s" if seconds < _MINUTE else fmt.ms(seconds * 1000)
    return f"{line}; next try in {wait} (Ctrl-C leaves it queued)"


def job_result(ran: SubmittedJob, *, output_shown: bool, result_shown: bool = False) -> CommandResult:
    """The result of a job that succeeded; the error of one that did not, and an exit status by its status.

    Without the result if the terminal shows it already.
    """
    job, deduplicated = ran.job, bool(ran.submitted["deduplicated"])
    data = job | {"deduplicated": deduplicated}
    notes: list[Callable[[Console], str]] = []
    if submission_note := ran.submitted.get("note"):
        notes.append(lambda console: console.hint(f"note: {submission_note}"))

    def note(console: Console) -> str:
        return "\n".join(render(console) for render in notes)

    if job["status"] != "succeeded":
        # Not ended is not failed: a script that retries on failure would start the job twice. Without a
        # daemon and not stopped, its attempt here failed, and no process retries it.
        pending = job["status"] not in fmt.TERMINAL_STATUSES and (ran.daemon_runs or ran.stopped)
        status = Exit.INTERRUPTED if ran.stopped == "signal" else Exit.TRY_AGAIN
        notes.append(
            lambda console: _failure_text(ran, console, with_output=deduplicated or not output_shown)
        )
        return CommandResult(data, exit_status=status if pending else Exit.FAILURE, note=note)
    if deduplicated:

        def duplicate(console: Console) -> str:
            completed = fmt.moment(job["completed_at"], console)
            return f"Not run again: job {job['job_id']} succeeded under this key at {completed}."

        notes.append(duplicate)

    def text(console: Console) -> str:
        """The plugin's `result`, or its whole response without one. Escaped for a terminal."""
        result: dict[str, Any] = job["result"] or {}
        text = fmt.value(result.get("result", result))
        return text if console.width is None else printable(text)

    return CommandResult(data, None if result_shown else text, note=note if notes else None)


def _failure_text(ran: SubmittedJob, console: Console, *, with_output: bool) -> str:
    job = ran.job
    ended = job["status"] in fmt.TERMINAL_STATUSES
    status = f"{'is ' if job['status'] == 'dead' else ''}{job['status']}"
    if not ended:
        status = f"has not ended: it is {job['status']}"
    first = f"{console.style('red', 'error:')} {job['plugin']} {job['command']} {status} ({job['reason']})"
    printed = {"stdout": (job["result"] or {}).get("stdout"), "stderr": job["stderr"]}
    if error := fmt.informative_error(job):
        # Without the end of the output, which follows below.
        for name, text in printed.items():
            error = error.partition(_TAIL.format(name))[0] if text else error
        first += f": {indent_continuation(error)}"
    lines = [first]
    for name, text in printed.items():
        if text and with_output:
            last_lines = text.rstrip("\n").split("\n")[-_OUTPUT_LINES:]
            lines += [console.style("bold", f"{name}:"), fmt.indent("\n".join(last_lines))]
    job_id = job["job_id"]
    if ended:
        hint = f"ductile {'pipeline explain' if job['plugin'] == 'pipeline' else 'job show'} {job_id}"
    elif ran.daemon_runs:
        hint = f"ductile job wait {job_id}"
    else:
        when = f" at {fmt.moment(job['next_retry_at'], console)}" if job["next_retry_at"] else ""
        hint = (
            f"it will be retried{when} when the daemon runs (`ductile system start`). "
            f"To cancel: `ductile job cancel {job_id}`"
        )
    return "\n".join([*lines, f"{console.style('bold', 'hint:')} {console.hint(hint)}"])


@contextmanager
def hint_reload(invocation: Invocation, find: Callable[[Snapshot], object]) -> Iterator[None]:
    """Improve the hint of a NotFoundError by looking for the same thing in the configuration on disk.

    `find` raises as the operation does if the configuration does not have it. Without a daemon the operation
    has read the same configuration, so the error stays as it is.
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
