"""Submitting one job of a plugin's command."""

from __future__ import annotations

from ductile.config.snapshot import PluginInstance, Snapshot
from ductile.core.events.model import NewEvent
from ductile.core.ids import make_id
from ductile.core.jobs.model import JobStatus, NewJob, SubmittedBy
from ductile.core.json import JsonObject
from ductile.errors import NotFoundError, RefusedError
from ductile.operations import parameters as read
from ductile.operations.context import OperationContext
from ductile.operations.plugins.catalogue import known_command
from ductile.operations.plugins.names import unknown_plugin
from ductile.operations.submission import (
    Source,
    SubmissionOptions,
    callback_of,
    read_submission_options,
    refuse_changed_payload,
    refuse_invalid_payload,
    refuse_reused_key,
    refuse_without_subscription,
)
from ductile.store.model.submission import Deduplicated, Submission


async def submit(
    context: OperationContext, door: Source, given: JsonObject, event: NewEvent | None = None
) -> JsonObject:
    """Put one job of a plugin's command on the queue.

    An event that somebody signed brings its payload along. What such a sender sends is not held against a
    schema: it could not be told, and would only send it again.
    """
    snapshot = context.snapshot()
    plugin = runnable_plugin(snapshot, read.text(given, "plugin"))
    command = known_command(plugin, read.optional_text(given, "command") or default_command(plugin))
    intake = await read_submission_options(context, door, given)
    if event is None:
        refuse_invalid_payload(plugin, command, intake.payload)
    job = NewJob(
        id=make_id(context.now(), context.rng),
        plugin=plugin.name,
        command=command,
        submitted_by=door.submitted_by,
        submitted_detail=door.detail,
        max_attempts=plugin.retry.max_attempts,
        payload=intake.payload if event is None else None,
        source_event_id=None if event is None else event.id,
        dedupe_key=intake.dedupe_key,
        dedupe_ttl=intake.dedupe_ttl,
        hops=intake.hops,
        trace_id=intake.trace_id,
        callback=callback_of(intake, plugin),
    )
    if read.flag(given, "dry_run"):
        return {"job_id": None, "plugin": plugin.name, "command": command, "dry_run": True}
    if intake.idempotent:  # not even asked for the others: this is the way of every job
        await refuse_reused_key(context, intake, (job,))
    submission = Submission(jobs=(job,), event=event, dedupe_window=snapshot.service.dedupe_ttl)
    (answer,) = await context.enqueue(submission)
    if isinstance(answer, Deduplicated):
        return await _existing(context, intake, plugin.name, command, answer)
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED,
        "plugin": plugin.name,
        "command": command,
        "deduplicated": False,
    }


async def submit_from_cli(context: OperationContext, given: JsonObject) -> JsonObject:
    return await submit(context, Source(submitted_by=SubmittedBy.CLI), given)


async def _existing(
    context: OperationContext, intake: SubmissionOptions, plugin: str, command: str, answer: Deduplicated
) -> JsonObject:
    """The answer to a duplicate: the job that is there, as it stands."""
    job = await context.store.job(answer.job_id)
    refuse_changed_payload(intake, job)
    refuse_without_subscription(answer)
    return {
        "job_id": answer.job_id,
        "status": JobStatus.QUEUED if job is None else job.status,
        "plugin": plugin,
        "command": command,
        "deduplicated": True,
    }


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
