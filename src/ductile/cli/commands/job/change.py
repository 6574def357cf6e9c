"""`ductile job cancel`, `retry` and `rerun`."""

from __future__ import annotations

from ductile.cli.bulk import change_result, single_change_fields
from ductile.cli.client import Document, request
from ductile.cli.console import format as fmt
from ductile.cli.console.console import Console
from ductile.cli.invocation import CommandResult, Invocation
from ductile.cli.spec import DRY_RUN, FOLLOW_OUTPUT, JOB, RETRY, TIMEOUT, Argument, Example, Option, action

_ONE_JOB = Argument(
    "JOB", "the job's id, or at least four of its first or last digits; or filters instead", required=False
)


@action(
    "cancel",
    "end a job, or all that match a filter; a running one is killed",
    "job.cancel_many",
    arguments=(_ONE_JOB,),
    about="Without JOB, the queued and running jobs that match every filter; at least one filter is needed. "
    "--dry-run counts and lists them first.",
    examples=(
        Example("ductile job cancel 8000a1b2c3d4", "by the end of its id, as `job list` shows it"),
        Example("ductile job cancel --plugin echo --status queued --dry-run", "all that wait for one plugin"),
    ),
)
def cancel(invocation: Invocation) -> CommandResult:
    if invocation.optional("JOB") is None:
        response = request(invocation, timeout=None)
        return change_result(response, ("Cancelled", "Would cancel"), _matched_table)
    response = request(invocation, "job.cancel", single_change_fields(invocation, "JOB", "job_id"))

    def text(console: Console) -> str:
        job_id = response["job_id"]
        if response.get("dry_run"):
            return f"{job_id} would be cancelled; it is {response['status']}."
        if response.get("orphaned"):
            return console.hint(
                f"{job_id} will be cancelled at the next start: {fmt.ORPHANED_TEXT}. `ductile system start`"
            )
        if response["cancel"] == "requested":
            return f"{job_id} is being ended; it is cancelled when its process is gone."
        return f"{job_id} is cancelled."

    return CommandResult(response, text)


@action(
    "retry",
    "put a failed or dead job back on the queue, or all that match a filter, with fresh attempts",
    "job.retry_many",
    arguments=(_ONE_JOB,),
    options=(
        Option(
            "--from-step PATH",
            "of a pipeline run: start a new run at this step instead, by the pipeline as it is now",
        ),
    ),
    about="A pipeline run continues where it failed, by the graph that it began with; its steps "
    "that succeeded are not run again. With --from-step the step gets its input of that run, and "
    "the results of branches beside it are kept. Without JOB, the failed and dead jobs that match every "
    "filter; at least one filter is needed. --dry-run counts and lists them first.",
    examples=(
        Example("ductile job retry 8000a1b2c3d4", "by the end of its id, as `job list` shows it"),
        Example(
            "ductile job retry 8000a1b2c3d4 --from-step greet",
            "a run of a pipeline, once more from one of its steps",
        ),
        Example(
            "ductile job retry --plugin echo --since 12h --dry-run",
            "all that failed of one plugin since last night; without --dry-run it is done",
        ),
    ),
)
def retry(invocation: Invocation) -> CommandResult:
    step = invocation.optional("from_step")
    if invocation.optional("JOB") is None:
        if step is not None:
            from ductile.errors import UsageError

            raise UsageError("--from-step needs the JOB of a pipeline run")
        response = request(invocation, timeout=None)
        return change_result(
            response, ("Put back on the queue:", "Would put back on the queue:"), _matched_table
        )
    fields = single_change_fields(invocation, "JOB", "job_id")
    if step is None:
        response = request(invocation, "job.retry", fields)
        outcome = "would go back on the queue" if response.get("dry_run") else "is on the queue again"
        return CommandResult(response, f"{response['job_id']} {outcome}.")
    response = request(invocation, "job.retry_from_step", fields | {"step": step})
    run = f"{response['pipeline']} from {response['from_step']}"
    if response.get("dry_run"):
        return CommandResult(response, f"Would run {run} again, with the input of {response['retries']}.")
    return CommandResult(response, f"{response['job_id']} runs {run}.")


@action(
    "rerun",
    "run a job again as a new one, and show its result",
    "job.rerun",
    arguments=(JOB,),
    options=(
        TIMEOUT,
        RETRY,
        FOLLOW_OUTPUT,
        Option("--no-wait", "print the id of the new job and do not wait for it; needs the daemon"),
        DRY_RUN,
    ),
    usage={"max_attempts": None},
    about="The new job has the plugin, command, payload and context of the old one, by the configuration as "
    "it is now, and no dedupe key. The old job may have succeeded, and stays as it is; `rerun_of` of the new "
    "one names it. A step of a run is run alone: to continue its run, use `ductile job retry`. Exit status 0 "
    "if the new job succeeded, 1 if it did not, 75 if it has not ended in time.",
    examples=(
        Example("ductile job rerun last:echo", "the latest job of a plugin, once more"),
        Example('ductile job rerun 8000a1b2c3d4 --payload \'{"message": "hi"}\'', "with another payload"),
    ),
)
def rerun(invocation: Invocation) -> CommandResult:
    from ductile.cli import run_job

    is_retried = invocation.switch("retry") or invocation.switch("no_wait")
    fields = {} if is_retried else {"max_attempts": 1}
    result = run_job.result_without_waiting(invocation, fields)
    if result is not None:
        return result
    return run_job.run_and_show(invocation, f"job {invocation.text('JOB')} again", fields)


def _matched_table(response: Document, console: Console) -> str:
    rows = [
        (
            fmt.short_id(row["job_id"], console),
            row["plugin"],
            row["command"],
            row["status"],
            fmt.relative_time(row["completed_at"] or row["created_at"], console),
            fmt.brief_error(row["reason"], row["error"]),
        )
        for row in response["jobs"]
    ]
    headers = ("JOB", "PLUGIN", "COMMAND", "STATUS", "AT", "WHY")
    return console.table(headers, rows, optional=("STATUS", "COMMAND")) if rows else ""
