"""`ductile run`: one job of a plugin, with a daemon or without, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ductile.cli.answers import Answer, Call
from ductile.cli.daemon import PATIENCE, Said, ask, ask_daemon, find_daemon, present
from ductile.cli.json_argument import json_object
from ductile.cli.progress import waiting_for
from ductile.cli.screen import printable
from ductile.cli.wording import indented, moment, telling_error, value_text
from ductile.control.client import converse
from ductile.errors import DaemonNotRunningError, Exit, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ductile.cli.screen import Screen
    from ductile.core.json_values import JsonObject

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
    }
    if call.switch("dry_run"):
        tried = ask(call, "plugin.run", given | {"dry_run": True})
        return Answer(data=tried, text=lambda _: f"Would run {tried['plugin']} {tried['command']}.")
    if call.switch("no_wait"):
        submitted = ask_daemon(call, "plugin.run", given)
        return Answer(data=submitted, text=lambda _: submitted["job_id"])
    connection = find_daemon(call)
    name = " ".join(part for part in (call.text("PLUGIN"), call.optional("COMMAND")) if part)
    if connection is None:
        with waiting_for(call, name):
            ended = run_here(call, "plugin.run", given)
        return outcome(ended, daemon_runs=False)
    submitted = converse(connection, "plugin.run", present(given), timeout=PATIENCE)
    with waiting_for(call, f"{name}, job {submitted['job_id']}"):
        ended = wait_for(call, str(submitted["job_id"]))
    return outcome(ended, daemon_runs=True)


def wait_for(call: Call, job_id: str) -> Said:
    """The job when it has ended, or as it stands when the time is up."""
    waiting = {"job_id": job_id, "timeout": call.optional("timeout")}
    try:
        return ask_daemon(call, "job.wait", waiting, timeout=None)
    except (DaemonNotRunningError, StoreBusyError) as gone:
        # The job is on disk all the same, and whoever asked needs its name to find it again.
        gone.hint = f"The job is on the queue. When the daemon is back: ductile job wait {job_id}"
        gone.details["job_id"] = job_id
        raise


def run_here(
    call: Call, operation: str, given: JsonObject, ended: Callable[[JsonObject], None] = lambda _job: None
) -> Said:
    """Submit a job by this operation and run it in this process, with what it leads to."""
    import asyncio  # noqa: PLC0415 - 60 ms that a running daemon spares

    from ductile.app import run_without_daemon  # noqa: PLC0415
    from ductile.operations.parameters import optional_duration  # noqa: PLC0415

    patience = optional_duration({"timeout": call.optional("timeout")}, "timeout")
    return asyncio.run(
        run_without_daemon(
            call.config, call.environ, operation, present(given), patience=patience, ended=ended
        )
    )


def outcome(job: Said, *, daemon_runs: bool) -> Answer:
    """The result of a job that succeeded; for one that did not, why, and status 1."""
    if job["status"] == "succeeded":
        return Answer(data=job, text=lambda screen: _result_text(job, screen))
    return Answer(
        data=job,
        exit_status=Exit.FAILURE,
        aside=lambda screen: _failure_text(job, screen, daemon_runs=daemon_runs),
    )


def _result(job: Said) -> Any:
    """What the plugin answered with; the whole answer where it has no `result`."""
    envelope = job["result"] or {}
    return envelope.get("result", envelope)


def _result_text(job: Said, screen: Screen) -> str:
    """As it is for a program that reads it; without control characters for a terminal."""
    text = value_text(_result(job))
    return text if screen.width is None else printable(text)


def _failure_text(job: Said, screen: Screen, *, daemon_runs: bool) -> str:
    name = f"{job['plugin']} {job['command']}"
    ended = job["status"] in _ENDED
    said = (
        f"{name} {'is dead' if job['status'] == 'dead' else job['status']}"
        if ended
        else f"{name} has not ended: it is {job['status']}"
    )
    lines = [f"{screen.style('red', 'error:')} {said} ({job['reason']})"]
    if error := telling_error(job):
        lines[0] += f": {printable(error)}"
    if job["stderr"]:
        kept = job["stderr"].rstrip("\n").split("\n")[-_LINES_OF_STDERR:]
        lines += [screen.style("bold", "stderr:"), indented("\n".join(kept))]
    hint = _hint(job, ended=ended, daemon_runs=daemon_runs)
    return "\n".join([*lines, f"{screen.style('bold', 'hint:')} {hint}"])


def _hint(job: Said, *, ended: bool, daemon_runs: bool) -> str:
    job_id = job["job_id"]
    if ended:
        return f"ductile {'pipeline explain' if job['plugin'] == 'pipeline' else 'job show'} {job_id}"
    if daemon_runs:
        return f"ductile job wait {job_id}"
    when = f" at {moment(job['next_retry_at'])}" if job["next_retry_at"] else ""
    return f"it is tried again{when} by the daemon, once one runs: ductile system start"
