"""Recordings: the requests of past jobs of a plugin and their responses, as far as they are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from ductile.config.snapshot import Snapshot
from ductile.core.jobs.plugin_state import SYSTEM_COMMANDS
from ductile.core.jobs.settlement import LogStatus
from ductile.core.json import JsonObject
from ductile.operations.context import OperationContext
from ductile.store.model.jobs import ClaimedJob
from ductile.store.model.records import LARGEST_PAGE, LogFilter, LogRow
from ductile.struct import Value, replace

#: The statuses of executions that the plugin caused, and not an operator or a crash.
_RESPONDED = frozenset((LogStatus.SUCCEEDED, LogStatus.FAILED, LogStatus.TIMED_OUT))
#: The most pages of executions that are searched for recordings.
_MAX_PAGES = 10


class Recording(Value):
    """The last execution of a job that ended with an answer: its request and its row in the log."""

    claim: ClaimedJob
    execution: LogRow


class LostRecording(Value):
    """A job whose input is no longer kept."""

    execution: LogRow
    #: The parts that retention has removed: `event`, `context` or both.
    lost: str


async def find_recordings(
    context: OperationContext, snapshot: Snapshot, plugin: str, command: str | None, *, limit: int
) -> AsyncIterator[Recording | LostRecording]:
    """Yield the latest jobs of a plugin that have ended with an answer, newest first, at most `limit`.

    The state in each request is the plugin's present one: earlier ones are not kept. Time limits of steps are
    those of `snapshot`.
    """
    stored = await context.store.plugin_state(plugin)
    state = {} if stored is None else stored.state
    seen: set[str] = set()
    cursor: str | None = None
    for _page in range(_MAX_PAGES):
        page = await context.store.list_log(
            LogFilter(plugin=plugin, command=command), limit=LARGEST_PAGE, cursor=cursor
        )
        for row in page.rows:
            if row.status not in _RESPONDED or row.command in SYSTEM_COMMANDS or row.job_id in seen:
                continue
            if len(seen) == limit:
                return
            seen.add(row.job_id)
            if (recording := await _load(context, snapshot, row, state)) is not None:
                yield recording
        cursor = page.next_cursor
        if cursor is None:
            return


async def _load(
    context: OperationContext, snapshot: Snapshot, listed: LogRow, state: JsonObject
) -> Recording | LostRecording | None:
    """Return the recording of an execution, whose output the list does not have; None if it was pruned
    meanwhile.
    """
    rows = await context.store.list_executions(listed.job_id)
    execution = next((row for row in rows if row.execution == listed.execution), None)
    job = await context.store.get_job(listed.job_id)
    if job is None or execution is None:
        return None
    event = None if job.source_event_id is None else await context.store.get_event(job.source_event_id)
    event_context = (
        None if job.event_context_id is None else await context.store.get_event_context(job.event_context_id)
    )
    lost = []
    if job.source_event_id is not None and event is None:
        lost.append("event")
    if job.event_context_id is not None and event_context is None:
        lost.append("context")
    if lost:
        return LostRecording(execution=execution, lost=" and ".join(lost))
    run = None if job.run_id is None else await context.store.get_job(job.run_id)
    pipeline = None if run is None else snapshot.policy.pipelines.by_name.get(run.command)
    step = None if pipeline is None else pipeline.graph.step(job.step_path)
    return Recording(
        claim=ClaimedJob(
            job=replace(job, cancel_requested_at=None, owner=None, attempt=execution.attempt),
            event=event,
            state=state,
            baggage={} if event_context is None else event_context.baggage,
            pipeline=None if run is None else run.command,
            timeout=None if step is None or step.timeout is None else timedelta(seconds=step.timeout),
        ),
        execution=execution,
    )
