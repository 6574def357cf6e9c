"""`ductile run`: one job of a plugin, with a daemon or without, and what came of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ductile.cli.attempts import RetryProgress
from ductile.cli.client import (
    DAEMON_TIMEOUT,
    RUN_IT_HERE,
    Document,
    connect_to_daemon,
    drop_unset,
    request,
    request_daemon,
)
from ductile.cli.console.console import indent_continuation, printable
from ductile.cli.console.format import STDERR_TAIL, format_time, format_value, indent, informative_error
from ductile.cli.console.progress import show_waiting
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.json_argument import json_object
from ductile.cli.reload_hint import find_command, hint_reload
from ductile.control.client import exchange
from ductile.errors import DaemonNotRunningError, Exit, StoreBusyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ductile.cli.console.console import Console
    from ductile.core.json import JsonObject, JsonValue

#: Of a failed run's stderr: its end is where a traceback says what it was.
_LINES_OF_STDERR = 20
_ENDED = ("succeeded", "failed", "dead")


def run(call: Invocation) -> CommandResult:
    if call.optional("request") is not None:
        from ductile.cli.authoring import try_request  # noqa: PLC0415 - authors only

        return try_request(call)
    given: JsonObject = {
        "plugin": call.text("PLUGIN"),
        "command": call.optional("COMMAND"),
        "payload": json_object(call.optional("payload"), "payload"),
        "dedupe_key": call.optional("dedupe_key"),
        "state_webhook_url": call.optional("state_webhook_url"),
        "state_webhook_events": chosen_states(call),
    }
    with hint_reload(call, lambda disk: find_command(disk, call.text("PLUGIN"), call.optional("COMMAND"))):
        return _run(call, given)


def chosen_states(call: Invocation) -> JsonValue:
    """The words of `--state-webhook-events`, which are separated by commas."""
    text = call.optional("state_webhook_events")
    return None if text is None else [word.strip() for word in text.split(",")]


def _run(call: Invocation, given: JsonObject) -> CommandResult:
    if call.switch("dry_run"):
        tried = request(call, "plugin.run", given | {"dry_run": True})
        return CommandResult(data=tried, text=lambda _: f"Would run {tried['plugin']} {tried['command']}.")
    reject_zero_timeout(call)
    if call.switch("no_wait"):
        submitted = request_daemon(call, "plugin.run", given, advice=RUN_IT_HERE)
        return CommandResult(data=submitted, text=lambda _: submitted["job_id"])
    connection = connect_to_daemon(call)
    name = " ".join(part for part in (call.text("PLUGIN"), call.optional("COMMAND")) if part)
    if connection is None:
        with show_waiting(call, name):
            ran = run_here(call, "plugin.run", given)
        return outcome(ran)
    submitted = exchange(connection, "plugin.run", drop_unset(given), timeout=DAEMON_TIMEOUT)
    attempts = RetryProgress(call, str(submitted["job_id"]))
    with show_waiting(call, f"{name}, job {submitted['job_id']}", attempts.look):
        ran = wait_for(call, submitted)
    if not call.json:  # what failed since the last look; the JSON has all of them
        print("".join(f"{line}\n" for line in attempts.news(ran.job)), end="", file=sys.stderr)
    return outcome(ran)


def reject_zero_timeout(call: Invocation) -> None:
    """`job wait --timeout 0s` is a look; a run that has no time at all is a mistake."""
    if call.optional("timeout") is None:
        return
    from ductile.operations.parameters import optional_duration  # noqa: PLC0415 - only where it was given

    if not optional_duration({"timeout": call.optional("timeout")}, "timeout"):
        raise UsageError("--timeout has to be more than nothing", hint="such as --timeout 30s")


class AwaitedJob(NamedTuple):
    """A job that was submitted, and waited for."""

    job: Document
    deduplicated: bool
    #: Whether there is a daemon that goes on with it.
    daemon_runs: bool
    #: `signal` or `timeout` if that ended it here before it was over.
    stopped: str | None = None


def wait_for(call: Invocation, submitted: Document) -> AwaitedJob:
    """The job when it has ended, or as it stands when the time is up."""
    job_id = str(submitted["job_id"])
    waiting: JsonObject = {"job_id": job_id, "timeout": call.optional("timeout")}
    with hint_on_interrupt(job_id):
        return AwaitedJob(_waited(call, waiting), bool(submitted["deduplicated"]), daemon_runs=True)


@contextmanager
def hint_on_interrupt(job_id: str) -> Iterator[None]:
    """Whoever stops waiting for a job of the daemon has not stopped the job, and needs its name."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Job {job_id} goes on: `ductile job wait {job_id}`. Not wanted: `ductile job cancel {job_id}`."
        ) from None


