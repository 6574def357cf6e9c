"""What to do about a job that ended as it did: one piece of advice for each reason there is."""

from __future__ import annotations

from ductile.core.jobs import Reason

#: `{plugin}`, `{command}` and `{job}` are filled in.
ADVICE: dict[Reason, str] = {
    Reason.SUBMITTED: "Nothing has to be done.",
    Reason.CLAIMED: "Nothing has to be done; ductile job wait {job} returns when it has ended.",
    Reason.COMPLETED: "Nothing has to be done.",
    Reason.PLUGIN_ERROR: "The plugin itself reported the error: fix its cause, then: ductile job retry {job}",
    Reason.PROTOCOL_ERROR: "See what it printed with `ductile job logs {job}`; ductile plugin test {plugin} "
    "shows where it breaks the protocol.",
    Reason.BAD_EXIT: "It ended without an answer: its stderr (ductile job logs {job}) says where.",
    Reason.KILLED: "If you did not kill it, the kernel did: look at plugins.{plugin}.limits "
    "and at the machine's memory (dmesg).",
    Reason.OUTPUT_TOO_LARGE: "Have it write large results to a file and name that as an artifact.",
    Reason.STATE_TOO_LARGE: "Have it keep less: ductile plugin state {plugin}",
    Reason.TOO_MANY_EVENTS: "Have it emit fewer events in one answer, or several items in one event.",
    Reason.RUN_TOO_LARGE: "Split the work: have it emit an event that starts a run of its own for each part.",
    Reason.COULD_NOT_START: "Look at the entrypoint's first line and mode: ductile plugin check {plugin}",
    Reason.PLUGIN_UNAVAILABLE: "See why it is refused with `ductile plugin check {plugin}`, then: "
    "ductile job retry {job}",
    Reason.RUNNER_LOST: "Try again with `ductile job retry {job}`; if it happens again, set "
    "plugins.{plugin}.warm to false.",
    Reason.DEADLINE_EXCEEDED: "Find out what it waits for, or give it more time: "
    "ductile config set plugins.{plugin}.timeouts.{command} DURATION --lock",
    Reason.ORPHANED: "See in the log why the daemon died. A job that kills it runs out of attempts.",
    Reason.RETRY: "It will be retried without your help; to prevent that: ductile job cancel {job}",
    Reason.ATTEMPTS_EXHAUSTED: "Fix the cause, then: ductile job retry {job}",
    Reason.INTERRUPTED: "Nothing has to be done: it runs again.",
    Reason.NO_RESOURCES: "Nothing has to be done: it runs again. If it goes on like this, lower "
    "service.max_workers, or give the daemon more open files, processes or memory.",
    Reason.RECOVERED: "Nothing has to be done: it runs again.",
    Reason.BAD_TEMPLATE: "The step's `with` names something that its input does not have: "
    "correct the pipeline, then start it again.",
    Reason.BAD_BAGGAGE: "The step's `baggage` names something that is not there, or is taken: "
    "correct the pipeline, then start it again.",
    Reason.BAD_CONDITION: "The step's `if` cannot be evaluated: correct the pipeline, then start it again.",
    Reason.CANCELLED: "If that was not intended: ductile job retry {job}",
    Reason.PLUGIN_REMOVED: "Put {plugin} back under `plugins`, or enable it, then: ductile job retry {job}",
    Reason.PURGED: "If that was not intended: ductile job retry {job}",
    Reason.MANUAL_RETRY: "Nothing has to be done: it runs again.",
    Reason.STEP_FAILED: "Fix what failed in the step, then: ductile job retry {job}",
    Reason.PARTIAL_SUCCESS: "Fix the branch that failed, then: ductile job retry {job}",
    Reason.STALLED: "That is a defect of Ductile: ductile system selfcheck, and report it. To go on: "
    "ductile job retry {job}",
}


def advice_for(reason: Reason, *, plugin: str, command: str, job_id: str) -> str:
    return ADVICE[reason].format(plugin=plugin, command=command, job=job_id)
