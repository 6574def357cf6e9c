"""Running a plugin or, if there is none of that name, a pipeline."""

from __future__ import annotations

from typing import Annotated

from ductile.config.snapshot import Snapshot
from ductile.core.suggest import did_you_mean
from ductile.errors import NotFoundError, UsageError
from ductile.operations.context import OperationContext
from ductile.operations.plugins.lookup import default_command, known_command, runnable_plugin
from ductile.operations.runs.start import RunPipeline, run_pipeline
from ductile.operations.submission import (
    MaxAttempts,
    PlannedSubmission,
    RunCommand,
    SubmissionRequest,
    Submitted,
    submit_job,
)
from ductile.plugins.shipped import shipped_names
from ductile.struct import about, replace


class RunNamed(SubmissionRequest, kw_only=True):
    name: Annotated[str, about("Name of a plugin or, if there is none of this name, of a pipeline.")]
    command: Annotated[
        str | None,
        about("The plugin's command: `handle` with a payload, else `poll`, as far as it has them."),
    ] = None
    max_attempts: MaxAttempts = None


async def run_named(context: OperationContext, request: RunNamed) -> Submitted | PlannedSubmission:
    """Put a job of the plugin, or a run of the pipeline, on the queue. Waits for neither."""
    snapshot = context.snapshot()
    common = {name: getattr(request, name) for name in SubmissionRequest.__struct_fields__}
    if is_pipeline(snapshot, request.name, request.command):
        started = await run_pipeline(context, RunPipeline(**common, pipeline=request.name, no_wait=True))
        if not isinstance(started, Submitted | PlannedSubmission):
            raise TypeError(type(started))  # A request with `no_wait` is not answered with a result.
        return started
    submitted = await submit_job(
        context,
        RunCommand(**common, plugin=request.name, command=request.command, max_attempts=request.max_attempts),
    )
    if request.name not in snapshot.pipelines:
        return submitted
    note = f"{request.name} is also the name of a pipeline: `ductile pipeline run {request.name}` runs it."
    return replace(submitted, note=note)


def is_pipeline(snapshot: Snapshot, name: str, command: str | None) -> bool:
    """Return whether the name stands for a pipeline: a plugin of the same name comes first.

    Raises `NotFoundError` for an unknown name, and `UsageError` for a command of a pipeline.
    """
    if name in snapshot.plugins:
        return False
    if name in snapshot.pipelines:
        if command is not None:
            raise UsageError(
                f"{name} is a pipeline, which has no commands",
                hint=f"Without {command}: ductile run {name}",
            )
        return True
    installed = (*snapshot.available, *shipped_names())
    if name in installed or any(plugin.uses == name for plugin in snapshot.plugins.values()):
        runnable_plugin(snapshot, name)  # Raises the error that says how to make it active.
    near = did_you_mean(name, (*snapshot.plugins, *snapshot.pipelines))
    raise NotFoundError(
        f"there is no plugin or pipeline {name}",
        hint=near or "See `ductile plugin list` and `ductile pipeline list`.",
    )


def check_name(snapshot: Snapshot, name: str, command: str | None, *, has_payload: bool) -> None:
    """Raise the error of `run_named` for a name or command that this configuration does not have."""
    if not is_pipeline(snapshot, name, command):
        plugin = runnable_plugin(snapshot, name)
        known_command(plugin, command or default_command(plugin, has_payload=has_payload))
