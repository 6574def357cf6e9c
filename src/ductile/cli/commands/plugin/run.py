"""`ductile run`: one job of a plugin, or one run of a pipeline, with a daemon or without, and its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, FOLLOW_OUTPUT, RETRY, TIMEOUT, Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.config.snapshot import Snapshot


@action(
    "run",
    "run a plugin or a pipeline and show its result",
    "run.start",
    arguments=(
        Argument("NAME", "name of a plugin or, if there is none of this name, of a pipeline", field="name"),
        Argument(
            "COMMAND", "if not given: handle with a payload, else poll", required=False, field="command"
        ),
    ),
    options=(
        TIMEOUT,
        RETRY,
        FOLLOW_OUTPUT,
        Option(
            "--no-wait",
            "print the id of the job and do not wait for it; it is retried as its configuration says; "
            "needs the daemon",
        ),
        Option("--request FILE", "for authors: run it with exactly this request, outside any queue"),
        DRY_RUN,
    ),
    usage={"max_attempts": None},
    about="Works with and without a daemon: without one the job, and what it leads to, is run here and now. "
    "Standard output is the result alone. Exit status 0 if the job succeeded, 1 if it did not, 75 if it has "
    "not ended in time. With --request, NAME may be a directory. Steps of a pipeline are retried as their "
    "plugins say.",
    examples=(
        Example("ductile run echo", "its poll, or else its handle"),
        Example('ductile run echo --payload \'{"message": "hello"}\'', "its handle, with a payload"),
        Example('ductile run hello --payload \'{"name": "Ada"}\'', "a pipeline"),
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
    from ductile.cli import run_job

    name, command = invocation.text("NAME"), invocation.optional("COMMAND")

    def find(snapshot: Snapshot) -> None:
        from ductile.operations.runs.by_name import check_name

        check_name(snapshot, name, command, has_payload=invocation.optional("payload") is not None)

    # With --no-wait the job keeps its attempts: with only one, a crash of the daemon would end it.
    is_retried = invocation.switch("retry") or invocation.switch("no_wait")
    fields = {} if is_retried else {"max_attempts": 1}
    with run_job.hint_reload(invocation, find):
        result = run_job.result_without_waiting(invocation, fields)
        if result is not None:
            return result
        title = " ".join(part for part in (name, command) if part)
        return run_job.run_and_show(invocation, title, fields)
