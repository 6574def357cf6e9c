"""What to do about a job that ended as it did: one piece of advice for each reason there is."""

from __future__ import annotations

from ductile.core.jobs.model import JobReason

#: `{plugin}`, `{command}` and `{job}` are filled in.
REMEDIES: dict[JobReason, str] = {
    JobReason.SUBMITTED: "Nothing has to be done.",
    JobReason.CLAIMED: "Nothing has to be done; ductile job wait {job} returns when it has ended.",
    JobReason.COMPLETED: "Nothing has to be done.",
    JobReason.PLUGIN_ERROR: "The plugin itself reported the error: fix its cause, then: ductile job retry "
    "{job}",
    JobReason.PROTOCOL_ERROR: "See what it printed with `ductile job logs {job}`; "
    "ductile plugin test {plugin} "
    "shows where it breaks the protocol.",
    JobReason.BAD_EXIT: "It ended without an answer: its stderr (ductile job logs {job}) says where.",
    JobReason.KILLED: "If you did not kill it, the kernel did: look at plugins.{plugin}.limits "
    "and at the machine's memory (dmesg).",
    JobReason.OUTPUT_TOO_LARGE: "Have it write large results to a file and name that as an artifact.",
    JobReason.STATE_TOO_LARGE: "Have it keep less: ductile plugin state {plugin}",
    JobReason.TOO_MANY_EVENTS: "Have it emit fewer events in one answer, or several items in one event.",
    JobReason.RUN_TOO_LARGE: "Split the work: emit an event that starts a run of its own for each part.",
    JobReason.COULD_NOT_START: "Look at the entrypoint's first line and mode: ductile plugin check {plugin}",
    JobReason.PLUGIN_UNAVAILABLE: "See why it is refused with `ductile plugin check {plugin}`, then: "
    "ductile job retry {job}",
    JobReason.RUNNER_LOST: "Try again with `ductile job retry {job}`; if it happens again, set "
    "plugins.{plugin}.warm to false.",
    JobReason.DEADLINE_EXCEEDED: "Find out what it waits for, or give it more time: "
    "ductile config set plugins.{plugin}.timeouts.{command} DURATION --lock",
    JobReason.ORPHANED: "See in the log why the daemon died. A job that kills it runs out of attempts.",
    JobReason.RETRY: "It will be retried without your help; to prevent that: ductile job cancel {job}",
    JobReason.ATTEMPTS_EXHAUSTED: "Fix the cause, then: ductile job retry {job}",
    JobReason.INTERRUPTED: "Nothing has to be done: it runs again.",
    JobReason.NO_RESOURCES: "Nothing has to be done: it runs again. If it goes on like this, lower "
    "service.max_workers, or give the daemon more open files, processes or memory.",
    JobReason.RECOVERED: "Nothing has to be done: it runs again.",
    JobReason.BAD_TEMPLATE: "The step's `with` names something that its input does not have: "
    "correct the pipeline, then start it again.",
    JobReason.BAD_BAGGAGE: "The step's `baggage` names something that is not there, or is taken: "
    "correct the pipeline, then start it again.",
    JobReason.BAD_CONDITION: "The step's `if` cannot be evaluated: correct the pipeline, then start it "
    "again.",
    JobReason.CANCELLED: "If that was not intended: ductile job retry {job}",
    JobReason.PLUGIN_REMOVED: "Put {plugin} back under `plugins` or enable it, then: ductile job retry {job}",
    JobReason.PURGED: "If that was not intended: ductile job retry {job}",
    JobReason.MANUAL_RETRY: "Nothing has to be done: it runs again.",
    JobReason.STEP_FAILED: "Fix what failed in the step, then: ductile job retry {job}",
    JobReason.PARTIAL_SUCCESS: "Fix the branch that failed, then: ductile job retry {job}",
    JobReason.STALLED: "That is a defect of Ductile: ductile system selfcheck, and report it. To go on: "
    "ductile job retry {job}",
}


def remedy_for(reason: JobReason, *, plugin: str, command: str, job_id: str) -> str:
    return REMEDIES[reason].format(plugin=plugin, command=command, job=job_id)
