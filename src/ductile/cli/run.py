"""`ductile run`: one job of a plugin, with a daemon or without, and what came of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ductile.cli.answers import Answer, Call
from ductile.cli.attempts import Attempts
from ductile.cli.daemon import PATIENCE, RUN_IT_HERE, Said, ask, ask_daemon, find_daemon, present
from ductile.cli.json_argument import json_object
from ductile.cli.progress import waiting_for
from ductile.cli.screen import printable, within
from ductile.cli.unloaded import find_command, hinting_at_reload
from ductile.cli.wording import STDERR_TAIL, indented, moment, telling_error, value_text
from ductile.control.client import converse
from ductile.errors import DaemonNotRunningError, Exit, StoreBusyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ductile.cli.screen import Screen
    from ductile.core.json_values import JsonObject, JsonValue

#: Of a failed run's stderr: its end is where a traceback says what it was.
_LINES_OF_STDERR = 20
_ENDED = ("succeeded", "failed", "dead")


def run(call: Call) -> Answer:
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
    with hinting_at_reload(
        call, lambda disk: find_command(disk, call.text("PLUGIN"), call.optional("COMMAND"))
    ):
        return _run(call, given)


def chosen_states(call: Call) -> JsonValue:
    """The words of `--state-webhook-events`, which are separated by commas."""
    text = call.optional("state_webhook_events")
    return None if text is None else [word.strip() for word in text.split(",")]


def _run(call: Call, given: JsonObject) -> Answer:
    if call.switch("dry_run"):
        tried = ask(call, "plugin.run", given | {"dry_run": True})
        return Answer(data=tried, text=lambda _: f"Would run {tried['plugin']} {tried['command']}.")
    refuse_no_time(call)
    if call.switch("no_wait"):
        submitted = ask_daemon(call, "plugin.run", given, advice=RUN_IT_HERE)
        return Answer(data=submitted, text=lambda _: submitted["job_id"])
    connection = find_daemon(call)
    name = " ".join(part for part in (call.text("PLUGIN"), call.optional("COMMAND")) if part)
    if connection is None:
        with waiting_for(call, name):
            ran = run_here(call, "plugin.run", given)
        return outcome(ran)
    submitted = converse(connection, "plugin.run", present(given), timeout=PATIENCE)
    attempts = Attempts(call, str(submitted["job_id"]))
    with waiting_for(call, f"{name}, job {submitted['job_id']}", attempts.look):
        ran = wait_for(call, submitted)
    if not call.json:  # what failed since the last look; the JSON has all of them
        print("".join(f"{line}\n" for line in attempts.news(ran.job)), end="", file=sys.stderr)
    return outcome(ran)


def refuse_no_time(call: Call) -> None:
    """`job wait --timeout 0s` is a look; a run that has no time at all is a mistake."""
    if call.optional("timeout") is None:
        return
    from ductile.operations.parameters import optional_duration  # noqa: PLC0415 - only where it was given

    if not optional_duration({"timeout": call.optional("timeout")}, "timeout"):
        raise UsageError("--timeout has to be more than nothing", hint="such as --timeout 30s")


class Ran(NamedTuple):
    """A job that was submitted, and waited for."""

    job: Said
    deduplicated: bool
    #: Whether there is a daemon that goes on with it.
    daemon_runs: bool
    #: `signal` or `timeout` if that ended it here before it was over.
    stopped: str | None = None


def wait_for(call: Call, submitted: Said) -> Ran:
    """The job when it has ended, or as it stands when the time is up."""
    job_id = str(submitted["job_id"])
    waiting: JsonObject = {"job_id": job_id, "timeout": call.optional("timeout")}
    with telling_where_it_goes_on(job_id):
        return Ran(_waited(call, waiting), bool(submitted["deduplicated"]), daemon_runs=True)


@contextmanager
def telling_where_it_goes_on(job_id: str) -> Iterator[None]:
    """Whoever stops waiting for a job of the daemon has not stopped the job, and needs its name."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Job {job_id} goes on: `ductile job wait {job_id}`. Not wanted: `ductile job cancel {job_id}`."
        ) from None


