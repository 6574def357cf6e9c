"""Submitting one job of a plugin's command."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import JobStatus, NewJob
from ductile.errors import NotFoundError, RefusedError
from ductile.operations.context import OperationContext
from ductile.operations.plugins.catalogue import known_command
from ductile.operations.plugins.names import unknown_plugin
from ductile.operations.submission import (
    PlannedSubmission,
    SubmissionRequest,
    Submitted,
    callback_of,
    read_submission_options,
    refuse_changed_payload,
    refuse_invalid_payload,
    refuse_reused_key,
    refuse_without_subscription,
)
from ductile.protocol.manifest.model import ExecutionMode
from ductile.store.model.submission import Deduplicated, Submission


class RunCommand(SubmissionRequest, kw_only=True):
    plugin: Annotated[str, Meta(description="The plugin.")]
    command: Annotated[str | None, Meta(description="Its command; `poll` if it has one, else `handle`.")] = (
        None
    )


async def run_command(context: OperationContext, request: RunCommand) -> Submitted | PlannedSubmission:
    """Put one job of a plugin's command on the queue."""
    return await submit_job(context, request)


async def submit_job(
    context: OperationContext, request: RunCommand, event: NewEvent | None = None
) -> Submitted | PlannedSubmission:
    """As `run_command`; with the event of a webhook, its payload is the job's.

    A webhook's payload is not validated: its sender could do nothing about it and would send it again.
    """
    snapshot = context.snapshot()
    plugin = runnable_plugin(snapshot, request.plugin)
    command = known_command(plugin, request.command or default_command(plugin))
    options = await read_submission_options(context, request)
    if event is None:
        refuse_invalid_payload(plugin, command, options.payload)
    if request.dry_run:
        return PlannedSubmission(plugin=plugin.name, command=command)
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=plugin.name,
        command=command,
        submitted_by=context.source.submitted_by,
        submitted_detail=context.source.detail,
        max_attempts=plugin.retry.max_attempts,
        payload=options.payload if event is None else None,
        source_event_id=None if event is None else event.id,
        dedupe_key=options.dedupe_key,
        dedupe_ttl=options.dedupe_ttl,
        hops=options.hops,
        trace_id=options.trace_id,
        callback=callback_of(options, plugin),
    )
    if options.idempotent:
        await refuse_reused_key(context, options, (job,))
    submission = Submission(jobs=(job,), event=event, dedupe_window=snapshot.service.dedupe_ttl)
    (result,) = await context.enqueue(submission)
    status = JobStatus.QUEUED
    if duplicate := isinstance(result, Deduplicated):
        existing = await context.store.job(result.job_id)
        refuse_changed_payload(options, existing)
        refuse_without_subscription(result)
        status = status if existing is None else existing.status
    return Submitted(
        job_id=result.job_id,
        status=status,
        execution_mode=ExecutionMode.ASYNC,
        plugin=plugin.name,
        command=command,
        deduplicated=duplicate,
    )


def runnable_plugin(snapshot: Snapshot, name: str) -> PluginInstance:
    """The plugin, if jobs may be submitted for it."""
    plugin = snapshot.plugins.get(name)
    if plugin is None:
        if name in snapshot.available:
            raise NotFoundError(
                f"the plugin {name} is installed but not active",
                hint=f"Name it under `plugins`: `ductile config set plugins.{name}.enabled true --lock`. "
                "A running daemon then needs `ductile reload`.",
            )
        raise unknown_plugin(snapshot, name)
    if not plugin.enabled:
        raise RefusedError(f"the plugin {name} is disabled", hint=f"Enable it: ductile plugin enable {name}")
    if plugin.refused is not None:
        raise RefusedError(f"the plugin {name} cannot run: {plugin.refused.reason}", hint=plugin.refused.hint)
    return plugin


def default_command(plugin: PluginInstance) -> str:
    commands = plugin.installed.manifest.commands if plugin.installed else {}
    return "poll" if "poll" in commands else "handle"
