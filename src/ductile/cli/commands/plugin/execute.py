"""`ductile exec`: any command, once, as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ductile.cli.client import connect_to_daemon, send_request
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import Argument, Example, Option, action

if TYPE_CHECKING:
    from ductile.cli.run_job import SubmittedJob
    from ductile.core.json import JsonObject, JsonValue


@action(
    "exec",
    "run any command once as a job and show what it prints",
    "job.exec",
    local_reason="it would let every holder of a token run anything on the machine of the daemon",
    arguments=(
        Argument("COMMAND", "the program and its arguments; `--` before it ends the options", trailing=True),
    ),
    options=(Option("--no-wait", "print the id of the job and do not wait for it; needs the daemon"),),
    usage={"argv": None, "cwd": None},
    about="The command runs in this directory, with the environment of a plugin and an empty standard input, "
    "in the daemon, or here if none runs. One attempt, unless --retry is given. Its words, its directory and "
    "its output are stored with the job: do not write secrets on the line. Exit status 0 if it succeeded, 1 "
    "if it did not, 75 if it has not ended.",
    examples=(
        Example("ductile exec -- ./backup.sh --full", "once, with the queue, the log and `job explain`"),
        Example("ductile exec --name dump --timeout 1h -- sh -c 'pg_dump db | gzip > db.gz'", "with a name"),
    ),
)
def execute(invocation: Invocation) -> CommandResult:
    from ductile.cli import run_job
    from ductile.cli.console.console import show_waiting

    fields = _request_fields(invocation)
    connection = connect_to_daemon(invocation)
    if invocation.switch("dry_run") or (invocation.switch("no_wait") and connection is not None):
        from ductile.cli.client import request

        if connection is not None:
            connection.close()
        response = request(invocation, "job.exec", fields)
        text = (
            f"Would run {response['command']}." if invocation.switch("dry_run") else str(response["job_id"])
        )
        return CommandResult(response, text)
    if invocation.switch("no_wait"):
        from ductile.control.client import not_running_error

        advice = "Start it with `ductile system start`, or leave out --no-wait to run it here."
        raise not_running_error(advice)
    name = invocation.words("COMMAND")[0]
    if connection is None:
        with show_waiting(invocation, name):
            return _result(run_job.run_in_process(invocation, fields=fields))
    submission = send_request(invocation, connection, "job.exec", fields)
    job_id = str(submission["job_id"])
    with show_waiting(invocation, f"{name}, job {job_id}"), run_job.hint_on_interrupt(job_id):
        submitted = run_job.wait_for(invocation, submission)
    return _result(submitted)


def _result(submitted: SubmittedJob) -> CommandResult:
    """Return the result as `ductile run` does, with the stderr of a command that succeeded as its note."""
    from ductile.cli.run_job import job_result

    result = job_result(submitted, output_shown=False)
    stderr = str(submitted.job["stderr"] or "").rstrip("\n")
    return result if result.note is not None or not stderr else result._replace(note=stderr)


def _request_fields(invocation: Invocation) -> JsonObject:
    """Return the request, with the program as a path: the daemon may have another PATH than the caller."""
    import os
    import shutil
    from pathlib import Path

    from ductile.errors import UsageError

    program, *arguments = invocation.words("COMMAND")
    if "/" not in program:
        path = shutil.which(program, path=invocation.environ.get("PATH"))
        if path is None:
            hint = f"write ./{program} for the file in this directory" if Path(program).is_file() else None
            raise UsageError(f"no program {program} was found in PATH", hint=hint)
        program = path
    elif not Path(program).is_file():
        raise UsageError(f"there is no file {program}", hint=f"it is looked for in {Path.cwd()}")
    elif not os.access(program, os.X_OK):
        raise UsageError(f"{program} is not executable", hint=f"chmod +x {program}")
    argv: list[JsonValue] = [os.path.abspath(program), *arguments]  # noqa: PTH100 - links stay as they are
    return invocation.request_fields() | {"argv": argv, "cwd": str(Path.cwd())}