def _waited(call: Call, waiting: JsonObject) -> Said:
    job_id = waiting["job_id"]
    try:
        return ask_daemon(call, "job.wait", waiting, timeout=None)
    except (DaemonNotRunningError, StoreBusyError) as gone:
        # The job is on disk all the same, and whoever asked needs its name to find it again.
        gone.hint = f"The job is on the queue. When the daemon is back: ductile job wait {job_id}"
        gone.details["job_id"] = job_id
        raise


def run_here(
    call: Call, operation: str, given: JsonObject, ended: Callable[[JsonObject], None] = lambda _job: None
) -> Ran:
    """Submit a job by this operation and run it in this process, with what it leads to."""
    import asyncio  # noqa: PLC0415 - 60 ms that a running daemon spares

    from ductile.app import run_without_daemon  # noqa: PLC0415
    from ductile.operations.parameters import optional_duration  # noqa: PLC0415

    patience = optional_duration({"timeout": call.optional("timeout")}, "timeout")
    ran = asyncio.run(
        run_without_daemon(
            call.config, call.environ, operation, present(given), patience=patience, ended=ended
        )
    )
    return Ran(ran.job, ran.deduplicated, daemon_runs=False, stopped=ran.stopped)


def outcome(ran: Ran) -> Answer:
    """The result of a job that succeeded; for one that did not, why, and a status that tells it from that."""
    data = ran.job | {"deduplicated": ran.deduplicated}
    if ran.job["status"] == "succeeded":
        return Answer(
            data=data,
            text=lambda screen: _result_text(ran.job, screen),
            aside=(lambda _: _not_again(ran.job)) if ran.deduplicated else None,
        )
    return Answer(data=data, exit_status=_status(ran), aside=lambda screen: _failure_text(ran, screen))


def _status(ran: Ran) -> Exit:
    """Not yet is not failed: a script that cannot tell them apart would start the job once more."""
    if ran.job["status"] in _ENDED:
        return Exit.FAILURE
    if ran.stopped == "signal":
        return Exit.INTERRUPTED
    # Without a daemon, and not stopped: it was tried here in vain, and nobody goes on trying.
    return Exit.TRY_AGAIN if ran.daemon_runs or ran.stopped else Exit.FAILURE


def _not_again(job: Said) -> str:
    at = moment(job["completed_at"])
    return f"Not run again: job {job['job_id']} succeeded under this key at {at}."


def _result(job: Said) -> Any:
    """What the plugin answered with; the whole answer where it has no `result`."""
    envelope = job["result"] or {}
    return envelope.get("result", envelope)


def _result_text(job: Said, screen: Screen) -> str:
    """As it is for a program that reads it; without control characters for a terminal."""
    text = value_text(_result(job))
    return text if screen.width is None else printable(text)


def _failure_text(ran: Ran, screen: Screen) -> str:
    job = ran.job
    name = f"{job['plugin']} {job['command']}"
    ended = job["status"] in _ENDED
    said = (
        f"{name} {'is dead' if job['status'] == 'dead' else job['status']}"
        if ended
        else f"{name} has not ended: it is {job['status']}"
    )
    lines = [f"{screen.style('red', 'error:')} {said} ({job['reason']})"]
    if error := telling_error(job):
        # The end of stderr comes below, with what stands before it.
        told = error.partition(STDERR_TAIL)[0] if job["stderr"] else error
        lines[0] += f": {within(told)}"
    if job["stderr"]:
        kept = job["stderr"].rstrip("\n").split("\n")[-_LINES_OF_STDERR:]
        lines += [screen.style("bold", "stderr:"), indented("\n".join(kept))]
    hint = _hint(job, ended=ended, daemon_runs=ran.daemon_runs)
    return "\n".join([*lines, f"{screen.style('bold', 'hint:')} {screen.advice(hint)}"])


def _hint(job: Said, *, ended: bool, daemon_runs: bool) -> str:
    job_id = job["job_id"]
    if ended:
        return f"ductile {'pipeline explain' if job['plugin'] == 'pipeline' else 'job show'} {job_id}"
    if daemon_runs:
        return f"ductile job wait {job_id}"
    when = f" at {moment(job['next_retry_at'])}" if job["next_retry_at"] else ""
    return (
        f"it is tried again{when} by the daemon, once one runs: `ductile system start`. "
        f"Not wanted: `ductile job cancel {job_id}`"
    )