def _waited(call: Invocation, waiting: JsonObject) -> Document:
    job_id = waiting["job_id"]
    try:
        return request_daemon(call, "job.wait", waiting, timeout=None)
    except (DaemonNotRunningError, StoreBusyError) as gone:
        # The job is on disk all the same, and whoever asked needs its name to find it again.
        gone.hint = f"The job is on the queue. When the daemon is back: ductile job wait {job_id}"
        gone.details["job_id"] = job_id
        raise


def run_here(
    call: Invocation,
    operation: str,
    given: JsonObject,
    ended: Callable[[JsonObject], None] = lambda _job: None,
) -> AwaitedJob:
    """Submit a job by this operation and run it in this process, with what it leads to."""
    import asyncio  # noqa: PLC0415 - 60 ms that a running daemon spares

    from ductile.offline import run_offline  # noqa: PLC0415
    from ductile.operations.parameters import optional_duration  # noqa: PLC0415

    patience = optional_duration({"timeout": call.optional("timeout")}, "timeout")
    ran = asyncio.run(
        run_offline(call.config, call.environ, operation, drop_unset(given), patience=patience, ended=ended)
    )
    return AwaitedJob(ran.job, ran.deduplicated, daemon_runs=False, stopped=ran.stopped)


def outcome(ran: AwaitedJob) -> CommandResult:
    """The result of a job that succeeded; for one that did not, why, and a status that tells it from that."""
    data = ran.job | {"deduplicated": ran.deduplicated}
    if ran.job["status"] == "succeeded":
        return CommandResult(
            data=data,
            text=lambda screen: _result_text(ran.job, screen),
            aside=(lambda _: _not_again(ran.job)) if ran.deduplicated else None,
        )
    return CommandResult(data=data, exit_status=_status(ran), aside=lambda screen: _failure_text(ran, screen))


def _status(ran: AwaitedJob) -> Exit:
    """Not yet is not failed: a script that cannot tell them apart would start the job once more."""
    if ran.job["status"] in _ENDED:
        return Exit.FAILURE
    if ran.stopped == "signal":
        return Exit.INTERRUPTED
    # Without a daemon, and not stopped: it was tried here in vain, and nobody goes on trying.
    return Exit.TRY_AGAIN if ran.daemon_runs or ran.stopped else Exit.FAILURE


def _not_again(job: Document) -> str:
    at = format_time(job["completed_at"])
    return f"Not run again: job {job['job_id']} succeeded under this key at {at}."


def _result(job: Document) -> Any:
    """What the plugin answered with; the whole answer where it has no `result`."""
    envelope = job["result"] or {}
    return envelope.get("result", envelope)


def _result_text(job: Document, screen: Console) -> str:
    """As it is for a program that reads it; without control characters for a terminal."""
    text = format_value(_result(job))
    return text if screen.width is None else printable(text)


def _failure_text(ran: AwaitedJob, screen: Console) -> str:
    job = ran.job
    name = f"{job['plugin']} {job['command']}"
    ended = job["status"] in _ENDED
    said = (
        f"{name} {'is dead' if job['status'] == 'dead' else job['status']}"
        if ended
        else f"{name} has not ended: it is {job['status']}"
    )
    lines = [f"{screen.style('red', 'error:')} {said} ({job['reason']})"]
    if error := informative_error(job):
        # The end of stderr comes below, with what stands before it.
        told = error.partition(STDERR_TAIL)[0] if job["stderr"] else error
        lines[0] += f": {indent_continuation(told)}"
    if job["stderr"]:
        kept = job["stderr"].rstrip("\n").split("\n")[-_LINES_OF_STDERR:]
        lines += [screen.style("bold", "stderr:"), indent("\n".join(kept))]
    hint = _hint(job, ended=ended, daemon_runs=ran.daemon_runs)
    return "\n".join([*lines, f"{screen.style('bold', 'hint:')} {screen.advice(hint)}"])


def _hint(job: Document, *, ended: bool, daemon_runs: bool) -> str:
    job_id = job["job_id"]
    if ended:
        return f"ductile {'pipeline explain' if job['plugin'] == 'pipeline' else 'job show'} {job_id}"
    if daemon_runs:
        return f"ductile job wait {job_id}"
    when = f" at {format_time(job['next_retry_at'])}" if job["next_retry_at"] else ""
    return (
        f"it is tried again{when} by the daemon, once one runs: `ductile system start`. "
        f"Not wanted: `ductile job cancel {job_id}`"
    )
