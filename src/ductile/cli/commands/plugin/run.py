"""`ductile run`: one job of a plugin, with a daemon or without, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import connect_to_daemon, exchange
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, PLUGIN, TIMEOUT, Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot


@action(
    "run",
    "run a plugin and show its result",
    "plugin.run",
    arguments=(
        PLUGIN,
        Argument("COMMAND", "poll if not given, or else handle", required=False, field="command"),
    ),
    options=(
        TIMEOUT,
        Option("--no-wait", "print the id of the job and do not wait for it; needs the daemon"),
        Option("--request FILE", "for authors: run it with exactly this request, outside any queue"),
        DRY_RUN,
    ),
    about="Works with and without a daemon: without one the job, and what it leads to, is run here and now. "
    "Exit status 0 if the job succeeded, 1 if it did not, 75 if it has not ended in time. With --request, "
    "PLUGIN may be a directory.",
    examples=(
        Example("ductile run echo", "its poll, or else its handle"),
        Example(
            'ductile run echo handle --payload \'{"message": "hello"}\'', "one command, with its payload"
        ),
        Example(
            "ductile run echo handle --payload @request.json --no-wait",
            "leave it to the daemon, and do not wait",
        ),
    ),
)
def run(invocation: Invocation) -> CommandResult:
    if invocation.optional("request") is not None:
        from ductile.cli.commands.plugin.develop import run_request

        return run_request(invocation)
    import sys

    from ductile.cli import run_job
    from ductile.cli.console.console import show_waiting

    plugin, command = invocation.text("PLUGIN"), invocation.optional("COMMAND")

    def find_command(snapshot: Snapshot) -> object:
        from ductile.operations.plugins.lookup import default_command, known_command, runnable_plugin

        found = runnable_plugin(snapshot, plugin)
        return known_command(found, command or default_command(found))

    name = " ".join(part for part in (plugin, command) if part)
    with run_job.hint_reload(invocation, find_command):
        result = run_job.result_without_waiting(
            invocation, lambda done: f"{done['plugin']} {done['command']}"
        )
        if result is not None:
            return result
        connection = connect_to_daemon(invocation)
        if connection is None:
            with show_waiting(invocation, name):
                return run_job.job_result(run_job.run_in_process(invocation))
        submitted = exchange(invocation, connection)
        progress = run_job.RetryProgress(invocation, str(submitted["job_id"]))
        with show_waiting(invocation, f"{name}, job {submitted['job_id']}", progress.poll):
            ran = run_job.wait_for(invocation, submitted)
        if not invocation.json:
            for line in progress.lines(ran.job):
                print(line, file=sys.stderr)
        return run_job.job_result(ran)
