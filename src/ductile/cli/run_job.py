"""Run one job or pipeline run and show its result: in the daemon and wait for it, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ductile.cli.client import Document, request, request_daemon
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console, indent_continuation, one_line, printable
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
    from ductile.config.snapshot import Snapshot
    from ductile.core.json import JsonObject

#: Lines of a failed job's output that are shown; the end of it names the error.
_OUTPUT_LINES = 20
#: An error of the plugin repeats the end of its stderr or stdout after this text.
_TAIL = "; {} ends with: "
#: Seconds to wait for an answer about failed attempts: the end of the job must not be reported late.
_PROGRESS_TIMEOUT = 5.0
_MINUTE = 60


class AwaitedJob(NamedTuple):
    """A job that was submitted, and waited for."""

    job: Document
    deduplicated: bool
    #: Whether a daemon continues with it.
    daemon_runs: bool
    #: `signal` or `timeout` if that ended the run in this process early.
    stopped: str | None = None


def result_without_waiting(invocation: Invocation, what: Callable[[Document], str]) -> CommandResult | None:
    """The result of --dry-run, which says `what` would run, or of --no-wait; None without these options.

    UsageError for `--timeout 0s`. `job wait` accepts it, as a request not to wait.
    """
    if invocation.switch("dry_run"):
        done = request(invocation)
        return CommandResult(done, f"Would run {what(done)}.")
    timeout = invocation.duration("timeout")
    if timeout is not None and not timeout:
        raise UsageError("--timeout must be greater than 0", hint="such as --timeout 30s")
    if not invocation.switch("no_wait"):
        return None
    advice = "Start it with `ductile system start`, or leave out --no-wait to run it here."
    submitted = request_daemon(invocation, advice=advice)
    return CommandResult(submitted, submitted["job_id"])


def wait_for(
    invocation: Invocation, submitted: Document, *, timeout_option: str | None = "timeout"
) -> AwaitedJob:
    """The job when it has ended, or at the end of --timeout, if that limits the waiting."""
    job_id = str(submitted["job_id"])
    limit = None if timeout_option is None else invocation.optional(timeout_option)
    fields: JsonObject = {"job_id": job_id, "timeout": limit}
    with hint_on_interrupt(job_id):
        try:
            job = request_daemon(invocation, "job.wait", fields, timeout=None)
        except (DaemonNotRunningError, StoreBusyError) as gone:
            # The job is stored: name it, so that it can be found again.
            gone.hint = f"The job is on the queue. When the daemon is back: ductile job wait {job_id}"
            gone.details["job_id"] = job_id
            raise
    return AwaitedJob(job, bool(submitted["deduplicated"]), daemon_runs=True)


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
    *,
    fields: JsonObject | None = None,
) -> AwaitedJob:
    """Submit the job of this command and run it, and the jobs it leads to, in this process.

    With `fields` for its request, --timeout is one of them and does not limit the time here.
    """
    import asyncio

    from ductile.offline import run_offline

    operation = invocation.action.operation
    limit = invocation.duration("timeout") if fields is None else None
    fields = invocation.request_fields() if fields is None else fields
    ran = asyncio.run(
        run_offline(invocation.config, invocation.environ, operation, fields, time_limit=limit, ended=on_end)
    )
    return AwaitedJob(ran.job, ran.deduplicated, daemon_runs=False, stopped=ran.stopped)


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
            found = request_daemon(self._invocation, "job.list", fields, timeout=_PROGRESS_TIMEOUT)
            if all(job["execution"] <= self._shown or job["status"] == "running" for job in found["jobs"]):
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


def job_result(ran: AwaitedJob) -> CommandResult:
    """The result of a job that succeeded; the error of one that did not, and an exit status by its status."""
    job = ran.job
    data = job | {"deduplicated": ran.deduplicated}
    if job["status"] != "succeeded":
        # Not ended is not failed: a script that retries on failure would start the job twice. Without a
        # daemon and not stopped, its attempt here failed, and no process retries it.
        pending = job["status"] not in fmt.TERMINAL_STATUSES and (ran.daemon_runs or ran.stopped)
        status = Exit.INTERRUPTED if ran.stopped == "signal" else Exit.TRY_AGAIN
        return CommandResult(
            data,
            exit_status=status if pending else Exit.FAILURE,
            note=lambda console: _failure_text(ran, console),
        )

    def text(console: Console) -> str:
        """The plugin's `result`, or its whole answer without one. Unchanged unless it goes to a terminal."""
        answer: dict[str, Any] = job["result"] or {}
        text = fmt.value(answer.get("result", answer))
        return text if console.width is None else printable(text)

    def duplicate(console: Console) -> str:
        completed = fmt.moment(job["completed_at"], console)
        return f"Not run again: job {job['job_id']} succeeded under this key at {completed}."

    return CommandResult(data, text, note=duplicate if ran.deduplicated else None)


def _failure_text(ran: AwaitedJob, console: Console) -> str:
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
        if text:
            kept = text.rstrip("\n").split("\n")[-_OUTPUT_LINES:]
            lines += [console.style("bold", f"{name}:"), fmt.indent("\n".join(kept))]
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
        from ductile.admin.config import open_configuration

        try:
            find(open_configuration(invocation.config, invocation.environ).snapshot)
        except NotFoundError as same:
            missing.message, missing.hint = same.message, same.hint  # installed by now, or misspelt
        except RefusedError as refused:
            missing.hint = f"On disk, which the daemon has not loaded, {refused.message}."
        except DuctileError:  # `config check` and the reload report what is wrong with it
            pass
        else:
            missing.hint = (
                "The configuration on disk has it, but the daemon has not loaded it: ductile reload"
            )
        raise
